"""What every ledger promises (`redrive.ports`), checked over every shape of table on every database.

Those that need no look into tables are in `redrive.conformance`, for tables and ledgers of users, and run here too. A new promise is a
new test there or here.
"""

import asyncio
import contextlib
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from redrive.conformance.promises import *  # noqa: F403 - the promises run here too
from redrive.core.backoff import Fixed
from redrive.core.decide import Settlement, decide
from redrive.core.durations import ZERO, days, hours, minutes, seconds
from redrive.core.histograms import TOOK, TRIES, took_bucket
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import Counts
from redrive.core.task import Claim, ClaimLost
from redrive.errors import KeyTakenError, UsageError
from redrive.ledgers.sql import due
from redrive.ports import Filter, Return
from tests.ledgers.homes import ADA, BACKOFF, LEASE, PERMANENT, POLICY, RAN, START, TRANSIENT, Home, settlement

SEVENTH = timedelta(microseconds=1_000_007)
STORES = ("sqlite", "postgres", "aws")
"""Where the suite runs."""
OUTCOMES = ("done", "failed", "snoozed", "released", "cancelled", "lease_expired")
ENDS = [State.DONE, State.WAITING, State.DEAD, State.CANCELLED]
"""What a settlement may lead to."""


addable = pytest.mark.homes(lambda table: table.payload is not None)
"""For tables that redrive may insert into; `test_add_is_refused_without_a_payload_column` checks the others."""
with_kinds = pytest.mark.homes(lambda table: table.kind is not None)
cancellable = pytest.mark.homes(lambda table: table.words.cancelled is not None)
in_a_table = pytest.mark.homes(lambda table: table.schema not in ("commandbus", "dynamodb"))
"""For what a queue does in another way by nature; `pgmq/test_ledger.py` and `aws/test_ledger.py` say how."""
not_pgmq = pytest.mark.homes(lambda table: table.schema != "commandbus")
"""For what only queues of PGMQ do in another way."""
on_sql = pytest.mark.homes(lambda table: table.schema != "dynamodb")
"""For transactions to join, for pruning, and for kinds of columns; `aws/test_ledger.py` says how these are refused."""


# --- the fence ----------------------------------------------------------------------------------------------------------


async def test_a_failed_try_keeps_where_it_failed(home: Home) -> None:
    """The traceback of a failed try is in its history, for whoever looks, and each distinct one is kept once."""
    ids = await home.put(3)
    first, second, third = [await home.claim_one() for _ in ids]
    for claim, outcome in (
        (first, Failed(_raised(1))),
        (second, Failed(_raised(2))),
        (third, Failed(OSError("unraised"))),
    ):
        assert await home.settle(claim, outcome) == []
    other = await home.another()
    one, two, three = [(await other.attempts(claim.task.id))[0] for claim in (first, second, third)]
    assert one.stack == two.stack
    assert three.stack == ()
    [raised] = one.stack
    assert raised.error == "ValueError"
    assert one.explanation is not None
    assert one.explanation["at"] == raised.frames[-1].at
    assert raised.frames[-1].code == 'raise ValueError(f"row {number}")'
    assert raised.frames[-1].own


def _raised(number: int) -> ValueError:
    try:
        raise ValueError(f"row {number}")
    except ValueError as error:
        return error


async def test_late_and_current_claim_in_one_batch(home: Home) -> None:
    """Two claims of the same task in one batch: the late one is lost, the current one is written, one attempt each."""
    [id_] = await home.put()
    late = await home.claim_one()
    home.clock.advance(LEASE + SEVENTH)
    await home.expire()
    home.clock.advance(BACKOFF)
    current = await home.claim_one()
    for both in ([late, current], [current, late]):
        assert await home.ledger.extend(both, LEASE) == [ClaimLost(late)]
    settled = [settlement(late, PERMANENT), settlement(current, Done())]
    assert await home.ledger.settle(settled, worker="w1") == [ClaimLost(late)]
    assert [attempt.outcome for attempt in await home.ledger.attempts(id_)] == ["lease_expired", "done"]
    assert sum(row["done"] for row in await home.rollups()) == 1
    assert sum(row["dead"] for row in await home.rollups()) == 0


async def test_late_extend_is_refused(home: Home) -> None:
    """A lease that somebody else has taken over and settled cannot be extended."""
    [id_] = await home.put()
    late = await home.claim_one()
    home.clock.advance(LEASE + SEVENTH)
    await home.expire()
    assert await home.ledger.extend([late], hours(1)) == [ClaimLost(late)]
    home.clock.advance(BACKOFF)
    await home.claim_one()
    assert await home.ledger.extend([late], hours(1)) == [ClaimLost(late)]
    assert (await home.row(id_))["lease_until"] == home.clock.now() + LEASE


async def test_extend_moves_the_lease_and_keeps_the_fence(home: Home) -> None:
    """An extended claim is not reclaimed at its old end, is reclaimed at its new one, and settles as before."""
    [id_] = await home.put()
    claim = await home.claim_one()
    home.clock.advance(seconds(20))
    assert await home.ledger.extend([claim], LEASE) == []
    row = await home.row(id_)
    assert row["claim_id"] == claim.claim_id
    assert row["lease_until"] == START + seconds(20) + LEASE
    home.clock.advance(seconds(20))
    assert await home.reclaim(1, LEASE) == []
    assert await home.settle(claim, Done()) == []


# --- claim --------------------------------------------------------------------------------------------------------------


async def test_a_claim_shows_the_task_and_marks_the_row(home: Home) -> None:
    """A claimed row has a fence, a lease from the ledger's clock, and the table's word if it has one."""
    [id_] = await home.put()
    claim = await home.claim_one()
    row = await home.row(id_)
    assert claim.task.id == id_
    assert claim.task.state is State.CLAIMED
    assert claim.task.failures == 0
    assert claim.number == 1
    assert claim.abandoned is None
    assert claim.claimed_at == START
    assert row["claim_id"] == claim.claim_id
    assert isinstance(row["claim_id"], UUID)
    assert row["lease_until"] == START + LEASE == claim.task.lease_until
    assert row["status"] == (home.table.words.claimed or home.table.words.waiting)
    assert row["count"] == (1 if home.table.counts is Counts.ATTEMPTS else 0) or row["count"] is None
    if "claimed_at" in row:
        assert row["claimed_at"] == START
    if home.store == "aws":
        assert (claim.task.payload["event_id"], claim.task.payload["endpoint_id"]) == (
            str(id_).partition(".")[0],
            "ep-00",
        )
        assert claim.task.failures_max == 4
    elif home.shape.extra is not None:
        assert claim.task.payload["flag_name"] == "dark-mode"
        assert claim.task.payload["id"] == id_
        assert claim.task.kind == home.table.name
        assert claim.task.failures_max == 4
    else:
        payload = claim.task.payload
        assert (payload if home.table.payload is not None else payload["data"]) == {"n": 0}


@pytest.mark.homes(lambda table: table.first_due is None)
@in_a_table
async def test_no_due_time_means_now(home: Home) -> None:
    """A waiting row without a due time is due at once."""
    [id_] = await home.put(delay=hours(1))
    await home.change(id_, due=None)
    assert [claim.task.id for claim in await home.ledger.claim(1, LEASE)] == [id_]


