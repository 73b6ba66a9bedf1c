"""Gates as people see them, on both databases."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from redrive import Redrive, TransientError, hours, minutes, seconds
from redrive.core.decide import decide
from redrive.core.gate_rules import GateRule, read_rule
from redrive.core.outcome import Done, Failed
from redrive.core.task import Claim, NewTask
from redrive.errors import StaleError, UsageError
from redrive.gates import Breaker
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator import gates as views
from redrive.operator.gates import KEEP, GateDoes, GateView, changed_rule, ordinal
from redrive.operator.sql import gates as module
from redrive.operator.sql.gates import SqlGates
from redrive.ports import Actor, Filter
from redrive.testing import VirtualClock
from tests.ledgers.homes import ADA, LEASE, POLICY

BANK = "bank:DE"
CODE = Actor(name="code")


async def put(
    ledger: SqlLedger, amount: int = 1, gate: str | None = BANK, kind: str = "pay", **given: Any
) -> list[Any]:
    """Tasks behind a gate."""
    tasks = [
        NewTask(kind=kind, key=f"{gate}-{kind}-{n}-{given.get('delay', 0)}", gate=gate, **given) for n in range(amount)
    ]
    return [one.id for one in await ledger.add(tasks)]


async def settle(ledger: SqlLedger, claims: Sequence[Claim], *, fail: bool = False) -> None:
    outcome = Failed(TransientError("refused")) if fail else Done()
    assert await ledger.settle([decide(claim, outcome, POLICY) for claim in claims], worker="w") == []


async def trip(ledger: SqlLedger, gate: str = BANK) -> None:
    """A destination that is down."""
    await ledger.set_rule(
        gate, read_rule(breaker=Breaker(failures=2, within=60, probe=30), rate="20/s"), CODE, by_code=True
    )
    await put(ledger, 5, gate)
    await settle(ledger, await ledger.claim(2, LEASE), fail=True)


async def see(ledger: SqlLedger, name: str = BANK) -> GateView:
    view = await SqlGates(ledger).one(name)
    assert view is not None
    return view


async def test_a_gate_that_lets_tasks_through(ledger: SqlLedger, clock: VirtualClock) -> None:
    """It shows its limits and who set them, what it holds, what ended lately, and which due tasks it keeps back."""
    await ledger.set_rule("bank:*", read_rule(concurrency=2, rate="100/m", budget=0.5), ADA)
    await put(ledger, 6)
    await put(ledger, 3, delay=hours(1))
    await settle(ledger, [(await ledger.claim(1, LEASE))[0]])
    claims = await ledger.claim(5, LEASE)
    view = await see(ledger)
    assert (view.does, view.waits_for, view.held, view.parked) == (GateDoes.LETTING_THROUGH, "slot", 2, 3)
    assert view.why == "All 2 that may run at once are running; the next goes when one ends."
    assert view.rule is not None
    assert (view.rule.pattern, view.rule.set_by, view.rule.reason) == ("bank:*", ADA.name, ADA.reason)
    assert (round(view.tries), view.failures, view.kinds, view.version) == (1, 0, ("pay",), 0)
    assert views.rate_words(view.limits) == "100/m"
    await settle(ledger, claims)
    clock.advance(hours(1))
    view = await see(ledger)
    assert (view.tries, view.held, view.why) == (0, 0, "")
    assert await SqlGates(ledger).one("bank:FR") is None


async def test_a_gate_that_holds_returns_and_lets_through(ledger: SqlLedger, clock: VirtualClock) -> None:
    """From the failures that tripped it to the ramp: each state in words, with the next probe and since when."""
    await trip(ledger)
    began = clock.now()
    view = await see(ledger)
    assert (view.does, view.since, view.next_probe, view.until) == (
        GateDoes.HOLDING, began, began + seconds(30), began + seconds(30),
    )  # fmt: skip
    assert view.why.startswith("The breaker tripped after 2 failures within 1m. The next probe is at ")
    assert view.why.endswith("then one every 30s. When one succeeds it ramps up: 1, 2, 4 … a second, up to 20/s.")
    assert (round(view.failures), view.parked) == (2, 3)
    clock.advance(seconds(30))
    probe = await ledger.claim(5, LEASE)
    assert "A probe is running" in (await see(ledger)).why or (await see(ledger)).next_probe > clock.now()  # type: ignore[operator]
    await settle(ledger, probe)
    view = await see(ledger)
    assert (view.does, view.since, view.next_probe) == (GateDoes.RETURNING, clock.now(), None)
    assert "It ramps up, 1, 2, 4 … a second, since" in view.why
    clock.advance(minutes(1))
    assert (await see(ledger)).does is GateDoes.LETTING_THROUGH


async def test_a_gate_that_somebody_paused(ledger: SqlLedger, clock: VirtualClock) -> None:
    """Who, why and until when; when the pause is over nothing of it is shown."""
    await put(ledger, 2)
    await ledger.pause_gate(BANK, ADA, span=hours(1))
    view = await see(ledger)
    assert (view.does, view.paused_by, view.reason, view.until) == (
        GateDoes.PAUSED, ADA.name, ADA.reason, clock.now() + hours(1),
    )  # fmt: skip
    assert f"Paused by {ADA.name} at " in view.why
    assert "It resumes by itself at" in view.why
    assert view.version > 0
    clock.advance(hours(2))
    view = await see(ledger)
    assert (view.does, view.paused_by, view.why) == (GateDoes.LETTING_THROUGH, None, "")


@pytest.mark.every_store
async def test_pages_begin_with_what_holds(ledger: SqlLedger) -> None:
    """Gates that hold or are paused, then the others, by name; each once, whatever the size of a page, with every filter."""
    await trip(ledger, "bank:DE")
    for name in ("a", "b", "z", "c"):
        await put(ledger, 1, name)
    await put(ledger, 1, "bank:FR")
    await ledger.pause_gate("z", ADA)
    await ledger.pause_gate("kind:pay", ADA)
    await ledger.pause_gate("kind:old", ADA)
    await ledger.resume_gate("kind:old", ADA)
    every = ["bank:DE", "kind:pay", "z", "a", "b", "bank:FR", "c"]
    gates = SqlGates(ledger)

    async def walk(limit: int, **asked: Any) -> list[str]:
        found, cursor = [], None
        for _ in range(50):
            page = await gates.page(limit=limit, cursor=cursor, **asked)
            assert len(page.items) <= limit
            found += [view.name for view in page.items]
            cursor = page.cursor
            if cursor is None:
                return found
        raise AssertionError(found)

    for limit in (1, 2, 3, 7, 100):
        assert await walk(limit) == every
        assert await walk(limit, does=GateDoes.PAUSED) == ["kind:pay", "z"]
        assert await walk(limit, does=GateDoes.HOLDING, prefix="bank") == ["bank:DE"]
        assert await walk(limit, prefix="bank:") == ["bank:DE", "bank:FR"]
        assert await walk(limit, prefix="B") == []
    sums = await gates.sums()
    assert (sums.amounts[GateDoes.PAUSED], sums.amounts[GateDoes.HOLDING]) == (2, 1)
    for cursor in ("x", "W10", "WzIsICIiXQ", "é"):
        with pytest.raises(UsageError, match="not one that we gave out"):
            await gates.page(cursor=cursor)
    with pytest.raises(UsageError, match="between 1 and"):
        await gates.page(limit=0)


async def test_what_is_parked_is_counted_up_to_a_limit(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a gate, of a paused kind and of a paused ledger: due tasks alone, and more than so many are "10,000+"."""
    await put(ledger, 4)
    await put(ledger, 2, delay=hours(1))
    await put(ledger, 3, gate=None, kind="mail")
    for name, amount in ((BANK, 4), ("kind:mail", 3), ("kind:pay", 4), ("kind:*", 7), ("kind:m*", None)):
        await ledger.pause_gate(name, ADA)
        assert (await see(ledger, name)).parked == amount, name
    monkeypatch.setattr(module, "PARKED_MAX", 2)
    assert (await see(ledger)).parked == (await see(ledger, "kind:*")).parked == 3
    assert views.amount_words(10_001) == "10,000+"
    assert (views.amount_words(None), views.amount_words(1204)) == ("–", "1,204")


