"""What gates promise, over every table that has them: our own, one whose gates are numbers, and one whose tenants are its gates."""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from redrive.core import jitter
from redrive.core.backoff import Fixed
from redrive.core.durations import days, hours, minutes, seconds
from redrive.core.gate_rules import Breaker, read_rule
from redrive.core.gates import BreakerState, Gate, WaitsFor
from redrive.core.outcome import Done, Failed, LeaseExpired, Outcome, Released
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import Claim, NewTask, TaskId
from redrive.errors import RateLimitedError, StaleError, UsageError
from redrive.ledgers.open import open_database, own_ledger
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.migrate import migrate
from redrive.ledgers.sql.predicates import columns_of
from redrive.ports import Actor
from redrive.testing import VirtualClock
from tests.breadth import WIDE
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.homes import ADA, LEASE, PERMANENT, TRANSIENT, Home, settlement

pytestmark = pytest.mark.homes(
    lambda table: table.gated_by is not None and (table.payload is not None or table.schema == "dynamodb")
)


def everywhere(test: Any) -> Any:
    """Also on DynamoDB, whose gates are items and not rows."""
    for store in ("sqlite", "postgres", "aws"):
        test = pytest.mark.on_store(store)(test)
    return test


own_table = pytest.mark.homes(lambda table: table.name == "redrive_task")
with_priorities = pytest.mark.homes(lambda table: table.priority is not None)

BANK = "49"
OTHER = "33"
CODE = Actor(name="code")
TICK = timedelta(milliseconds=1)
"""How exact times in text are on SQLite."""


async def put(home: Home, amount: int = 1, gate: str | None = BANK, **given: Any) -> list[TaskId]:
    """Tasks behind a gate."""
    if isinstance(home, ItemHome):
        return await home.put_behind(gate or "", amount)
    named = {home.table.gated_by or "gate": gate} | given
    added = await home.ledger.add([home.new(payload={"n": n}, **named) for n in range(amount)])
    return [one.id for one in added]


async def limit(home: Home, pattern: str = BANK, **limits: Any) -> None:
    await home.ledger.set_rule(pattern, read_rule(**limits), CODE, by_code=True)


async def gate_of(home: Home, name: str = BANK) -> Gate:
    found = await home.ledger.gate(name)
    assert found is not None
    return found[0]


async def last_deed(home: Home, name: str) -> int:
    if isinstance(home, ItemHome):
        return (await home.ledger.last_deeds([name]))[name]
    return await home.ledger.database.read(home.ledger.last_deed, name)


async def settle(
    home: Home, claims: Sequence[Claim], outcome: Outcome = Done(), ledger: SqlLedger | None = None
) -> None:
    settled = [settlement(claim, outcome) for claim in claims]
    assert await (ledger or home.ledger).settle(settled, worker="w1") == []


# --- limits -------------------------------------------------------------------------------------------------------------


@everywhere
async def test_no_more_are_held_than_a_gate_allows(home: Home) -> None:
    """Over two databases and many claims at once, of which some are never settled: five are held, never more, and all get done."""
    await limit(home, concurrency=5)
    await put(home, 12)
    other = await home.another()
    done = 0
    for round_ in range(40):
        found = await asyncio.gather(*(ledger.claim(3, LEASE) for ledger in (home.ledger, other) for _ in range(3)))
        claims = [claim for claims in found for claim in claims]
        assert (await gate_of(home)).held == len(claims) <= 5
        if round_ % 4 == 0:  # their worker is killed
            home.clock.advance(LEASE + seconds(1))
            await home.expire()
            home.clock.advance(minutes(2))
        else:
            await settle(home, claims, ledger=other)
            done += len(claims)
        assert (await gate_of(home)).held == 0
        if done == 12:
            return
    raise AssertionError(done)


async def test_a_full_gate_is_woken_by_a_settlement(home: Home) -> None:
    """A gate without a slot sleeps until one of its tasks is settled, and what has no gate is not touched by it."""
    await limit(home, concurrency=1)
    await put(home, 2)
    await home.put(1)
    claims = await home.ledger.claim(10, LEASE)
    assert sorted(claim.task.gate or "" for claim in claims) == ["", BANK]
    gate = await gate_of(home)
    assert (gate.ready, gate.waits_for, gate.wake_at) == (False, WaitsFor.SLOT, None)
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.next_due() is None
    await settle(home, [claim for claim in claims if claim.task.gate], Released())
    assert await home.ledger.next_due() == timedelta(0)
    assert len(await home.ledger.claim(10, LEASE)) == 1