async def test_the_count_at_its_maximum_is_still_tried(home: Home) -> None:
    """With three retries there are four tries: the row whose count is at its maximum and has a due time is run."""
    await home.put(failures_max=4)
    for number in range(1, 4):
        claim = await home.run(TRANSIENT)
        assert claim.number == number
        home.clock.advance(BACKOFF)
    last = await home.run(TRANSIENT)
    row = await home.row(last.task.id)
    assert last.number == 4
    assert row["status"] == home.table.words.dead
    assert row["count"] == (3 if home.table.counts is Counts.RETRIES else 4)
    home.clock.advance(days(1))
    assert await home.ledger.claim(1, LEASE) == []


@in_a_table
async def test_retries_first_and_a_quarter_for_first_tries(home: Home) -> None:
    """Retries go first, but at least a quarter of each claim is for first tries while any are due."""
    await home.put(12)
    claims = await home.ledger.claim(12, LEASE)
    await home.ledger.settle([settlement(claim, TRANSIENT) for claim in claims], worker="w1")
    home.clock.advance(BACKOFF)
    await home.put(12)
    taken = await home.ledger.claim(8, LEASE)
    assert Counter(claim.number for claim in taken) == {2: 6, 1: 2}


async def test_first_tries_fill_what_retries_leave(home: Home) -> None:
    """A claim is full while anything is due: few retries leave their share to first tries, and the other way round."""
    await home.put(2)
    claims = await home.ledger.claim(2, LEASE)
    await home.ledger.settle([settlement(claim, TRANSIENT) for claim in claims], worker="w1")
    home.clock.advance(BACKOFF + seconds(1))  # the retries have been due for longer: a queue has one order for all
    await home.put(9)
    assert Counter(claim.number for claim in await home.ledger.claim(8, LEASE)) == {2: 2, 1: 6}


@in_a_table
async def test_single_claims_starve_neither_side(home: Home) -> None:
    """A worker with one slot takes retries and first tries in turn, retries more often."""
    await home.put(8)
    claims = await home.ledger.claim(8, LEASE)
    await home.ledger.settle([settlement(claim, TRANSIENT) for claim in claims], worker="w1")
    home.clock.advance(BACKOFF)
    await home.put(8)
    numbers = Counter([(await home.claim_one()).number for _ in range(8)])
    assert numbers == {2: 6, 1: 2}


@with_kinds
async def test_only_known_kinds_are_claimed(home: Home) -> None:
    """A task of a kind that was not asked for is left waiting, and no try is charged."""
    [mail], [print_] = await home.put(kind="mail"), await home.put(kind="print")
    before = await home.row(print_)
    assert [claim.task.id for claim in await home.ledger.claim(9, LEASE, kinds=["mail", "fax"])] == [mail]
    assert await home.row(print_) == before
    assert await home.ledger.claim(9, LEASE, kinds=[]) == []
    assert [claim.task.kind for claim in await home.ledger.claim(9, LEASE)] == ["print"]


@with_kinds
async def test_no_kind_is_starved(home: Home) -> None:
    """While one kind has more due tasks than can be claimed, tasks of the others get their turn."""
    await home.put(90, kind="flood")
    await home.put(kind="mail")
    await home.put(kind="print")
    seen: set[str] = set()
    for _ in range(40):  # who comes first is drawn: to miss one of them forty times has a chance of 1 to 11 million
        kinds = ["flood", "mail", "print"]
        seen |= {claim.task.kind for claim in await home.ledger.claim(2, LEASE, kinds=kinds)}
        await home.ledger.next_due(kinds=kinds)  # as a worker does between claims
    assert seen == {"flood", "mail", "print"}


@with_kinds
async def test_a_lone_task_of_a_thousand_kinds_is_found_at_once(home: Home) -> None:
    """However many kinds a worker knows, the first claim finds the one that is due, and the next due time is known."""
    kinds = [f"kind-{number:03}" for number in range(1000)]
    assert await home.ledger.claim(9, LEASE, kinds=kinds) == []
    assert await home.ledger.next_due(kinds=kinds) is None
    await home.put(kind=kinds[77], delay=hours(1))
    assert await home.ledger.claim(9, LEASE, kinds=kinds) == []
    parked = await home.ledger.next_due(kinds=kinds)
    assert parked is not None
    assert hours(1) - seconds(1) < parked <= hours(1)
    await home.put(kind=kinds[777])
    assert await home.ledger.next_due(kinds=kinds) == ZERO
    [claim] = await home.ledger.claim(9, LEASE, kinds=kinds)
    assert claim.task.kind == kinds[777]
    await home.settle(claim, TRANSIENT)
    home.clock.advance(BACKOFF)
    assert [again.task.id for again in await home.ledger.claim(9, LEASE, kinds=kinds)] == [claim.task.id]


@with_kinds
async def test_of_many_due_kinds_each_gets_its_turn(home: Home) -> None:
    """Where more kinds are due than one claim names, none of them waits for ever."""
    kinds = [f"kind-{number:03}" for number in range(90)]
    for kind in kinds:
        await home.put(kind=kind)
    seen: set[str] = set()
    for _ in range(90):
        seen |= {claim.task.kind for claim in await home.ledger.claim(9, LEASE, kinds=kinds)}
        if len(seen) == len(kinds):  # on most ledgers after ten
            break
    assert seen == set(kinds)


@with_kinds
async def test_open_kinds(home: Home) -> None:
    """The open kinds are those of first tries, of retries and of what is held, each once; not of what has ended."""
    assert await home.ledger.open_kinds() == []
    await home.put(2, kind="retried")
    claims = await home.ledger.claim(2, LEASE)
    await home.settle(claims[0], TRANSIENT)
    await home.settle(claims[1], Released())
    await home.put(kind="held")
    await home.put(kind="ended")
    for claim in await home.ledger.claim(2, LEASE, kinds=["held", "ended"]):
        if claim.task.kind == "ended":
            await home.settle(claim, Done())
    await home.put(3, kind="fresh", delay=hours(1))
    assert await home.ledger.open_kinds() == ["fresh", "held", "retried"]