async def test_what_keeps_a_task_back(ledger: SqlLedger, clock: VirtualClock) -> None:
    """Its gate with the next probe and how many go before it, the pause of its kind, or nothing."""
    await trip(ledger)
    gates = SqlGates(ledger)
    tasks = [task for task in (await ledger.find(Filter())).items if task.failures == 0]
    last = await gates.parked(tasks[-1])
    assert last is not None
    assert (last.before, last.earliest, last.stretch) == (2, clock.now() + seconds(30), 2)
    at = last.earliest.strftime("%H:%M:%S")
    assert last.sentence() == f"parked behind bank:DE, earliest {at}"
    assert (
        f"holding since {clock.now():%H:%M:%S}, next probe {at}, 2 before it. The breaker tripped" in last.explained()
    )
    [late] = (await ledger.find(Filter(ids=await put(ledger, delay=hours(1))))).items
    assert await gates.parked(late) is None, "its own time comes later"
    await put(ledger, gate=None)
    [free] = [task for task in (await ledger.find(Filter())).items if task.gate is None]
    assert await gates.parked(free) is None
    await ledger.pause_gate("kind:pay", ADA)
    paused = await gates.parked(free)
    assert paused is not None
    assert (paused.sentence(), paused.before) == ("held by the pause of kind pay", None)