async def test_no_second_sees_more_than_the_rate(home: Home) -> None:
    """Claims every tenth of a second: never more than the rate in any second, and nearly all of it."""
    await limit(home, rate="20/s")
    await put(home, 100)
    starts: list[int] = []
    for tick in range(50):
        taken = await home.ledger.claim(100, LEASE)
        await settle(home, taken)
        starts += [tick] * len(taken)
        home.clock.advance(seconds(0.1))
    for tick in range(50):
        assert sum(tick <= start < tick + 10 for start in starts) <= 20
    assert len(starts) >= 70


@everywhere
async def test_parked_tasks_are_not_touched(home: Home) -> None:
    """What is kept back is not charged, not dead and not rewritten, however often somebody looks."""
    await limit(home, concurrency=1)
    ids = await put(home, 3)
    [claim] = await home.ledger.claim(10, LEASE)
    before = [await home.row(id_) for id_ in ids if id_ != claim.task.id]
    for _ in range(3):
        home.clock.advance(seconds(1))
        assert await home.ledger.claim(10, LEASE) == []
    assert [await home.row(id_) for id_ in ids if id_ != claim.task.id] == before
    assert [row["count"] or 0 for row in before] == [0, 0]


@everywhere
async def test_a_changed_limit_holds_from_the_next_claim_on(home: Home) -> None:
    """Through another database: a limit that is raised lets more through, one that is taken away everything."""
    await limit(home, concurrency=1)
    await put(home, 6)
    assert len(await home.ledger.claim(10, LEASE)) == 1
    other = await home.another()
    assert await other.set_rule(BANK, read_rule(concurrency=3), ADA)
    assert len(await home.ledger.claim(10, LEASE)) == 2
    assert await other.set_rule(BANK, None, ADA)
    assert len(await home.ledger.claim(10, LEASE)) == 3


@everywhere
async def test_code_does_not_overrule_a_person(home: Home) -> None:
    """What a person has set stays, whatever the code of a new process says; saying the same again changes nothing."""
    assert await home.ledger.set_rule(BANK, read_rule(concurrency=5), CODE, by_code=True)
    assert not await home.ledger.set_rule(BANK, read_rule(concurrency=5), CODE, by_code=True)
    assert await home.ledger.set_rule(BANK, read_rule(concurrency=2), ADA)
    assert not await home.ledger.set_rule(BANK, read_rule(concurrency=5), CODE, by_code=True)
    assert (await home.ledger.gate_rules())[BANK] == read_rule(concurrency=2)


async def test_the_most_specific_rule_holds(home: Home) -> None:
    """Also for a gate that is there already when the rule comes, and the other one again when it goes."""
    await put(home, 2)
    await limit(home, "*", concurrency=9)
    await limit(home, "4*", concurrency=1)
    assert (await gate_of(home)).rule == "4*"
    await put(home, 1, OTHER)
    assert (await gate_of(home, OTHER)).rule == "*"
    await home.ledger.set_rule("4*", None, ADA)
    assert (await gate_of(home)).rule == "*"


async def test_a_gate_that_missed_its_rule_gets_it(home: Home) -> None:
    """Somebody made it while the rule came: whoever keeps house finds it, and then nothing is left to mend."""
    await put(home, 2)
    await limit(home, concurrency=1)
    gone = schema.gate.update().values(rule=None)
    await home.database.write(lambda connection: connection.execute(gone))
    await home.ledger.keep_gates(recount=True)
    assert (await gate_of(home)).rule == BANK
    assert await home.ledger.fit_rules() == 0
    assert len(await home.ledger.claim(10, LEASE)) == 1


# --- the breaker --------------------------------------------------------------------------------------------------------