@with_kinds
async def test_open_kinds_in_pages(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds that wait come page by page, each once; those with a prefix are found wherever they stand, and what is held at once."""
    kinds = [f"kind-{number}" for number in range(7)]
    for kind in [*kinds, "z.held", "z.one", "z.two"]:
        await home.put(kind=kind)
    [held] = await home.ledger.claim(1, LEASE, kinds=["z.held"])
    [retried] = await home.ledger.claim(1, LEASE, kinds=["z.two"])
    await home.settle(retried, TRANSIENT)
    if not home.queued:  # queues list all their kinds at once
        monkeypatch.setattr(due, "KINDS_LISTED_MAX", 3)
    page = await home.ledger.list_kinds()
    assert held.task.kind in page.items
    found = [kind for kind in page.items if kind != held.task.kind]
    while page.cursor is not None:
        page = await home.ledger.list_kinds(after=str(page.cursor))
        found += page.items
    assert sorted(set(found) - {held.task.kind}) == [*kinds, "z.one", "z.two"]
    assert sorted((await home.ledger.list_kinds(prefix="z.")).items) == ["z.held", "z.one", "z.two"]
    assert sorted((await home.ledger.list_kinds(prefix="kind-3")).items) == ["kind-3"]
    assert (await home.ledger.list_kinds(prefix="q")).items == []


# --- abandoned claims -------------------------------------------------------------------------------------------------


async def test_reclaim_hands_out_what_ran_out(home: Home) -> None:
    """An expired claim is handed out by `reclaim` only, from its end on, marked abandoned, with its own fence."""
    [id_] = await home.put()
    lost = await home.claim_one()
    home.clock.advance(LEASE - timedelta(milliseconds=1))
    assert await home.reclaim(1, LEASE) == []
    home.clock.advance(timedelta(milliseconds=1))
    [found] = await home.reclaim(1, LEASE)
    assert found.task.id == id_
    assert found.abandoned is not None
    assert found.abandoned.claim_id == lost.claim_id
    assert found.abandoned.claimed_at == (START if "claimed_at" in home.table.columns() else None)
    assert found.claim_id == lost.claim_id
    assert found.number == lost.number
    assert (await home.row(id_))["lease_until"] == START + LEASE + LEASE
    assert await home.reclaim(1, LEASE) == []


@with_kinds
async def test_reclaim_of_some_kinds(home: Home) -> None:
    """A keeper that knows the policies of some kinds takes expired claims of those only."""
    await home.put(kind="mail")
    await home.put(kind="print")
    await home.ledger.claim(2, LEASE, kinds=["mail", "print"])
    home.clock.advance(LEASE)
    assert await home.reclaim(9, LEASE, kinds=[]) == []
    assert [claim.task.kind for claim in await home.reclaim(9, LEASE, kinds=["print", "fax"])] == ["print"]
    assert [claim.task.kind for claim in await home.reclaim(9, LEASE)] == ["mail"]


async def test_a_worker_lost_beside_others_makes_a_suspect(home: Home) -> None:
    """Nothing is charged, the task is due at once, and its claims are marked until it has come to an end."""
    [id_] = await home.put()
    await home.put()
    lost, other = await home.ledger.claim(2, LEASE)
    assert (lost.suspect, other.suspect) == (False, False)
    if lost.task.id != id_:
        lost, other = other, lost
    assert await home.settle(other, Snoozed(LEASE + BACKOFF)) == []
    home.clock.advance(LEASE)
    before = (await home.row(id_))["count"]
    await home.expire()
    row = await home.row(id_)
    assert row["due"] == home.clock.now()
    assert row["count"] == (before - 1 if home.table.counts is Counts.ATTEMPTS else before)
    [attempt] = await home.ledger.attempts(id_)
    assert (attempt.claim_id, attempt.outcome, attempt.state) == (lost.claim_id, "lease_expired", State.WAITING)
    assert attempt.explanation is not None
    assert attempt.explanation["verdict"] == "suspect"
    released = await home.run(Released())
    assert (released.suspect, released.number) == (True, 1)  # put off is no end
    again = await home.run(Snoozed(BACKOFF))
    assert again.suspect
    home.clock.advance(BACKOFF)
    assert [claim.suspect for claim in await home.ledger.claim(2, LEASE)] == [False, False]


async def test_a_lost_worker_spends_the_budget(home: Home) -> None:
    """Each claim that is lost alone counts as a failure with backoff, and the last one is death by `worker_lost`."""
    [id_] = await home.put(failures_max=2)
    lost = await home.ledger.run_alone(await home.claim_one())
    assert lost is not None
    home.clock.advance(LEASE)
    await home.expire()
    row = await home.row(id_)
    assert row["count"] == 1
    assert row["due"] == home.clock.now() + BACKOFF
    home.clock.advance(BACKOFF)
    policy = Policy(Fixed(BACKOFF), attempts=2, name="two")
    suspect = await home.claim_one()
    assert suspect.suspect
    await home.ledger.run_alone(suspect)
    home.clock.advance(LEASE)
    [found] = await home.reclaim(1, LEASE)
    assert await home.settle(found, LeaseExpired(), policy) == []
    first, second = await home.ledger.attempts(id_)
    assert (first.claim_id, first.outcome, first.state) == (lost.claim_id, "lease_expired", State.WAITING)
    assert (second.error_class, second.state) == ("worker_lost", State.DEAD)
    assert second.explanation is not None
    assert second.explanation["verdict"] == "worker_lost"
    assert second.explanation["lost_alone"] == 2
    assert (await home.ledger.get(id_)).state is State.DEAD  # type: ignore[union-attr]


@pytest.mark.homes(lambda table: table.words.claimed is not None and table.name != "redrive_task")
@in_a_table
async def test_claimed_without_a_lease_counts_as_expired(home: Home) -> None:
    """A row that another program marked as claimed, without a lease, is handed out by `reclaim`."""
    [id_] = await home.put()
    await home.change(id_, status=home.table.words.claimed)
    assert await home.ledger.claim(1, LEASE) == []
    [found] = await home.reclaim(1, LEASE)
    assert found.abandoned is not None
    assert found.abandoned.claim_id is None
    assert await home.settle(found, LeaseExpired()) == []
    [attempt] = await home.ledger.attempts(id_)
    assert attempt.claim_id == found.claim_id


# --- recall -----------------------------------------------------------------------------------------------------------


# --- settle -----------------------------------------------------------------------------------------------------------


def stored(home: Home, settled: Settlement) -> int:
    """The count that the table's own way of counting leaves after a first try."""
    if home.table.counts is Counts.ATTEMPTS:
        return 1 if settled.state is not State.WAITING or settled.failures else 0
    return settled.failures


@pytest.mark.parametrize(
    ("outcome", "state", "delay"),
    [
        (Done(), State.DONE, None),
        (TRANSIENT, State.WAITING, BACKOFF),
        (PERMANENT, State.DEAD, None),
        (Snoozed(hours(2), "closed on Sundays"), State.WAITING, hours(2)),
        (Released(), State.WAITING, ZERO),
        (Cancelled("no longer wanted"), State.CANCELLED, None),
    ],
    ids=["done", "failed", "dead", "snoozed", "released", "cancelled"],
)
async def test_what_a_settlement_leaves(home: Home, outcome: Any, state: State, delay: timedelta | None) -> None:
    """Each outcome leaves exactly its columns: the word, the count, the due time, the error, the ends; no lease, no fence."""
    [id_] = await home.put()
    claim = await home.claim_one()
    home.clock.advance(SEVENTH)
    settled = settlement(claim, outcome)
    if state is State.CANCELLED and home.table.words.cancelled is None:
        with pytest.raises(UsageError, match="no word for cancelled"):
            await home.ledger.settle([settled], worker="w1")
        return
    assert await home.ledger.settle([settled], worker="w1") == []
    now, row, words = START + SEVENTH, await home.row(id_), home.table.words
    failed = settled.failures > 0
    expected = {
        State.DONE: words.done, State.DEAD: words.dead, State.CANCELLED: words.refused or words.cancelled,
        State.WAITING: (words.retrying or words.waiting) if failed else words.waiting,
    }  # fmt: skip
    assert row["status"] == expected[state]
    assert row["count"] == stored(home, settled)
    assert row["due"] == (None if delay is None else now + delay)
    assert row["lease_until"] is None
    assert row["claim_id"] is None
    if "claimed_at" in row:
        assert row["claimed_at"] == START, "when it was last claimed"
    assert row["last_error"] == (None if isinstance(outcome, Snoozed) else home.shape.shown_error(settled.error))
    if "done_at" in row:
        assert row["done_at"] == (now if state is State.DONE else None)
    if "ended_at" in row:
        assert row["ended_at"] == (None if state is State.WAITING else now)
    if "updated_at" in row:
        assert row["updated_at"] == now
    task = await home.ledger.get(id_)
    assert task is not None
    assert task.state is state
    assert task.due_at == (None if delay is None else now + delay)


def _every_settlement(claims: list[Claim], states: list[State]) -> list[Settlement]:
    """One settlement for each pair of an outcome and a state, whether or not `decide` would make it."""
    made = []
    pairs = [(outcome, state) for outcome in OUTCOMES for state in states]
    for claim, (outcome, state) in zip(claims, pairs, strict=True):
        failed = decide(claim, LeaseExpired() if outcome == "lease_expired" else TRANSIENT, POLICY, elapsed=RAN)
        charged = outcome in ("failed", "lease_expired")
        made.append(
            Settlement(
                claim=claim,
                outcome=outcome,
                state=state,
                failures=1 if charged else 0,
                delay=BACKOFF if state is State.WAITING else None,
                error=failed.error if charged else None,
                explanation=failed.explanation if charged else None,
                elapsed=RAN,
            )
        )
    return made


async def test_the_state_of_a_settlement_is_written_as_it_is(home: Home) -> None:
    """Whatever the outcome, the row, the history and the rollup hold the state that the settlement says."""
    words = home.table.words
    states = [state for state in ENDS if state is not State.CANCELLED or words.cancelled or words.refused]
    ids = await home.put(len(OUTCOMES) * len(states))
    settled = _every_settlement(await home.ledger.claim(len(ids), LEASE), states)
    home.clock.advance(SEVENTH)
    assert await home.ledger.settle(settled, worker="w1") == []
    for one in settled:
        task, row = await home.ledger.get(one.claim.task.id), await home.row(one.claim.task.id)
        [attempt] = await home.ledger.attempts(one.claim.task.id)
        assert task is not None
        assert (one.outcome, task.state, attempt.state) == (one.outcome, one.state, one.state)
        assert (attempt.outcome, attempt.number) == (one.outcome, 1)
        assert row["count"] == home.table.count_to_store(one)
        assert (row["due"] is None) is (one.state is not State.WAITING)
        if "done_at" in row:
            assert (row["done_at"] is None) is (one.state is not State.DONE)
        if "ended_at" in row:
            assert (row["ended_at"] is None) is (one.state is State.WAITING)
    said = Counter(one.state.value for one in settled)
    [minute] = await home.rollups()
    assert {state.value: minute[state.value] for state in states if state is not State.WAITING} == {
        state.value: said[state.value] for state in states if state is not State.WAITING
    }
    assert minute["retried"] == sum(one.state is State.WAITING and one.explanation is not None for one in settled)
    assert minute["tries_1"] == said["done"] + said["dead"]


@pytest.mark.parametrize(("state", "delay"), [(State.WAITING, None), (State.DEAD, BACKOFF), (State.DONE, ZERO)])
async def test_a_settlement_that_contradicts_itself_is_refused(
    home: Home, state: State, delay: timedelta | None
) -> None:
    """What waits has a delay and what has ended has none: anything else is refused before it is written."""
    await home.put()
    claim = await home.claim_one()
    wrong = Settlement(claim=claim, outcome="failed", state=state, failures=1, delay=delay)
    with pytest.raises(UsageError, match="delay"):
        await home.ledger.settle([wrong], worker="w1")
    assert await home.settle(claim, Done()) == []


async def test_an_error_stays_until_the_next_one(home: Home) -> None:
    """What went wrong last is still to be read while the task is tried again, snoozed, released and done; not so of a command or a
    delivery that is done, whose history has it."""
    [id_] = await home.put()
    await home.run(TRANSIENT)
    error = (await home.row(id_))["last_error"]
    assert "too slow" in error
    home.clock.advance(BACKOFF)
    for outcome in (Snoozed(ZERO, "later"), Released()):
        await home.run(outcome)
        assert (await home.row(id_))["last_error"] == error
    await home.run(Done())
    assert (await home.row(id_))["last_error"] == (error if home.keeps_errors_of_the_done else None)


@not_pgmq
async def test_the_rollup_equals_the_attempts(home: Home) -> None:
    """The minute counts what was settled in it, by worker, and adds up over several settles."""
    await home.put(9)
    claims = await home.ledger.claim(9, LEASE)
    outcomes = [Done(), Done(), TRANSIENT, PERMANENT, Snoozed(hours(1)), Released(), Done()]
    settled = [settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=False)]
    await home.ledger.settle(settled[:3], worker="w1")
    await home.ledger.settle(settled[3:6], worker="w1")
    await home.ledger.settle(settled[6:], worker="w2")
    home.clock.advance(minutes(1))
    await home.expire()
    rollups = {(row["minute"], row["worker"]): row for row in await home.rollups()}
    names = ("done", "retried", "dead", "cancelled", "snoozed", "released", "lease_expired", "run_seconds")
    found = {known: tuple(row[name] for name in names) for known, row in rollups.items()}
    assert found == {
        (START, "w1"): (2, 1, 1, 0, 1, 1, 0, 9.0),
        (START, "w2"): (1, 0, 0, 0, 0, 0, 0, 1.5),
        (START + minutes(1), "keeper"): (0, 2, 0, 0, 0, 0, 2, 3.0),
    }
    assert {row["ledger"] for row in rollups.values()} == {home.ledger.name}