async def test_limits_change_one_by_one(url: str, clock: VirtualClock) -> None:
    """What is not given stays as it holds, also where a wider pattern holds; two who saw the same change once."""
    app = Redrive(url, clock=clock, durable=False)
    app.gate("bank:*", concurrency=5, rate="100/m", breaker=Breaker(failures=3))
    async with app:
        await app.add("pay", gate=BANK)
        by_ada: Any = {"actor": "ada", "reason": "the bank asked"}
        seen = await app.tasks.gate_state(BANK)
        assert seen is not None
        assert await app.tasks.set_gate(BANK, concurrency=2, version=seen.version, **by_ada)
        with pytest.raises(StaleError, match="ada was quicker"):
            await app.tasks.set_gate(BANK, concurrency=9, version=seen.version, **by_ada)
        assert not await app.tasks.set_gate(BANK, concurrency=2, **by_ada)
        assert await app.tasks.set_gate(BANK, rate=None, budget=0.5, **by_ada)
        now = await app.tasks.gate_state(BANK)
        assert now is not None
        assert now.limits == GateRule(concurrency=2, budget=0.5, failures=3)
        assert now.rule is not None
        assert (now.rule.pattern, now.rule.set_by) == (BANK, "ada")
        assert await app.tasks.unset_gate(BANK, **by_ada)
        assert (await app.tasks.gates(prefix="bank")).items[0].limits.concurrency == 5
        with pytest.raises(UsageError, match="until must lie in the future"):
            await app.tasks.pause_gate(BANK, until=clock.now(), **by_ada)
        assert await app.tasks.pause_gate(BANK, until=clock.now() + minutes(5), **by_ada)
        assert [view.name for view in (await app.tasks.gates(does="paused")).items] == [BANK]
        with pytest.raises(UsageError, match="the state of a gate is one of paused, holding"):
            await app.tasks.gates(does="open")