@everywhere
async def test_an_outage_costs_one_probe_at_a_time(home: Home) -> None:
    """Three failures trip the gate; then one try every probe, over two databases; a good one lets it return by 1, 2, 4 a second."""
    await limit(home, breaker=Breaker(failures=3, within=60, probe=30))
    await put(home, 40)
    other = await home.another()
    claims = await home.ledger.claim(3, LEASE)
    await settle(home, claims, TRANSIENT)
    assert (await gate_of(home)).state is BreakerState.TRIPPED
    assert await home.ledger.claim(10, LEASE) == []
    for outcome in (TRANSIENT, Released()):
        home.clock.advance(seconds(30))
        probes = [
            claim
            for found in await asyncio.gather(home.ledger.claim(10, LEASE), other.claim(10, LEASE))
            for claim in found
        ]
        probes += await home.ledger.claim(10, LEASE)
        assert len(probes) == 1
        await settle(home, probes, outcome, other)
        assert await home.ledger.claim(10, LEASE) == []
    home.clock.advance(seconds(30))
    assert len(await home.ledger.claim(10, LEASE)) == 1
    home.clock.advance(LEASE + seconds(1))
    await home.expire()  # its worker was killed, and that is the probe's answer
    assert (await gate_of(home)).state is BreakerState.TRIPPED
    assert await home.ledger.claim(10, LEASE) == []
    home.clock.advance(seconds(30))
    await settle(home, await home.ledger.claim(10, LEASE))
    assert (await gate_of(home)).state is BreakerState.RETURNING
    for amount in (1, 2, 4, 8):
        claims = await home.ledger.claim(100, LEASE)
        claims += await home.ledger.claim(100, LEASE)
        assert len(claims) == amount
        await settle(home, claims)
        home.clock.advance(seconds(1))


@everywhere
async def test_retry_after_shuts_the_gate_for_all(home: Home) -> None:
    """One answer with Retry-After, and no other task of the gate is tried before."""
    await put(home, 3)
    [claim] = await home.ledger.claim(1, LEASE)
    await settle(home, [claim], Failed(RateLimitedError("slow down", retry_after=minutes(5))))
    assert await home.ledger.claim(10, LEASE) == []
    gate = await gate_of(home)
    assert (gate.waits_for, gate.wake_at) == (WaitsFor.RETRY_AFTER, home.clock.now() + minutes(5))
    home.clock.advance(minutes(5))
    assert len(await home.ledger.claim(10, LEASE)) >= 2


@everywhere
async def test_a_destination_that_asks_for_a_pause_charges_nothing(home: Home) -> None:
    """Nothing is charged to the task that heard of it, its gate counts such answers, and a good one begins anew."""
    await put(home, 2)
    slow_down = Failed(RateLimitedError("slow down", retry_after=minutes(5)))
    for refused in range(3):
        [claim] = await home.ledger.claim(1, LEASE)
        assert claim.seen is not None
        assert claim.seen.refused == refused
        await settle(home, [claim], slow_down)
        task = await home.ledger.get(claim.task.id)
        assert task is not None
        assert (task.state, task.failures) == (State.WAITING, 0)
        home.clock.advance(minutes(5))
    [claim] = await home.ledger.claim(1, LEASE)
    await settle(home, [claim])
    assert (await gate_of(home)).refused == 0


@everywhere
async def test_failed_probes_charge_nothing_and_waits_stretch(home: Home) -> None:
    """A claim knows that it is the probe and how often the breaker has tripped; none of the probes is charged."""
    await limit(home, breaker=Breaker(failures=1, within=60, probe=30))
    await put(home)
    [claim] = await home.ledger.claim(1, LEASE)
    assert (claim.seen and claim.seen[1:]) == (False, 0, 0)
    await settle(home, [claim], TRANSIENT)
    for _ in range(3):
        home.clock.advance(minutes(20))
        [claim] = await home.ledger.claim(1, LEASE)
        assert (claim.seen and claim.seen[1:]) == (True, 1, 0)
        await settle(home, [claim], TRANSIENT)
        task = await home.ledger.get(claim.task.id)
        assert task is not None
        assert (task.state, task.failures) == (State.WAITING, 1)
    home.clock.advance(minutes(20))
    [claim] = await home.ledger.claim(1, LEASE)
    alone = await home.ledger.run_alone(claim)
    assert alone is not None
    await settle(home, [alone])
    assert (await gate_of(home)).state is BreakerState.RETURNING, "a suspect that is the probe answers for it"