async def test_the_rollup_measures_tries_and_times(home: Home) -> None:
    """Each ended task is counted by its tries, and each done one by the time since it was stored."""
    await home.put(3)
    fast, slow, dying = await home.ledger.claim(3, LEASE)
    home.clock.advance(seconds(2))
    settled = [settlement(fast), settlement(slow, TRANSIENT), settlement(dying, PERMANENT)]
    assert await home.ledger.settle(settled, worker="w1") == []
    home.clock.advance(minutes(20))
    [again] = await home.ledger.claim(3, LEASE)
    assert await home.ledger.settle([settlement(again)], worker="w1") == []
    minutes_ = await home.rollups()
    tries = {name: sum(row[name] for row in minutes_) for name in TRIES}
    assert {name: amount for name, amount in tries.items() if amount} == {"tries_1": 2, "tries_2": 1}
    took = {name: sum(row[name] for row in minutes_) for name in TOOK}
    known = {took_bucket(2.0): 1, took_bucket(1202.0): 1} if home.table.created_at else {}
    assert {name: amount for name, amount in took.items() if amount} == known


@on_sql
async def test_what_is_added_and_pruned_is_counted(home: Home) -> None:
    """New tasks are counted once, in the minute of their commit, and so is what is deleted; rows of others are not."""
    ids = await home.put(4)
    ours = home.table.payload is not None
    if ours:
        task = home.new()
        await home.ledger.add([task])
        await home.ledger.add([task])
        async with home.database.transaction() as theirs:
            await home.ledger.add([home.new()], within=theirs.connection)
            if home.store != "sqlite":  # where writers take turns anyway
                async with asyncio.timeout(60), home.database.transaction() as others:
                    await home.ledger.add([home.new()], within=others.connection)
    rows = await home.minutes()
    assert sum(row["added"] for row in rows) == (0 if not ours else 6 if home.store == "sqlite" else 7)
    assert {row["minute"] for row in rows} <= {START}
    for claim in await home.ledger.claim(len(ids), LEASE):
        await home.settle(claim, Done())
    home.clock.advance(minutes(10))
    gone = await home.ledger.prune([State.DONE], minutes(5))
    assert gone == len(ids)
    assert sum(row["pruned"] for row in await home.minutes()) == gone