def test_a_rate_keeps_its_span() -> None:
    """Limits that nobody speaks of are the same afterwards, to the letter."""
    rule = read_rule(concurrency=5, rate="100/m", burst=7, breaker=Breaker(failures=3, share=0.5), budget=0.1)
    assert changed_rule(rule) == changed_rule(rule, rate=KEEP) == rule
    assert changed_rule(rule, rate=None) == read_rule(concurrency=5, breaker=Breaker(failures=3, share=0.5), budget=0.1)
    assert changed_rule(rule, breaker=None).failures is None
    assert changed_rule(rule, rate="5/s").rate_span == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("number", "said"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals(number: int, said: str) -> None:
    """As people say them."""
    assert ordinal(number) == said


@pytest.mark.every_store
async def test_changes_are_recorded_once(ledger: SqlLedger, clock: VirtualClock) -> None:
    """When a gate held, returned and was paused, at the instants that its row knows, whoever records and however often."""
    gates, start = SqlGates(ledger), clock.now()
    assert await gates.record() == 0
    await trip(ledger)
    clock.advance(seconds(1))
    assert [await gates.record(), await gates.record()] == [1, 0]
    clock.advance(seconds(29))
    await settle(ledger, await ledger.claim(1, LEASE))
    returned = clock.now()
    assert await gates.record() == 2
    clock.advance(minutes(1))
    await ledger.pause_gate(BANK, ADA, span=minutes(5))
    paused = clock.now()
    await gates.record()
    clock.advance(minutes(10))
    await gates.record()
    spans = await gates.spans([BANK], start)
    assert [(one.does, one.began_at, one.ended_at) for one in spans] == [
        (GateDoes.HOLDING, start, returned),
        (GateDoes.RETURNING, returned, paused),
        (GateDoes.PAUSED, paused, paused + minutes(5)),
    ]
    assert await gates.spans([BANK], clock.now()) == []
    clock.advance(timedelta(days=3))
    await ledger.pause_gate(BANK, ADA)
    await gates.record()
    assert len(await gates.spans([BANK], start)) == 1, "what is old is forgotten"


@pytest.mark.every_store
async def test_probes_are_counted_since_it_tripped(ledger: SqlLedger, clock: VirtualClock) -> None:
    """Each that did not get through, in words too; when it has returned and trips again, they count from the beginning."""
    await trip(ledger)
    for probes in (1, 2):
        clock.advance(seconds(30))
        await settle(ledger, await ledger.claim(5, LEASE), fail=True)
        assert (await see(ledger)).probes == probes
    assert "2 probes, none got through. The next probe is at " in (await see(ledger)).why
    clock.advance(seconds(30))
    await settle(ledger, await ledger.claim(5, LEASE))
    assert (await see(ledger)).probes == 0
    await put(ledger, 5, kind="again")
    for _ in range(4):
        if (await see(ledger)).does is GateDoes.RETURNING:
            clock.advance(seconds(1))
            await settle(ledger, await ledger.claim(5, LEASE), fail=True)
    view = await see(ledger)
    assert (view.does, view.trips, view.probes) == (GateDoes.HOLDING, 2, 0)


@pytest.mark.every_store
async def test_what_a_gate_keeps_back_is_counted_once_a_minute(ledger: SqlLedger, clock: VirtualClock) -> None:
    """While it holds, whoever records and however often; before that and long after it there is nothing to tell."""
    gates = SqlGates(ledger)
    clock.advance(minutes(1) - seconds(clock.now().second))
    start = clock.now()
    await gates.record()
    assert await gates.parked_over([BANK], start) == {}
    await trip(ledger)
    await gates.record()
    clock.advance(seconds(20))
    await put(ledger, 2, kind="more")
    await gates.record()
    assert await gates.parked_over([BANK], start) == {BANK: [(start, 3)]}
    clock.advance(seconds(40))
    await gates.record()
    found = await gates.parked_over([BANK], start)
    assert found == {BANK: [(start, 3), (start + minutes(1), 7)]}
    points = views.parked_points(found[BANK], clock.now() + minutes(1), 8)
    assert (points[-4:], len(points)) == ([0, 3, 7, 8], 60)
    clock.advance(timedelta(days=3))
    await ledger.pause_gate(BANK, ADA)
    await gates.record()
    assert len((await gates.parked_over([BANK], start))[BANK]) == 1
