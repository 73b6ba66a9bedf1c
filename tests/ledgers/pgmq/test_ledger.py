"""What is peculiar to a ledger over PGMQ: what its messages look like, and what it hands out in another way than a table.

The conformance suite runs over it too.
"""

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, event, text

from redrive.core.durations import ZERO, days, hours, minutes, seconds
from redrive.core.outcome import Done, LeaseExpired, Released
from redrive.core.states import State
from redrive.core.task import ClaimLost
from redrive.errors import MissingExtraError, UsageError
from redrive.ledgers.pgmq import queues
from redrive.ledgers.pgmq.ledger import PgmqLedger
from redrive.operator.sql.index_order import IndexOrder
from redrive.operator.sql.pages import SqlTaskPages
from redrive.operator.sql.reads import Reads
from redrive.ports import Filter, Page, Return
from tests.ledgers.conftest import HOMES
from tests.ledgers.homes import ADA, BACKOFF, DOMAIN, LEASE, PERMANENT, START, TRANSIENT, Home, settlement
from tests.ledgers.test_one_bad_row import DEEP

pytestmark = pytest.mark.homes(lambda table: table.schema == "commandbus")
QUEUE = f"{DOMAIN}__commands"


async def messages(home: Home, table: str = "q") -> list[Any]:
    """The messages of the queue, or of its archive, oldest first."""

    def look(connection: Connection) -> list[Any]:
        return list(connection.execute(text(f"SELECT * FROM pgmq.{table}_{QUEUE} ORDER BY msg_id")))

    return await home.database.read(look)


async def test_there_is_a_home() -> None:
    """The suite runs over the queue, too: a home that fits nothing would pass for tested."""
    assert any(home[1].on(home[0]).schema == "commandbus" for home in HOMES)


async def test_a_claim_hides_the_message_for_the_lease(home: Home) -> None:
    """Claiming raises `read_ct` and moves `vt`, and nothing else of the message."""
    [id_] = await home.put()
    [before] = await messages(home)
    claim = await home.claim_one()
    [message] = await messages(home)
    assert (before.read_ct, message.read_ct) == (0, 1)
    assert message.vt == START + LEASE
    assert message.message == before.message
    assert message.message["command_id"] == "key-00001"
    assert message.message["data"] == {"n": 0}
    assert (claim.task.id, claim.task.payload["msg_id"]) == (id_, message.msg_id)


@pytest.mark.parametrize(
    ("outcome", "queued", "archived"),
    [(Done(), 0, 0), (TRANSIENT, 1, 0), (Released(), 1, 0), (PERMANENT, 0, 1)],
    ids=["done", "failed", "released", "dead"],
)
async def test_where_the_message_ends(home: Home, outcome: Any, queued: int, archived: int) -> None:
    """Done is deleted, dead is archived, what waits again is kept and hidden for its delay."""
    await home.put()
    await home.run(outcome)
    assert len(await messages(home)) == queued
    assert len(await messages(home, "a")) == archived
    for message in await messages(home):
        assert message.vt == START + (BACKOFF if outcome is TRANSIENT else ZERO)


async def test_abandoned_is_handed_out_by_claim_marked(home: Home) -> None:
    """A message that is due while its row is claimed is handed out as abandoned, under the lost claim's id, once at a time."""
    [id_] = await home.put()
    lost = await home.claim_one()
    home.clock.advance(LEASE)
    assert await home.ledger.reclaim(9, LEASE) == []
    [found] = await home.ledger.claim(9, LEASE)
    assert found.abandoned is not None
    assert (found.task.id, found.claim_id, found.abandoned.claim_id) == (id_, lost.claim_id, lost.claim_id)
    assert found.abandoned.claimed_at == START
    assert await home.ledger.claim(9, LEASE) == []
    assert await home.settle(found, LeaseExpired()) == []
    [attempt] = await home.ledger.attempts(id_)
    assert (attempt.claim_id, attempt.outcome, attempt.number) == (lost.claim_id, "lease_expired", 1)
    assert (await home.row(id_))["count"] == 0