@everywhere
async def test_answers_of_the_destination_do_not_trip_it(home: Home) -> None:
    """A refusal is an answer: however many, the gate flows."""
    await limit(home, breaker=Breaker(failures=3))
    await put(home, 6)
    await settle(home, await home.ledger.claim(6, LEASE), PERMANENT)
    assert (await gate_of(home)).state is BreakerState.FLOWING


# --- people -------------------------------------------------------------------------------------------------------------


@everywhere
async def test_a_person_pauses_and_resumes(home: Home) -> None:
    """What runs ends, what waits waits, adding goes on; who, why and until when stand in the row."""
    await put(home, 2)
    [claim] = await home.ledger.claim(1, LEASE)
    assert await home.ledger.pause_gate(BANK, ADA)
    await settle(home, [claim])
    await put(home)
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.next_due() is None
    gate = await gate_of(home)
    assert (gate.paused_by, gate.reason, gate.held) == (ADA.name, ADA.reason, 0)
    assert await home.ledger.resume_gate(BANK, ADA)
    assert len(await home.ledger.claim(10, LEASE)) == 2
    assert not await home.ledger.resume_gate(BANK, ADA), "it is not paused"
    assert [deed.act for deed in await home.ledger.deeds(f"gate:{BANK}")] == ["gate paused", "gate resumed"]
    with pytest.raises(UsageError, match="say why"):
        await home.ledger.pause_gate(BANK, Actor(name="ada"))


@everywhere
async def test_a_pause_ends_by_itself(home: Home) -> None:
    """With a span it is over when the span is, and nobody has to remember it. A gate may be paused before its first task."""
    assert await home.ledger.pause_gate(BANK, ADA, span=hours(1))
    await put(home)
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.next_due() == hours(1)
    home.clock.advance(hours(1))
    assert len(await home.ledger.claim(10, LEASE)) == 1


@everywhere
async def test_two_people_act_once(home: Home) -> None:
    """Of those who saw the same gate, one pauses it, and the others are told who was quicker; so with limits, also where there were none."""
    await put(home)
    ledgers = (home.ledger, await home.another(), home.ledger)
    rule = read_rule(concurrency=3)
    for name, act, done in (
        (BANK, lambda one, seen: one.pause_gate(BANK, ADA, version=seen), "gate paused"),
        ("4*", lambda one, seen: one.set_rule("4*", rule, ADA, version=seen), "gate limits set"),
        ("4*", lambda one, seen: one.set_rule("4*", None, ADA, version=seen), "gate limits removed"),
    ):
        seen = await last_deed(home, name)
        acted = await asyncio.gather(*(act(one, seen) for one in ledgers), return_exceptions=True)
        assert [one for one in acted if not isinstance(one, StaleError)] == [True]
        assert f"ada was quicker ({done})" in {str(one).partition(" on ")[0] for one in acted}
    assert [deed.act for deed in await home.ledger.deeds(f"gate:{BANK}")] == ["gate paused"]
    assert len(await home.ledger.deeds("gate:4*")) == 2


@everywhere
async def test_a_busy_gate_can_be_acted_on(home: Home) -> None:
    """What a person saw stays true while tasks go through: only what people do counts."""
    await put(home, 2)
    assert await home.ledger.pause_gate(BANK, ADA)
    seen = await last_deed(home, BANK)
    await home.ledger.resume_gate(BANK, ADA, version=seen)
    seen = await last_deed(home, BANK)
    await settle(home, await home.ledger.claim(10, LEASE))
    assert await home.ledger.pause_gate(BANK, ADA, version=seen)


# --- waking -------------------------------------------------------------------------------------------------------------