async def test_a_lost_settlement_leaves_no_trace(home: Home) -> None:
    """What the fence refuses writes neither row nor attempt nor rollup."""
    [id_] = await home.put()
    claim = await home.run(Done())
    row, rollups = await home.row(id_), await home.rollups()
    assert await home.settle(claim, PERMANENT) == [ClaimLost(claim)]
    assert await home.row(id_) == row
    assert await home.rollups() == rollups
    assert len(await home.ledger.attempts(id_)) == 1


async def test_a_batch_of_lost_and_held(home: Home) -> None:
    """In a batch each settlement stands for itself: the held are written, the lost come back."""
    await home.put(6)
    claims = await home.ledger.claim(6, LEASE)
    lost = claims[::2]
    await home.ledger.settle([settlement(claim, Done()) for claim in lost], worker="w1")
    answer = await home.ledger.settle([settlement(claim, PERMANENT) for claim in claims], worker="w1")
    assert {one.claim.claim_id for one in answer} == {claim.claim_id for claim in lost}
    assert {one.claim.task.id for one in answer} == {claim.task.id for claim in lost}
    for claim in claims:
        task = await home.ledger.get(claim.task.id)
        assert task is not None
        assert task.state is (State.DONE if claim in lost else State.DEAD)
        assert len(await home.ledger.attempts(claim.task.id)) == 1
    [minute] = await home.rollups()
    assert (minute["done"], minute["dead"], minute["tries_1"]) == (3, 3, 6), "what was refused is not counted"
    assert minute["run_seconds"] == 6 * RAN.total_seconds()


async def test_a_large_batch_settles_each_in_its_way(home: Home) -> None:
    """Five hundred settlements of all outcomes in one call keep their rows, counts and errors apart."""
    await home.put(200)
    claims = await home.ledger.claim(200, LEASE)
    outcomes = [Done(), TRANSIENT, PERMANENT, Snoozed(hours(1))]
    settled = [settlement(claim, outcomes[at % 4]) for at, claim in enumerate(claims)]
    assert await home.ledger.settle(settled, worker="w1") == []
    for at in (*range(8), *range(192, 200)):
        task = await home.ledger.get(claims[at].task.id)
        assert task is not None
        assert (task.state, task.last_error) == (settled[at].state, home.shape.shown_error(settled[at].error))
    counts = await home.ledger.counts()
    assert (counts[State.DONE], counts[State.WAITING], counts[State.DEAD]) == (50, 100, 50)


async def test_a_task_that_changes_meanwhile_is_counted_once(home: Home) -> None:
    """A count that is taken while a task goes to and fro sees it once, never twice and never not at all."""
    await home.put()
    over = False

    async def to_and_fro() -> None:
        while not over:
            await home.settle(await home.claim_one(), Released())

    moving = asyncio.create_task(to_and_fro())
    try:
        sums = {sum((await home.ledger.counts()).values()) for _ in range(20)}
    finally:
        over = True
        await moving
    assert sums == {1}


@on_sql
async def test_settle_within_a_transaction_that_rolls_back(home: Home) -> None:
    """A settlement within a transaction that fails leaves no trace, and can be made again."""
    [id_] = await home.put()
    claim = await home.claim_one()
    before = await home.row(id_)
    with pytest.raises(ZeroDivisionError):
        async with home.ledger.transaction() as transaction:
            await home.ledger.settle([settlement(claim)], worker="w1", within=transaction.connection)
            raise ZeroDivisionError
    assert await home.row(id_) == before
    assert await home.ledger.attempts(id_) == []
    assert await home.rollups() == []
    assert await home.settle(claim, Done()) == []


async def test_nothing_to_do_is_nothing(home: Home) -> None:
    """Empty batches ask the database nothing and answer with nothing."""
    assert await home.ledger.settle([], worker="w1") == []
    assert await home.ledger.settled_by([], "w1") == []
    assert await home.ledger.extend([], LEASE) == []
    assert await home.ledger.redrive([], ADA) == []
    assert await home.ledger.return_([], ADA) == []
    assert await home.ledger.prune([], days(1)) == 0
    if home.table.payload is not None:
        assert await home.ledger.add([]) == []


# --- add --------------------------------------------------------------------------------------------------------------


@pytest.mark.homes(lambda table: table.payload is None)
async def test_add_is_refused_without_a_payload_column(home: Home) -> None:
    """Where rows are the owner's to insert, adding says so."""
    with pytest.raises(UsageError, match="yours to insert"):
        await home.ledger.add([home.new()])


@addable
async def test_what_add_writes(home: Home) -> None:
    """A new task waits with its payload, its due time, its own maximum, and a count of zero."""
    payload = {"to": "ada@example.org", "lines": [1, 2.5, None, True, "ü 🎈 'quoted'"]}
    task = home.new("mail", payload=payload, delay=minutes(3), failures_max=7)
    [added] = await home.ledger.add([task])
    assert (added.key, added.new) == (task.key, True)
    row = await home.row(added.id)
    assert row["status"] == home.table.words.waiting
    assert (row["count"], row["due"]) == (0, START + minutes(3))
    assert (row["lease_until"], row["claim_id"]) == (None, None)
    if "created_at" in row:
        assert row["created_at"] == START
    found = await home.ledger.get_by_key(task.key)
    assert found is not None
    assert (found.id, found.key, found.payload, found.state) == (added.id, task.key, payload, State.WAITING)
    assert found.kind == ("mail" if home.table.kind else home.table.name)
    assert found.failures_max == (7 if home.table.count_max else None)


@addable
async def test_adding_again_returns_what_is_there(home: Home) -> None:
    """The same batch twice: the second time nothing is new, nothing is touched, and the ids are the same."""
    tasks = [home.new(payload={"n": n}) for n in range(5)]
    first = await home.ledger.add(tasks)
    row = await home.row(first[0].id)
    home.clock.advance(hours(1))
    changed = [home.new(key=task.key, payload="changed", delay=hours(5)) for task in tasks]
    again = await home.ledger.add(changed)
    assert [one.new for one in first] == [True] * 5
    assert [one.new for one in again] == [False] * 5
    assert [one.id for one in again] == [one.id for one in first]
    assert await home.row(first[0].id) == row


@addable
async def test_a_batch_may_mix_new_known_and_repeated_keys(home: Home) -> None:
    """In one batch each task is answered in its place; of two with one key the first is new."""
    known, fresh = home.new(), home.new()
    [there] = await home.ledger.add([known])
    answer = await home.ledger.add([fresh, known, fresh])
    assert [one.new for one in answer] == [True, False, False]
    assert answer[1].id == there.id
    assert answer[0].id == answer[2].id