async def test_a_lost_claim_of_a_paused_kind_waits_for_the_resume(home: Home) -> None:
    """Workers leave paused kinds out of what they ask for, so nobody is handed what a lost worker held: it is neither run nor charged."""
    [id_] = await home.put(kind="mail")
    await home.claim_one()
    home.clock.advance(2 * LEASE)
    assert await home.ledger.reclaim(9, LEASE) == []
    assert await home.ledger.claim(9, LEASE, kinds=["other"]) == []
    assert await home.ledger.attempts(id_) == []
    [found] = await home.ledger.claim(9, LEASE, kinds=["mail"])
    assert found.abandoned is not None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            DEEP, id="deep", marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="it can be read here")
        ),
        pytest.param(f"1{'0' * 5000}", id="long"),
    ],
)
async def test_a_message_that_cannot_be_read_costs_no_other(home: Home, data: str) -> None:
    """It is claimed with the others and marked, so that it ends as its own failure; also when its worker was lost."""
    [bad, good] = await home.put(2)
    first = (await messages(home))[0].msg_id
    spoil = f"UPDATE pgmq.q_{QUEUE} SET message = jsonb_set(message, '{{data}}', CAST(:data AS jsonb)) WHERE msg_id = :first"
    await home.database.write(lambda connection: connection.execute(text(spoil), {"data": data, "first": first}))
    for claim_all in (home.ledger.claim, home.reclaim):
        claims = {claim.task.id: claim for claim in await claim_all(9, LEASE)}
        assert claims.keys() == {bad, good}
        assert claims[good].unreadable is None
        assert f"message {first} cannot be read" in (claims[bad].unreadable or "")
        home.clock.advance(LEASE)


async def test_a_queue_recalls_nothing(home: Home) -> None:
    """A queue cannot be asked by a fence: the answer is empty, and the task comes back by itself when its lease ends."""
    fence = uuid4()
    await home.put()
    await home.ledger.claim(1, LEASE, fence=fence)
    assert await home.ledger.recall(fence, LEASE) == []
    home.clock.advance(LEASE)
    [found] = await home.reclaim(1, LEASE)
    assert found.claim_id == fence


async def test_a_late_worker_is_in_time_while_nobody_has_looked(home: Home) -> None:
    """What ran out while the store was away is still its worker's, as long as nobody has read the message: nothing runs twice."""
    [id_, other] = await home.put(2)
    claims = await home.ledger.claim(2, LEASE)
    home.clock.advance(LEASE + hours(1))
    assert await home.ledger.extend(claims, LEASE) == []
    assert await home.ledger.claim(9, LEASE) == []
    home.clock.advance(LEASE + hours(1))
    assert await home.ledger.settle([settlement(one) for one in claims], worker="w1") == []
    assert [attempt.outcome for attempt in await home.ledger.attempts(id_)] == ["done"]
    assert [attempt.outcome for attempt in await home.ledger.attempts(other)] == ["done"]
    assert await messages(home) == []


async def test_what_a_worker_holds_itself_is_not_abandoned(home: Home) -> None:
    """A worker that asks for work after an outage gets back what others lost, and keeps what it holds as it was claimed."""
    await home.put(3)
    own = await home.ledger.claim(2, LEASE)
    [lost] = await home.ledger.claim(1, LEASE)
    home.clock.advance(LEASE)
    [found] = await home.ledger.claim(9, LEASE, held=lambda: own)
    assert found.abandoned is not None
    assert found.task.id == lost.task.id
    assert await home.ledger.claim(9, LEASE) == [], "its messages are hidden again"
    assert await home.ledger.settle([settlement(one) for one in own], worker="w1") == []


async def test_while_another_buries_it_the_late_worker_changes_nothing(home: Home) -> None:
    """The message is hidden again by whoever found it abandoned; its raised `read_ct` still keeps the late worker out."""
    await home.put()
    late = await home.claim_one()
    home.clock.advance(LEASE)
    [found] = await home.ledger.claim(1, LEASE)
    assert await home.settle(late, Done()) == [ClaimLost(late)]
    assert await home.ledger.extend([late], hours(1)) == [ClaimLost(late)]
    assert await home.settle(found, LeaseExpired()) == []