async def test_a_gate_sleeps_until_its_next_task_is_due(home: Home) -> None:
    """Nothing due behind it: it sleeps until something is, and a new task, a retry or a redrive wakes it."""
    await put(home, delay=hours(2))
    assert await home.ledger.claim(10, LEASE) == []
    gate = await gate_of(home)
    assert gate.waits_for is WaitsFor.DUE
    assert gate.wake_at is not None
    assert abs(gate.wake_at - home.clock.now() - hours(2)) < TICK
    assert abs((await home.ledger.next_due() or days(1)) - hours(2)) < TICK
    await put(home)
    [claim] = await home.ledger.claim(10, LEASE)
    assert await home.ledger.claim(10, LEASE) == []
    await settle(home, [claim], TRANSIENT)
    assert abs((await home.ledger.next_due() or days(1)) - minutes(1)) < TICK
    home.clock.advance(minutes(1))
    [claim] = await home.ledger.claim(10, LEASE)
    await settle(home, [claim], PERMANENT)
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.redrive([claim.task.id], ADA) == [claim.task.id]
    assert len(await home.ledger.claim(10, LEASE)) == 1


async def test_what_nobody_told_of_is_discovered(home: Home) -> None:
    """Rows that a stranger wrote: a gate that is missing is made, one that sleeps is woken, and then nothing is left to find."""
    [late] = await put(home, delay=days(1))
    assert await home.ledger.claim(1, LEASE) == []
    assert await home.ledger.discover() == 0
    [one] = await home.put()
    value: Any = int(OTHER) if home.table.name.startswith("Outbox") else OTHER
    await home.change(one, **{home.table.gated_by or "gate": value})
    assert await home.ledger.discover() == 1
    assert (await gate_of(home, OTHER)).ready
    [claim] = await home.ledger.claim(10, LEASE)
    assert claim.task.id == one
    assert await home.ledger.claim(10, LEASE) == []
    assert (await gate_of(home)).waits_for is WaitsFor.DUE
    await home.change(late, due=home.clock.now())
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.discover() == 1
    assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == [late]
    assert await home.ledger.discover() == 0


async def test_what_came_while_its_gate_fell_asleep_is_found_at_once(home: Home) -> None:
    """A claim does not see a task that is added beside it, and who adds it sees a gate that is awake: so it is looked for, among few gates.

    On SQLite nobody adds while somebody claims.
    """
    [late] = await put(home, delay=days(1))
    assert await home.ledger.claim(1, LEASE) == []
    assert await home.ledger.discover(lately=True) == 0
    await home.change(late, due=home.clock.now())
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.discover(lately=home.store != "sqlite") == 1
    assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == [late]
    assert await home.ledger.discover(lately=True) == 0