@addable
async def test_adding_what_is_done_does_not_run_it_again(home: Home) -> None:
    """A key is remembered for as long as its task is there, whatever became of it."""
    task = home.new()
    [added] = await home.ledger.add([task])
    await home.run(Done())
    [again] = await home.ledger.add([task])
    assert (again.id, again.new) == (added.id, False)
    assert await home.ledger.claim(1, LEASE) == []


@addable
async def test_a_hundred_concurrent_adds_of_one_key(home: Home) -> None:
    """However many add a key at once, through two databases: one task, one `new`."""
    task, other = home.new(), await home.another()
    answers = await asyncio.gather(*(ledger.add([task]) for ledger in (home.ledger, other) for _ in range(50)))
    added = [one for answer in answers for one in answer]
    assert len({one.id for one in added}) == 1
    assert sum(one.new for one in added) == 1


@addable
async def test_a_key_with_another_payload_is_told(home: Home) -> None:
    """Adding again says whether the payload is the one that is there, also within one batch; what is there stays."""
    first = home.new(payload={"a": (1, 2.0), "b": None})
    [added] = await home.ledger.add([first])
    assert (added.new, added.same_payload) == (True, True)
    same = home.new(key=first.key, payload={"b": None, "a": [1, 2]})
    other = home.new(key=first.key, payload={"a": [1, 3], "b": None})
    fresh = home.new(payload=[1])
    again = home.new(key=fresh.key, payload=[2])
    told = await home.ledger.add([same, other, fresh, again, fresh])
    assert [one.new for one in told] == [False, False, True, False, False]
    assert [one.same_payload for one in told] == [True, False, True, False, True]
    task = await home.ledger.get_by_key(first.key)
    assert task is not None
    assert task.payload == {"a": [1, 2], "b": None}


@addable
async def test_concurrent_batches_in_opposite_order(home: Home) -> None:
    """Batches that add the same keys in opposite order at once all succeed."""
    tasks, other = [home.new() for _ in range(40)], await home.another()
    rounds = (ledger.add(order) for _ in range(4) for ledger, order in ((home.ledger, tasks), (other, tasks[::-1])))
    answers = await asyncio.gather(*rounds)
    assert sum(one.new for answer in answers for one in answer) == 40


@addable
@with_kinds
async def test_a_key_of_another_kind_is_refused(home: Home) -> None:
    """A key that belongs to a task of another kind is an error that names both, and the batch stores nothing."""
    taken, fresh = home.new("mail"), home.new("print")
    await home.ledger.add([taken])
    with pytest.raises(KeyTakenError, match="'mail', not 'print'"):
        await home.ledger.add([fresh, home.new("print", key=taken.key)])
    assert await home.ledger.get_by_key(fresh.key) is None


@addable
@with_kinds
async def test_a_refused_add_leaves_its_neighbours_alone(home: Home) -> None:
    """Adds that run at once share a batch, not its errors."""
    taken = home.new("mail")
    await home.ledger.add([taken])
    good = [home.new("print") for _ in range(10)]
    bad = home.new("print", key=taken.key)
    rounds = [home.ledger.add([task]) for task in (*good[:5], bad, *good[5:])]
    answers = await asyncio.gather(*rounds, return_exceptions=True)
    assert [isinstance(answer, KeyTakenError) for answer in answers] == [False] * 5 + [True] + [False] * 5
    for task in good:
        assert await home.ledger.get_by_key(task.key) is not None


@addable
@with_kinds
async def test_a_refused_add_within_a_transaction_stores_nothing(home: Home) -> None:
    """All or nothing also in the caller's transaction, if the caller goes on after the error."""
    taken, fresh = home.new("mail"), home.new("print")
    await home.ledger.add([taken])
    async with home.ledger.transaction() as transaction:
        with pytest.raises(KeyTakenError):
            await home.ledger.add([fresh, home.new("print", key=taken.key)], within=transaction.connection)
    assert await home.ledger.get_by_key(fresh.key) is None


@addable
async def test_add_within_a_transaction(home: Home) -> None:
    """Tasks added within a transaction are there when it commits, and not before."""
    task = home.new()
    async with home.ledger.transaction() as transaction:
        [added] = await home.ledger.add([task], within=transaction.connection)
        assert added.new
        assert await home.ledger.get_by_key(task.key) is None
    found = await home.ledger.get_by_key(task.key)
    assert found is not None
    assert found.id == added.id


@addable
async def test_add_within_a_transaction_that_rolls_back(home: Home) -> None:
    """Tasks added within a transaction that fails are not there, and their keys are free."""
    task = home.new()
    with pytest.raises(ZeroDivisionError):
        async with home.ledger.transaction() as transaction:
            await home.ledger.add([task], within=transaction.connection)
            raise ZeroDivisionError
    assert await home.ledger.get_by_key(task.key) is None
    assert (await home.ledger.add([task]))[0].new


# --- next due ---------------------------------------------------------------------------------------------------------


@with_kinds
async def test_next_due_of_some_kinds(home: Home) -> None:
    """A worker waits for what it could run, not for what others run."""
    await home.put(kind="mail", delay=hours(1))
    await home.put(kind="print")
    assert await home.ledger.next_due(kinds=["print", "mail"]) == ZERO
    assert await home.ledger.next_due(kinds=["mail"]) == pytest.approx(hours(1), abs=timedelta(milliseconds=1))
    assert await home.ledger.next_due(kinds=["fax"]) is None
    assert await home.ledger.next_due(kinds=[]) is None


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_show_every_task_once(home: Home, newest_first: bool) -> None:
    """Pages in the order of the ids, both ways, show each task exactly once and end with None."""
    ids = sorted(await home.put(11), reverse=newest_first)  # type: ignore[type-var]
    seen, after, pages = [], None, 0
    while True:
        page = await home.ledger.find(Filter(), cursor=after, limit=4, newest_first=newest_first)
        seen += [task.id for task in page.items]
        pages += 1
        after = page.cursor
        if after is None:
            break
    assert seen == ids
    assert pages == 3


async def test_a_full_last_page_is_the_last(home: Home) -> None:
    """A page that is just full is followed by no empty one."""
    await home.put(4)
    assert (await home.ledger.find(Filter(), limit=4)).cursor is None


async def test_find_filters(home: Home) -> None:
    """All conditions must hold: state, ids, error, and what has not changed for some time."""
    [dead] = await home.dead()
    [waiting] = await home.put(delay=hours(1))

    async def found(**asked: Any) -> list[Any]:
        return [task.id for task in (await home.ledger.find(Filter(**asked))).items]

    assert await found(state=State.DEAD) == [dead]
    assert await found(state=State.WAITING) == [waiting]
    assert await found(state=State.CLAIMED) == []
    assert not home.lists_all or await found(state=State.CANCELLED) == []
    assert set(await found(ids=[dead, waiting])) == {dead, waiting}
    assert await found(ids=[]) == []
    assert await found(ids=[dead], state=State.WAITING) == []
    assert await found(error="no such") == [dead]
    assert await found(error="no_such") == []
    home.clock.advance(hours(2))
    [fresh] = await home.dead()
    assert dead in await found(older_than=hours(1))
    assert fresh not in await found(older_than=hours(1), state=State.DEAD)