async def test_a_stranger_who_read_the_message_owns_it(home: Home) -> None:
    """Another client of PGMQ that reads the message takes it from its worker."""
    await home.put()
    claim = await home.claim_one()
    await home.database.write(
        lambda connection: connection.execute(text(f"UPDATE pgmq.q_{QUEUE} SET read_ct = read_ct + 1"))
    )
    assert await home.settle(claim, Done()) == [ClaimLost(claim)]
    assert len(await messages(home)) == 1


async def test_extending_never_shortens(home: Home) -> None:
    """A handler that asked for an hour keeps it when its worker extends by half a minute; the row says the same."""
    [id_] = await home.put()
    claim = await home.claim_one()
    assert await home.ledger.extend([claim], hours(1)) == []
    home.clock.advance(seconds(10))
    assert await home.ledger.extend([claim], LEASE) == []
    [message] = await messages(home)
    assert message.vt == START + hours(1) == (await home.row(id_))["lease_until"]
    home.clock.advance(minutes(50))
    assert await home.ledger.claim(1, LEASE) == []
    assert await home.settle(claim, Done()) == []
    assert (await home.row(id_))["status"] == home.table.words.done


async def test_the_oldest_due_goes_first(home: Home) -> None:
    """Retries and first tries share one order, that of their due times, so neither starves the other."""
    await home.put(3)
    claims = await home.ledger.claim(3, LEASE)
    await home.ledger.settle([settlement(claim, TRANSIENT) for claim in claims], worker="w1")
    home.clock.advance(BACKOFF - seconds(1))
    await home.put(3)
    home.clock.advance(seconds(1))
    assert [(await home.claim_one()).number for _ in range(6)] == [1, 1, 1, 2, 2, 2]


async def test_a_message_whose_command_has_ended_is_put_away(home: Home) -> None:
    """A message that was left over, or sent twice by hand, is archived and not run; one that belongs to nobody too."""
    [id_] = await home.put()
    await home.run(Done())
    again = '{"domain": "work", "command_id": "key-00001", "command_type": "mail", "data": null}'
    nobody = '{"domain": "work", "command_id": "who", "command_type": "mail", "data": null}'
    for message in (again, nobody):
        await home.database.write(
            lambda connection, message=message: connection.execute(
                text(f"INSERT INTO pgmq.q_{QUEUE} (vt, message) VALUES (:vt, CAST(:message AS jsonb))"),
                {"vt": START, "message": message},
            )
        )
    assert await home.ledger.claim(9, LEASE) == []
    assert await messages(home) == []
    assert len(await messages(home, "a")) == 2
    assert len(await home.ledger.attempts(id_)) == 1


async def test_redrive_sends_a_new_message(home: Home) -> None:
    """A dead task comes back as a new message with the same content; the archived one stays."""
    [id_] = await home.dead()
    [old] = await messages(home, "a")
    assert await home.ledger.redrive([id_], ADA) == [id_]
    [new] = await messages(home)
    assert (new.message, new.read_ct, new.vt) == (old.message, 0, START)
    assert new.msg_id > old.msg_id
    assert len(await messages(home, "a")) == 1
    claim = await home.claim_one()
    assert (claim.task.id, claim.number, claim.task.payload["data"]) == (id_, 1, {"n": 0})


async def test_without_its_archived_message_nothing_can_be_redriven(home: Home) -> None:
    """What PGMQ's archive has lost stays dead, and takes nothing else with it."""
    gone, there = await home.dead(2)
    [row] = [one for one in await messages(home, "a") if one.message["command_id"] == "key-00001"]
    await home.database.write(
        lambda connection: connection.execute(text(f"DELETE FROM pgmq.a_{QUEUE} WHERE msg_id = {row.msg_id}"))
    )
    assert await home.ledger.redrive([gone, there], ADA) == [there]
    assert (await home.ledger.get(gone)).state is State.DEAD  # type: ignore[union-attr]
    assert await home.ledger.deeds(gone) == []