async def test_a_ledger_knows_whether_it_uses_gates(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """None at first, and whoever asks again soon costs no statement; the ledger's own add is known at once, and a stranger's row is seen
    by the next look."""
    monkeypatch.setattr(
        "redrive.ledgers.sql.gates.LOOK_FOR_GATES_SECONDS", 3600.0
    )  # a busy machine takes a second for this
    await home.put()
    assert not await home.ledger.uses_gates()
    other = await home.another()
    assert not await other.uses_gates()
    await put(home)
    assert await home.ledger.uses_gates()
    assert not await other.uses_gates(), "it has looked just now"
    assert await other.uses_gates(anew=True)
    assert await other.uses_gates()


async def test_a_row_that_names_a_gate_uses_gates(home: Home) -> None:
    """Also before anybody has made the gate."""
    [one] = await home.put()
    value: Any = int(OTHER) if home.table.name.startswith("Outbox") else OTHER
    await home.change(one, **{home.table.gated_by or "gate": value})
    assert await home.ledger.uses_gates()


@pytest.mark.on_store("postgres")
async def test_adding_in_a_callers_transaction_locks_no_gate(home: Home) -> None:
    """While the caller's transaction is open others claim behind the gate as ever; after the commit its task is found."""
    await put(home)
    async with home.database.transaction() as transaction:
        named = {home.table.gated_by or "gate": BANK}
        [added] = await home.ledger.add([home.new(**named)], within=transaction.connection)
        [first] = await home.ledger.claim(10, LEASE)
        assert await home.ledger.claim(10, LEASE) == []
    assert (await gate_of(home)).waits_for is WaitsFor.DUE
    assert await home.ledger.discover() == 1
    assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == [added.id]
    await settle(home, [first])


@pytest.mark.on_store("postgres")
async def test_a_settlement_between_snapshot_and_lock_leaves_no_task_behind(home: Home) -> None:
    """A claim whose snapshot is older than a settlement finds nothing; yet the gate stays ready, and the next claim takes the task."""
    await put(home)
    [claim] = await home.ledger.claim(1, LEASE)
    with psycopg.connect(home.url, autocommit=True) as other:
        # The claim takes its snapshot, and then waits in its clock.
        other.execute("SELECT pg_advisory_lock(7)")
        other.execute(
            "CREATE OR REPLACE FUNCTION virtual.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql STABLE AS"
            " 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN (SELECT instant FROM virtual.clock); END'"
        )
        claiming = asyncio.create_task(home.ledger.claim(1, LEASE))
        try:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while other.execute(waiting).fetchone() != (1,):
                await asyncio.sleep(0.01)
            other.execute(
                "CREATE OR REPLACE FUNCTION virtual.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE"
                " AS 'SELECT instant FROM virtual.clock'"
            )
            await settle(home, [claim], Released())
        finally:
            other.execute("SELECT pg_advisory_unlock(7)")
        found = await claiming
    found += await home.ledger.claim(1, LEASE)
    assert [one.task.id for one in found] == [claim.task.id]


# --- keeping ------------------------------------------------------------------------------------------------------------


@pytest.mark.homes(lambda table: table.deadline is not None)
async def test_deadlines_of_parked_tasks_are_seen(home: Home) -> None:
    """Nobody claims what is parked, so whoever keeps house asks what is past its deadline."""
    await home.ledger.pause_gate(BANK, ADA)
    [soon] = await put(home, deadline=minutes(5))
    await put(home, deadline=hours(5))
    assert await home.ledger.overdue_behind_gates() == []
    home.clock.advance(minutes(5))
    assert await home.ledger.overdue_behind_gates() == [soon]
    assert await home.ledger.bury([soon], ADA) == [soon]
    assert await home.ledger.overdue_behind_gates() == []


async def test_a_claimed_row_that_a_stranger_deletes_is_not_held_for_ever(home: Home) -> None:
    """The recount finds that nobody holds it, and lets the next one through."""
    await limit(home, concurrency=2)
    await put(home, 3)
    claims = await home.ledger.claim(10, LEASE)
    assert await home.ledger.recount() == 0
    id_ = columns_of(home.sql_table)[home.table.id_column]
    gone = home.sql_table.delete().where(id_ == claims[0].task.id)
    await home.database.write(lambda connection: connection.execute(gone))
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.recount() == 1
    assert len(await home.ledger.claim(10, LEASE)) == 1


async def test_gates_that_nobody_needs_are_forgotten(home: Home) -> None:
    """A gate that nobody looked at for a day is deleted with the next count, unless a person paused it; one by its name at once. None is
    while something waits behind it or is held."""
    await put(home, gate=BANK)
    await put(home, gate=OTHER)
    await settle(home, await home.ledger.claim(2, LEASE))
    assert await home.ledger.claim(2, LEASE) == []
    assert await home.ledger.pause_gate("1", ADA)
    await home.ledger.keep_gates(recount=True)
    assert await _names(home) == {BANK, OTHER, "1"}
    await put(home, gate=OTHER)
    home.clock.advance(days(1) + minutes(1))
    await home.ledger.keep_gates(recount=True)
    assert await _names(home) == {OTHER, "1"}
    assert await home.ledger.forget_gates([OTHER]) == 0, "one waits"
    [claim] = await home.ledger.claim(2, LEASE)
    assert await home.ledger.forget_gates([OTHER]) == 0, "one is held"
    await settle(home, [claim])
    assert await home.ledger.forget_gates([OTHER, "1"]) == 2
    await put(home, gate=OTHER)
    assert len(await home.ledger.claim(2, LEASE)) == 1, "it is made anew"


async def _names(home: Home) -> set[str]:
    return {gate.name for gate, _ in await home.ledger.gates()}


async def test_people_see_what_is_parked(home: Home) -> None:
    """Tasks behind a shut gate are waiting tasks like any other: counted, listed and cancelled."""
    await home.ledger.pause_gate(BANK, ADA)
    ids = await put(home, 2)
    assert (await home.ledger.counts())[State.WAITING] == 2
    if home.table.kind is not None:
        assert await home.ledger.open_kinds() == ["mail"]
    if home.table.words.cancelled is not None:
        assert await home.ledger.cancel(ids[:1], ADA) == ids[:1]
        await home.ledger.resume_gate(BANK, ADA)
        assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == ids[1:]


# --- fairness -----------------------------------------------------------------------------------------------------------


async def test_gates_take_turns(home: Home) -> None:
    """One with many tasks does not delay another: both are in the first claim, and each gets its share."""
    await put(home, 50)
    await put(home, 3, OTHER)
    claims = await home.ledger.claim(6, LEASE)
    assert sum(claim.task.gate == OTHER for claim in claims) == 3


@own_table
async def test_tenants_take_turns(home: Home) -> None:
    """A tenant with a hundred gates delays others by no more than one round."""
    hog = [home.new(gate=f"hog-{n}", tenant="a hog") for n in range(100)]
    others = [home.new(gate=f"{name}-1", tenant=name) for name in ("b", "c", "d")]
    await home.ledger.add([*hog, *others])
    claims = await home.ledger.claim(8, LEASE)
    assert {claim.task.tenant for claim in claims} == {"a hog", "b", "c", "d"}


@own_table
async def test_tenants_take_turns_inside_a_gate_that_they_share(home: Home) -> None:
    """One with fifty due tasks before all others: each of the others is in the first claim, and a room of one goes around."""
    await limit(home, concurrency=1)
    await put(home, 50, tenant="a hog")
    for name in ("b", "c", "d"):
        await put(home, 2, tenant=name)
    served = []
    for _ in range(8):
        [claim] = await home.ledger.claim(10, LEASE)
        served.append(claim.task.tenant)
        await settle(home, [claim])
    assert served == ["a hog", "b", "c", "d"] * 2
    await limit(home, concurrency=4)
    await put(home, 1, tenant="e")
    claims = await home.ledger.claim(10, LEASE)
    assert sorted(claim.task.tenant or "" for claim in claims) == ["a hog", "a hog", "a hog", "e"]


@own_table
async def test_the_reserve_is_for_others(home: Home) -> None:
    """With some named as busy: nothing of theirs, nothing without a tenant and nothing without a gate; also inside a shared gate."""
    await put(home, 2, tenant="hog")
    await put(home, 1, tenant="small")
    await put(home, 1, OTHER, tenant="other")
    await put(home, 1, "nobody's")
    await home.put()
    claims = await home.ledger.claim(10, LEASE, busy=["hog"])
    assert sorted(claim.task.tenant or "" for claim in claims) == ["other", "small"]


@own_table
async def test_a_tenant_without_a_gate_is_a_gate(home: Home) -> None:
    """A task that has a tenant only is held by the gate of its tenant."""
    await home.ledger.add([home.new(tenant="acme")])
    [claim] = await home.ledger.claim(10, LEASE)
    assert (claim.task.gate, claim.task.tenant) == ("tenant:acme", "acme")


@with_priorities
async def test_priority_goes_before_due_time(home: Home) -> None:
    """High before normal before low; in a large claim each level has its share."""
    home.ledger.draw.seed(16)
    for level in (2, None, 0):
        await put(home, 20, priority=level)
        home.clock.advance(seconds(1))
    claims = await home.ledger.claim(20, LEASE)
    levels = [claim.task.priority for claim in claims]
    assert levels.count(0) >= 9
    assert levels.count(None) >= 2
    assert levels.count(2) >= 2


async def test_what_has_no_gate_is_not_starved_by_what_has(home: Home) -> None:
    """With more due on either side than a claim takes, both go on."""
    await put(home, 30)
    await home.put(30)
    claims = [claim for _ in range(4) for claim in await home.ledger.claim(5, LEASE)]
    assert sorted({claim.task.gate is None for claim in claims}) == [False, True]


# --- PostgreSQL says what the core says ---------------------------------------------------------------------------------

SPREAD = Policy(Fixed(60), retries=3, jitter=jitter.percent(20))
"""No two retries are due at the same instant, for which the order is nobody's."""
OUTCOMES: tuple[Outcome, ...] = (
    Done(), TRANSIENT, TRANSIENT, PERMANENT, Released(), Failed(RateLimitedError("later", retry_after=seconds(3))), LeaseExpired(),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(6 if WIDE else 2))
async def test_both_databases_say_the_same(postgres: Any, tmp_path: Any, seed: int) -> None:
    """The same history on SQLite, which asks the core, and on PostgreSQL, which is asked in SQL: the same claims and the same gates."""
    rng, clock = random.Random(seed), VirtualClock()
    databases = [
        open_database(url, clock=clock, durable=False)
        for url in (f"sqlite:///{tmp_path / 'a.db'}", await postgres.create())
    ]
    try:
        for database in databases:
            await migrate(database)
        ledgers = [own_ledger(database) for database in databases]
        await _live(rng, clock, ledgers)
    finally:
        for database in databases:
            await database.close()


async def _live(rng: random.Random, clock: VirtualClock, ledgers: list[SqlLedger]) -> None:
    names = ["bank:DE", "bank:FR", "shop:1", "shop:2"]
    held: list[list[Claim]] = [[] for _ in ledgers]
    serial = 0
    for step in range(60):
        act = rng.choice(["add", "claim", "claim", "claim", "settle", "settle", "advance", "advance", "rule", "person"])
        match act:
            case "add":
                tasks = []
                for _ in range(rng.randint(1, 8)):
                    serial += 1
                    gate = rng.choice(names)
                    tasks.append(
                        NewTask(
                            key=f"k{serial:05}", kind=rng.choice("ab"), gate=gate, tenant=rng.choice([None, gate[:4], *"xyz"]),
                            priority=rng.choice([None, 0, 1, 2]),
                            delay=timedelta(seconds=rng.choice([0, 0, 2]), microseconds=serial),
                        )
                    )  # fmt: skip
                for ledger in ledgers:
                    await ledger.add(tasks)
                clock.advance(timedelta(milliseconds=1))
            case "claim":
                fence, amount, seed = uuid4(), rng.randint(1, 12), rng.random()
                busy = rng.choice([None, None, None, ["x"], ["bank", "y"]])
                for ledger, mine in zip(ledgers, held, strict=True):
                    ledger.draw.seed(seed)
                    mine += sorted(
                        await ledger.claim(amount, hours(1), kinds=["a", "b"], fence=fence, busy=busy),
                        key=lambda one: one.task.key,
                    )
            case "settle":
                chosen = [rng.random() < 0.6 for _ in held[0]]
                outcomes = [rng.choice(OUTCOMES) for _ in held[0]]
                for at, ledger in enumerate(ledgers):
                    ended = [
                        settlement(claim, outcome, SPREAD)
                        for claim, is_chosen, outcome in zip(held[at], chosen, outcomes, strict=True)
                        if is_chosen
                    ]
                    assert await ledger.settle(ended, worker="w") == []
                    held[at] = [claim for claim, is_chosen in zip(held[at], chosen, strict=True) if not is_chosen]
            case "advance":
                clock.advance(timedelta(microseconds=rng.choice([1, 300_000, 1_000_000, 2_500_000, 61_000_000])))
            case "rule":
                rule = read_rule(
                    concurrency=rng.choice([None, 2, 5]), rate=rng.choice([None, "3/s", "40/m", "200/s"]),
                    breaker=rng.choice([None, Breaker(failures=2, within=2, probe=1), Breaker(failures=3, share=0.5, within=60, probe=2)]),
                    budget=rng.choice([None, 0.1]),
                )  # fmt: skip
                pattern = rng.choice(["*", "bank:*", "shop:1"])
                for ledger in ledgers:
                    await ledger.set_rule(pattern, rule, ADA)
            case _:
                name, span = rng.choice(names), rng.choice([None, seconds(2)])
                resumes = rng.random() < 0.6
                for ledger in ledgers:
                    await (ledger.resume_gate(name, ADA) if resumes else ledger.pause_gate(name, ADA, span=span))
        keys = [[(claim.task.key, claim.seen) for claim in mine] for mine in held]
        assert keys[0] == keys[1], (step, act)
        gates = [await ledger.gates() for ledger in ledgers]
        for (one, _), (two, _) in zip(*gates, strict=True):
            assert one == two, (step, act)