async def test_find_by_kind(home: Home) -> None:
    """A kind is a condition where the table has kinds, and a clear error where it has none."""
    await home.put()
    if home.table.kind is None:
        with pytest.raises(UsageError, match="no column for kind"):
            await home.ledger.find(Filter(kind="mail"))
        return
    [print_] = await home.put(kind="print")
    assert [task.id for task in (await home.ledger.find(Filter(kind="print"))).items] == [print_]


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_limit(home: Home, limit: int) -> None:
    """Nobody reads a whole table by accident."""
    with pytest.raises(UsageError, match="between 1 and 1000"):
        await home.ledger.find(Filter(), limit=limit)


async def test_get(home: Home) -> None:
    """A task is found by its id and by its key; what is not there is None, also if it cannot be there."""
    [id_] = await home.put()
    task = await home.ledger.get(id_)
    assert task is not None
    assert task.id == id_
    assert await home.ledger.get_by_key(task.key) == task
    await home.ledger.claim(1, LEASE)
    await home.wipe()
    assert await home.ledger.get(id_) is None
    assert await home.ledger.get_by_key(task.key) is None
    assert await home.ledger.get_by_key("there is no such key") is None


# --- acts of people and systems ---------------------------------------------------------------------------------------


async def test_redrive(home: Home) -> None:
    """A dead task goes back to waiting, due now, with a fresh budget; its history and the deed stay with it."""
    [id_] = await home.dead()
    home.clock.advance(hours(1))
    assert await home.ledger.redrive([id_], ADA) == [id_]
    row = await home.row(id_)
    assert (row["status"], row["count"]) == (home.table.words.waiting, 0)
    assert row["due"] == START + hours(1)
    assert row.get("ended_at") is None
    assert row.get("redrives", 1) == 1
    [deed] = await home.ledger.deeds(id_)
    assert (deed.act, deed.actor, deed.reason) == ("redrive", "ada", "the bank is back")
    assert deed.at == START + hours(1)
    claim = await home.run(TRANSIENT)
    assert claim.number == 1
    assert [attempt.outcome for attempt in await home.ledger.attempts(id_)] == ["failed", "failed"]


async def test_redrive_takes_only_the_dead(home: Home) -> None:
    """Whatever is not dead is left alone, and not reported as changed."""
    await home.put()
    done = await home.run(Done())
    await home.put()
    claimed = await home.claim_one()
    [waiting] = await home.put()
    ids = [done.task.id, claimed.task.id, waiting]
    before = [await home.row(id_) for id_ in ids]
    assert await home.ledger.redrive(ids, ADA) == []
    assert [await home.row(id_) for id_ in ids] == before
    assert await home.ledger.deeds(waiting) == []


async def test_cancel(home: Home) -> None:
    """A waiting task ends as cancelled, for good; a claimed, done or dead one is left alone."""
    [dead] = await home.dead()
    await home.put()
    claimed = await home.claim_one()
    [waiting] = await home.put()
    if home.table.words.cancelled is None:
        with pytest.raises(UsageError, match="no word for cancelled"):
            await home.ledger.cancel([waiting], ADA)
        return
    assert await home.ledger.cancel([dead, claimed.task.id, waiting], ADA) == [waiting]
    row = await home.row(waiting)
    assert (row["status"], row["due"]) == (home.table.words.cancelled, None)
    if "ended_at" in row:
        assert row["ended_at"] == START
    assert [deed.act for deed in await home.ledger.deeds(waiting)] == ["cancel"]
    assert await home.settle(claimed, Done()) == []
    home.clock.advance(days(1))
    assert await home.ledger.claim(9, LEASE) == []


@pytest.mark.parametrize("state", [State.DONE, State.CANCELLED])
async def test_resolve(home: Home, state: State) -> None:
    """A dead task ends as done or cancelled by a person; nothing else is touched."""
    [dead] = await home.dead()
    [waiting] = await home.put()
    if getattr(home.table.words, state.value) is None:
        with pytest.raises(UsageError, match="no word for"):
            await home.ledger.resolve([dead], state, ADA)
        return
    assert await home.ledger.resolve([dead, waiting], state, ADA) == [dead]
    task = await home.ledger.get(dead)
    assert task is not None
    assert task.state is state
    row = await home.row(dead)
    if "done_at" in row:
        assert row["done_at"] == (START if state is State.DONE else None)
    assert [deed.act for deed in await home.ledger.deeds(dead)] == ["resolve"]


@not_pgmq
async def test_return(home: Home) -> None:
    """A done or dead task that failed again elsewhere waits again, with the larger of both counts."""
    await home.put()
    done = (await home.run(Done())).task.id
    [dead] = await home.dead()
    [waiting] = await home.put(delay=hours(9))
    back = [
        Return(id=done, failures=2, delay=minutes(3), error="rejected by the consumer"),
        Return(id=dead, failures=0, delay=ZERO),
        Return(id=waiting, failures=2, delay=ZERO),
    ]
    old_count = (await home.row(dead))["count"]
    assert set(await home.ledger.return_(back, ADA)) == {done, dead}
    row = await home.row(done)
    assert row["status"] == (home.table.words.retrying or home.table.words.waiting)
    assert (row["count"], row["due"], row["last_error"]) == (2, START + minutes(3), "rejected by the consumer")
    assert (row.get("done_at"), row.get("ended_at")) == (None, None)
    task = await home.ledger.get(done)
    assert task is not None
    assert (task.state, task.failures, task.ended_at) == (State.WAITING, 2, None)
    assert (await home.row(dead))["count"] == old_count
    assert [deed.act for deed in await home.ledger.deeds(dead)] == ["return"]
    assert await home.ledger.deeds(waiting) == []
    assert [claim.task.id for claim in await home.ledger.claim(9, LEASE)] == [dead]


@cancellable
@not_pgmq
async def test_return_of_a_cancelled_task(home: Home) -> None:
    """What a person closed comes back too when it fails again: refused, it would be lost. Their deed stays."""
    [id_] = await home.put()
    await home.ledger.cancel([id_], ADA)
    assert await home.ledger.return_([Return(id=id_, failures=1, delay=minutes(1))], ADA) == [id_]
    task = await home.ledger.get(id_)
    assert task is not None
    assert (task.state, task.due_at, task.ended_at) == (State.WAITING, START + minutes(1), None)
    assert [deed.act for deed in await home.ledger.deeds(id_)] == ["cancel", "return"]


@not_pgmq
async def test_a_claimed_task_is_not_returned(home: Home) -> None:
    """Its holder has not said yet what came of it."""
    [id_] = await home.put()
    claim = await home.claim_one()
    before = await home.row(id_)
    assert await home.ledger.return_([Return(id=id_, failures=3, delay=ZERO)], ADA) == []
    assert await home.row(id_) == before
    assert await home.settle(claim, Done()) == []
    assert await home.ledger.deeds(id_) == []