async def test_cancel_and_bury_archive_the_message(home: Home) -> None:
    """What will not be run is not left in the queue."""
    cancelled, buried, left = await home.put(3)
    assert await home.ledger.cancel([cancelled], ADA) == [cancelled]
    assert await home.ledger.bury([buried, cancelled], ADA) == [buried]
    assert [message.message["command_id"] for message in await messages(home)] == ["key-00003"]
    assert len(await messages(home, "a")) == 2
    assert (await home.ledger.get(buried)).state is State.DEAD  # type: ignore[union-attr]
    assert (await home.claim_one()).task.id == left


async def test_cancel_and_claim_at_once(home: Home) -> None:
    """A person and a worker who want the same tasks do not wait for each other in a circle, and one of them gets each."""
    ids = await home.put(40)
    other = await home.another()

    async def claim() -> set[Any]:
        return {claim.task.id for _ in range(10) for claim in await other.claim(4, LEASE)}

    taken, cancelled = await asyncio.gather(claim(), home.ledger.cancel(ids, ADA))
    taken |= {claim.task.id for claim in await other.claim(40, LEASE)}
    assert taken | set(cancelled) == set(ids)
    assert not taken & set(cancelled)


async def test_what_is_held_is_due_at_its_end(home: Home) -> None:
    """A worker that sleeps until the next due time wakes when a lost worker's message comes back."""
    await home.put()
    await home.claim_one()
    home.clock.advance(seconds(10))
    assert await home.ledger.next_due() == LEASE - seconds(10)


async def test_overdue(home: Home) -> None:
    """Overdue is what waits and has been due for so long, oldest first; not what is held or parked."""
    [old] = await home.put()
    home.clock.advance(minutes(5))
    [younger] = await home.put()
    await home.put(delay=hours(1))
    home.clock.advance(minutes(5))
    assert await home.ledger.overdue("mail", minutes(10)) == [old]
    assert await home.ledger.overdue("mail", minutes(5)) == [old, younger]
    assert await home.ledger.overdue("mail", minutes(5), limit=1) == [old]
    assert await home.ledger.overdue("fax", ZERO) == []
    await home.ledger.claim(9, LEASE)
    assert await home.ledger.overdue("mail", minutes(5)) == []


async def test_return_is_refused(home: Home) -> None:
    """A queue forgets what is done, so nothing can come back from there."""
    [id_] = await home.dead()
    with pytest.raises(UsageError, match="forget what is done"):
        await home.ledger.return_([Return(id=id_, failures=1, delay=ZERO)], ADA)


async def test_the_rollup_counts_lost_workers(home: Home) -> None:
    """The minute counts what was settled in it, lost claims too."""
    await home.put(3)
    claims = await home.ledger.claim(3, LEASE)
    await home.settle(claims[0], Done())
    home.clock.advance(minutes(1))
    await home.expire()
    counted = Counter[str]()
    for row in await home.rollups():
        counted.update({name: row[name] for name in ("done", "retried", "lease_expired")})
    assert counted == {"done": 1, "retried": 2, "lease_expired": 2}


async def analyzed(home: Home, run: Callable[..., Any], *args: Any) -> str:
    """How the very statements that a function executes were run, and how many rows each step of them read."""

    def explain(connection: Connection) -> str:
        seen: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if QUEUE in statement or "commandbus.command" in statement:
                seen.append((statement, parameters))

        begun = connection.begin_nested()
        event.listen(connection, "before_cursor_execute", note)
        try:
            run(connection, *args)
        finally:
            event.remove(connection, "before_cursor_execute", note)
        begun.rollback()
        begun, shown = connection.begin_nested(), list[str]()
        for statement, parameters in seen:
            prefix = "EXPLAIN (ANALYZE, BUFFERS OFF, TIMING OFF, COSTS OFF, SUMMARY OFF) "
            shown += connection.exec_driver_sql(prefix + statement, parameters).scalars()
        begun.rollback()
        assert seen
        return "\n".join(shown)

    return await home.database.write(explain)


def read_at_most(rows: int, plan: str) -> None:
    """No step of the plan read, or read and threw away, more rows than this."""
    steps = re.findall(r"actual rows=([\d.]+) loops=(\d+)", plan)
    assert max(float(amount) * int(loops) for amount, loops in steps) <= rows, plan
    assert all(int(amount) <= rows for amount in re.findall(r"Rows Removed by .*: (\d+)", plan)), plan


async def crowd(home: Home) -> None:
    """Messages by the thousand, parked or of a kind that nobody here wants, and as many commands that are done."""

    def fill(connection: Connection) -> None:
        series = "FROM generate_series(1, 20000) n"
        park = (
            f"INSERT INTO pgmq.q_{QUEUE} (vt, message) SELECT CASE WHEN n % 2 = 0 THEN timestamptz '2031-01-01 00:00+00' "
            "ELSE timestamptz '2029-01-01 00:00+00' END, "
            f"jsonb_build_object('command_type', CASE WHEN n % 2 = 0 THEN 'mail' ELSE 'fax' END) {series}"
        )
        done = (
            "INSERT INTO commandbus.command "
            "(domain, command_id, command_type, queue_name, status, created_at, updated_at) "
            f"SELECT 'work', 'done-' || n, 'mail', '{QUEUE}', 'COMPLETED', now(), now() {series}"
        )
        for statement in (park, done, f"ANALYZE pgmq.q_{QUEUE}", "ANALYZE commandbus.command"):
            connection.execute(text(statement))

    await home.database.write(fill)


async def test_a_million_parked_messages_cost_a_claim_nothing(home: Home) -> None:
    """Whatever workers and their housekeeping ask again and again reads what is due by an index, and nothing parked."""
    ledger = home.ledger
    assert isinstance(ledger, PgmqLedger)
    await home.put(4)
    await crowd(home)
    claim = await analyzed(home, ledger._claim_messages, 3, LEASE, ["mail", "print"], uuid4())
    assert f"q_{QUEUE}_kind_idx" in claim, claim
    read_at_most(10, claim)
    claims = await ledger.claim(3, LEASE, kinds=["mail"])
    assert len(claims) == 3
    for run, *args in (
        (ledger._held, claims),
        (ledger._extend, claims, LEASE),
        (ledger._settle, [settlement(one, TRANSIENT) for one in claims], "w1"),
        (ledger._seconds_left, ["mail", "fax"]),
        (ledger._list_kinds,),
    ):
        read_at_most(10, await analyzed(home, run, *args))
    home.clock.advance(hours(1))
    read_at_most(10, await analyzed(home, ledger._overdue, "mail", minutes(10), 100))
    read_at_most(10, await analyzed(home, ledger._take_lost, "mail", 100, LEASE))


async def test_large_batches_read_their_rows_alone(home: Home) -> None:
    """Nor is a table read for many rows at once, though PostgreSQL may think that it comes cheaper."""
    ledger = home.ledger
    assert isinstance(ledger, PgmqLedger)
    await home.put()
    await crowd(home)
    await home.put(399)
    claims = await ledger.claim(400, LEASE, kinds=["mail"])
    assert len(claims) == 400
    read_at_most(400, await analyzed(home, ledger._extend, claims, LEASE))
    for outcome in (Done(), TRANSIENT):
        settlements = [settlement(one, outcome) for one in claims]
        read_at_most(400, await analyzed(home, ledger._settle, settlements, "w1"))


async def test_counts_read_no_more_than_they_may(home: Home) -> None:
    """The table keeps everything; what is rare in it is counted without reading it all."""
    await home.dead(2)
    await home.put(3)
    await home.claim_one()
    await crowd(home)
    read_at_most(101, await analyzed(home, home.ledger._counts, 100))
    counts = await home.ledger.counts(counted_max=100)
    assert counts == {State.WAITING: 100, State.CLAIMED: 1, State.DONE: 100, State.DEAD: 2, State.CANCELLED: 0}
    assert await home.ledger.counts() == counts | {State.WAITING: 20_002, State.DONE: 20_000}