@in_a_table
async def test_a_batch_of_returns(home: Home) -> None:
    """Many come back at once, each with its own count and delay; one that is named twice comes back once, with the larger count."""
    ids = await home.dead(30)
    back = [Return(id=id_, failures=at + 4, delay=minutes(at), error=f"no {at}") for at, id_ in enumerate(ids)]
    again = Return(id=ids[3], failures=99, delay=minutes(9), error="twice")
    changed = await home.ledger.return_([*reversed(back), again], ADA)
    assert sorted(changed) == sorted(ids)
    for at, id_ in enumerate(ids):
        expected = (99, START + minutes(9), "twice") if at == 3 else (at + 4, START + minutes(at), f"no {at}")
        row = await home.row(id_)
        assert (row["count"], row["due"], row["last_error"]) == expected
        assert [deed.act for deed in await home.ledger.deeds(id_)] == ["return"]


@pytest.mark.parametrize("commit", [True, False])
@in_a_table
async def test_return_within_a_transaction(home: Home, commit: bool) -> None:
    """A return within the caller's transaction is there with its deed when that commits, and only then."""
    [id_] = await home.dead()
    before = await home.row(id_)
    with contextlib.suppress(ZeroDivisionError):
        async with home.ledger.transaction() as transaction:
            back = [Return(id=id_, failures=1, delay=ZERO)]
            assert await home.ledger.return_(back, ADA, within=transaction.connection) == [id_]
            if not commit:
                raise ZeroDivisionError
    task = await home.ledger.get(id_)
    assert task is not None
    assert task.state is (State.WAITING if commit else State.DEAD)
    assert len(await home.ledger.deeds(id_)) == commit
    assert commit or await home.row(id_) == before


@in_a_table
async def test_return_in_code_without_an_event_loop(home: Home) -> None:
    """A function of a connection returns tasks in its own transaction."""
    ids = await home.dead(2)
    back = [Return(id=id_, failures=1, delay=ZERO) for id_ in ids]
    changed = await home.database.write(lambda mine: home.ledger.return_sync(back, ADA, within=mine))
    assert sorted(changed) == sorted(ids)
    assert await home.database.write(lambda mine: home.ledger.return_sync([], ADA, within=mine)) == []


# --- prune ------------------------------------------------------------------------------------------------------------


@on_sql
async def test_prune_takes_what_ended_long_ago_with_its_history(home: Home) -> None:
    """Old ended tasks go with their attempts and deeds; younger ones and other states stay."""
    [old] = await home.dead()
    await home.ledger.redrive([old], ADA)
    await home.run(Done())
    home.clock.advance(days(10))
    await home.put()
    young = (await home.run(Done())).task.id
    [dead] = await home.dead()
    home.clock.advance(days(1))
    assert await home.ledger.prune([State.DONE], days(5)) == 1
    assert await home.ledger.get(old) is None
    assert await home.ledger.attempts(old) == []
    assert await home.ledger.deeds(old) == []
    for id_ in (young, dead):
        assert await home.ledger.get(id_) is not None
        assert len(await home.ledger.attempts(id_)) == 1


@on_sql
async def test_prune_has_a_limit(home: Home) -> None:
    """Pruning goes in steps of the given size."""
    await home.put(5)
    claims = await home.ledger.claim(5, LEASE)
    await home.ledger.settle([settlement(claim) for claim in claims], worker="w1")
    home.clock.advance(days(2))
    done = [await home.ledger.prune([State.DONE], days(1), limit=2) for _ in range(4)]
    assert done == [2, 2, 1, 0]


@on_sql
async def test_what_ended_just_now_is_not_old(home: Home) -> None:
    """Age is counted from the end of a task, not from its creation."""
    await home.put()
    home.clock.advance(days(100))
    await home.run(Done())
    await home.dead()
    home.clock.advance(hours(1))
    assert await home.ledger.prune([State.DONE, State.DEAD], days(1)) == 0
    home.clock.advance(days(1))
    assert await home.ledger.prune([State.DONE, State.DEAD], days(1)) == 2


# --- time -------------------------------------------------------------------------------------------------------------


SPELLINGS = [
    "2030-01-01T01:00:00Z",
    "2030-01-01T01:00:00.000000Z",
    "2030-01-01T01:00:00+00:00",
    "2030-01-01T03:00:00+02:00",
    "2029-12-31T20:00:00.000-05:00",
    "2030-01-01T01:00:00",
    "2030-01-01 01:00:00",
    "2030-01-01 01:00:00.000",
    "2030-01-01 02:30:00+01:30",
    "2030-01-01T01:00Z",
]


@pytest.mark.parametrize("retry", [False, True], ids=["first", "retry"])
@pytest.mark.homes(lambda table: table.name == "events")
async def test_text_times_are_instants_in_any_spelling(home: Home, retry: bool) -> None:
    """One instant in ten spellings is due at once: a millisecond before none is claimed, then all are."""
    ids = await home.put(len(SPELLINGS), delay=hours(1))
    statement = text("UPDATE events SET next_attempt_at = :written, attempts = :tried WHERE id = :id")
    for id_, written in zip(ids, SPELLINGS, strict=True):
        given = {"written": written, "tried": int(retry), "id": id_}
        await home.database.write(lambda connection, given=given: connection.execute(statement, given))  # type: ignore[misc]
    for id_ in ids:
        task = await home.ledger.get(id_)
        assert task is not None
        assert task.due_at == START + hours(1)
    assert await home.ledger.next_due() == pytest.approx(hours(1), abs=timedelta(milliseconds=1))
    home.clock.advance(hours(1) - timedelta(milliseconds=1))
    assert await home.ledger.claim(99, LEASE) == []
    home.clock.advance(timedelta(milliseconds=1))
    assert {claim.task.id for claim in await home.ledger.claim(99, LEASE)} == set(ids)


async def test_a_lease_in_text_is_an_instant(home: Home) -> None:
    """A lease that was written in another spelling still ends at its instant."""
    await home.put()
    claim = await home.claim_one()
    await home.ledger.extend([claim], minutes(10) + timedelta(microseconds=1))
    home.clock.advance(minutes(9))
    assert await home.reclaim(1, LEASE) == []
    home.clock.advance(minutes(2))
    assert len(await home.reclaim(1, LEASE)) == 1


# --- a whole life -----------------------------------------------------------------------------------------------------


async def test_unknown_ids_are_nobody(home: Home) -> None:
    """Acting on ids that are not there changes nothing and is no error."""
    [id_] = await home.put()
    unknown: Any = 10**9 if isinstance(id_, int) else uuid4() if isinstance(id_, UUID) else "nobody"
    assert await home.ledger.redrive([unknown], ADA) == []
    assert await home.ledger.get(unknown) is None
    assert await home.ledger.attempts(unknown) == []
    if not home.queued:
        assert await home.ledger.return_([Return(id=unknown, failures=1, delay=ZERO)], ADA) == []


async def test_policies_do_not_leak_between_rows(home: Home) -> None:
    """The row's own maximum wins over the policy's, where the table has one."""
    [id_] = await home.put(failures_max=1)
    await home.run(TRANSIENT, POLICY)
    task = await home.ledger.get(id_)
    assert task is not None
    assert task.state is (State.DEAD if home.table.count_max else State.WAITING)


# --- pauses -------------------------------------------------------------------------------------------------------------