async def test_pages_for_people_read_the_messages(home: Home) -> None:
    """What waits and what is held is found by its messages, what is dead by its index, however many have ended."""
    ledger, pages = home.ledger, SqlTaskPages(home.ledger)
    dead = await home.dead(2)
    ids = []
    for _ in range(3):  # rows of one instant are sorted by id, so a page reads all of its instant
        ids += await home.put(40)
        home.clock.advance(seconds(1))
    held = sorted(claim.task.id for claim in await ledger.claim(2, LEASE))
    await crowd(home)
    heads = partial(IndexOrder(home.ledger, Reads(home.database, limited=True))._heads, newest_first=False)
    for state, expected in ((State.WAITING, [id_ for id_ in ids if id_ not in held]), (State.CLAIMED, held)):
        asked = Filter(state=state)
        assert (await pages.ids(asked, limit=2)).items == expected[:2]
        for after in (None, *await home.database.read(heads, asked, ["mail"], None, 1)):
            plan = await analyzed(home, heads, asked, ["mail"], after, 1)
            if state is State.WAITING:
                read_at_most(100, plan)
            else:  # messages are read, but only the rows of those that were handed out
                [loops] = re.findall(r"on command \(actual rows=[\d.]+ loops=(\d+)\)", plan)
                assert int(loops) <= 2, plan
            assert "Seq Scan on command" not in plan, plan
    assert await home.database.read(ledger.count_held, 100) == 2
    assert await pages.count(Filter(state=State.WAITING)) == len(ids) - 2
    asked_dead = Filter(state=State.DEAD)
    assert [task.id for task in (await ledger.find(asked_dead)).items] == dead
    read_at_most(10, await analyzed(home, partial(ledger._find, newest_first=False), asked_dead, None, 10))


async def test_pages_of_kinds_that_no_queue_holds(home: Home) -> None:
    """A kind that somebody made up has no tasks, and is no error."""
    await home.put()
    for kind in ("nobody", "no/queue", "", 'q"; --'):
        assert await SqlTaskPages(home.ledger).ids(Filter(state=State.WAITING, kind=kind)) == Page(items=[])


async def test_what_was_lost_is_taken_alone(home: Home) -> None:
    """A system may take the claims of lost workers of a kind, once at a time; what waits or is held stays."""
    lost, other = await home.put(2)
    for claim in await home.ledger.claim(2, LEASE):
        if claim.task.id == other:
            await home.ledger.extend([claim], hours(1))
    home.clock.advance(LEASE)
    [waiting] = await home.put()
    assert await home.ledger.take_lost("fax", 9, LEASE) == []
    [found] = await home.ledger.take_lost("mail", 9, LEASE)
    assert (found.task.id, found.abandoned is not None, found.task.payload["data"]) == (lost, True, {"n": 0})
    assert await home.ledger.take_lost("mail", 9, LEASE) == []
    assert await home.settle(found, LeaseExpired()) == []
    assert {claim.task.id: claim.suspect for claim in await home.ledger.claim(9, LEASE)} == {lost: True, waiting: False}


async def test_what_waits_is_never_put_away(home: Home) -> None:
    """A message whose lost worker was settled by another in the meantime is left in the queue for the next try."""
    [id_] = await home.put()
    ledger, [message] = home.ledger, await messages(home)
    row = (message.msg_id, 1, None, message.message["domain"], message.message["command_id"])
    assert await home.database.write(ledger._take_over, QUEUE, [row], uuid4(), LEASE) == []
    assert await messages(home) == [message]
    assert (await home.claim_one()).task.id == id_


async def test_two_who_take_what_was_lost(home: Home) -> None:
    """Each lost claim is handed out once, to this one or that, or to a worker that handles the kind after all."""
    ids = await home.put(40)
    await home.ledger.claim(40, LEASE)
    home.clock.advance(LEASE)
    other = await home.another()
    taken = await asyncio.gather(
        home.ledger.take_lost("mail", 40, LEASE), other.take_lost("mail", 40, LEASE), other.claim(40, LEASE)
    )
    assert all(claim.abandoned is not None for claims in taken for claim in claims)
    assert sorted(claim.task.id for claims in taken for claim in claims) == ids
    assert len(await messages(home)) == 40


async def test_queues_are_made_by_many_at_once(home: Home) -> None:
    """Two programs that need the same new queue at the same moment both get it, with its index."""
    other = await home.another()
    made = [queues.Queues("command_type") for _ in range(6)]

    def ensure(connection: Connection, one: queues.Queues) -> None:
        one.ensure(connection, "brand_new__commands", by_kind=True)

    databases = [home.database, other.database] * 3
    await asyncio.gather(*(base.write(ensure, one) for base, one in zip(databases, made, strict=True)))
    there = await home.database.read(
        lambda c: c.execute(text("SELECT to_regclass('pgmq.q_brand_new__commands_kind_idx')"))
    )
    assert there.scalar_one() is not None
    await home.database.write(lambda c: c.execute(text("SELECT pgmq.drop_queue('brand_new__commands')")))


async def test_a_queue_that_was_rolled_back_is_made_again(home: Home) -> None:
    """A queue made in a transaction that failed is not remembered as being there."""
    one = queues.Queues("command_type")

    def fail(connection: Connection) -> None:
        one.ensure(connection, "undone__commands")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await home.database.write(fail)
    await home.database.write(lambda connection: one.ensure(connection, "undone__commands"))
    await home.database.write(lambda c: c.execute(text("SELECT pgmq.drop_queue('undone__commands')")))


async def test_a_queue_is_not_remembered_by_who_made_it(home: Home) -> None:
    """Asked for twice in a transaction, in a savepoint too, and then rolled back: it is made again, by anyone."""
    one, other = queues.Queues("command_type"), queues.Queues("command_type")

    def fail(connection: Connection) -> None:
        with connection.begin_nested():
            one.ensure(connection, "undone__commands", by_kind=True)
        for each in (one, other):
            each.ensure(connection, "undone__commands", by_kind=True)
            assert not each.knows("undone__commands")
        assert one.made_here(connection) == {"undone__commands"}
        raise ZeroDivisionError

    def make(connection: Connection) -> None:
        assert one.made_here(connection) == set()
        for each in (one, other):
            each.ensure(connection, "undone__commands", by_kind=True)

    with pytest.raises(ZeroDivisionError):
        await home.database.write(fail)
    await home.database.write(make)
    assert not one.knows("undone__commands")
    await home.database.write(make)
    assert one.knows("undone__commands")
    assert other.knows("undone__commands")
    await home.database.write(lambda c: c.execute(text("SELECT pgmq.drop_queue('undone__commands')")))


async def test_queues_of_others_are_not_ours(home: Home) -> None:
    """Only queues with our index are ours, however others call theirs. PGMQ makes its tables in lowercase letters."""
    await home.put()
    names = ("Orders__commands", "theirs__commands")
    for name in names:
        await home.database.write(lambda c, name=name: c.execute(text(f"SELECT pgmq.create('{name}')")))
    assert await home.database.read(home.ledger.queues.ours, "__commands") == [QUEUE]
    assert await home.ledger.open_kinds() == ["mail"]
    for name in names:
        await home.database.write(lambda c, name=name: c.execute(text(f"SELECT pgmq.drop_queue('{name}')")))


async def test_without_extension_and_package(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PGMQ cannot be had from anywhere, the error names the extra; where it is there already, nothing is needed."""

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(queues.resources, "files", missing)
    assert "RAISE" in await home.database.read(queues.pgmq_sql)
    monkeypatch.setattr(queues, "_CAN_BE_HAD", "SELECT false")
    with pytest.raises(MissingExtraError, match=r"redrive\[commands\]"):
        await home.database.read(queues.pgmq_sql)


async def test_days_later(home: Home) -> None:
    """A lost claim is found however long nobody looked."""
    await home.put()
    await home.claim_one()
    home.clock.advance(days(2) + timedelta(milliseconds=1))
    assert len(await home.expire()) == 1
