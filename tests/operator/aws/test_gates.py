"""Gates of a ledger over items, as people see them."""

from datetime import timedelta

import pytest

from redrive.core.durations import hours, seconds
from redrive.core.gate_rules import Breaker, read_rule
from redrive.errors import UsageError
from redrive.operator.aws.gates import ItemGates
from redrive.operator.gates import GateDoes
from redrive.ports import Actor
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.homes import ADA, LEASE, START, TRANSIENT, settlement

STORES = ("aws",)
CODE = Actor(name="code")


async def limit(home: ItemHome, pattern: str = "*") -> None:
    rule = read_rule(concurrency=2, breaker=Breaker(failures=2, within=60, probe=30))
    await home.ledger.set_rule(pattern, rule, CODE, by_code=True)


async def test_a_gate_from_full_to_tripped(home: ItemHome) -> None:
    """It shows its limits and who set them, what it holds and keeps back, why, and when the next probe is; so does what waits behind it."""
    await limit(home)
    ids = await home.put_behind("bank", 5)
    claims = await home.ledger.claim(10, LEASE)
    gates = ItemGates(home.ledger)
    view = await gates.one("bank")
    assert view is not None
    assert (view.does, view.waits_for, view.held, view.parked) == (GateDoes.LETTING_THROUGH, "slot", 2, 3)
    assert view.why == "All 2 that may run at once are running; the next goes when one ends."
    assert (view.rule and (view.rule.pattern, view.rule.set_by)) == ("*", "code")
    await home.ledger.settle([settlement(claim, TRANSIENT) for claim in claims], worker="w")
    view, began = await gates.one("bank"), home.clock.now()
    assert view is not None
    assert (view.does, view.since, view.until, view.parked) == (GateDoes.HOLDING, began, began + seconds(30), 3)
    last = max(str(id_) for id_ in ids)
    task = await home.ledger.get(last)
    assert task is not None
    parked = await gates.parked(task)
    assert parked is not None
    assert parked.sentence().startswith("parked behind bank, earliest ")
    assert await gates.one("nobody") is None


async def test_pages_begin_with_what_holds(home: ItemHome) -> None:
    """Pauses of kinds, then gates that are paused or hold, then the others, by their names; page by page, and by what they do."""
    await limit(home)
    for name in ("a", "b", "c", "d"):
        await home.put_behind(name)
    await home.ledger.settle([settlement(claim) for claim in await home.ledger.claim(10, LEASE)], worker="w")
    await home.ledger.pause_gate("c", ADA, span=hours(1))
    await home.ledger.pause_gate("kind:*", ADA)
    gates = ItemGates(home.ledger)
    names, cursor = [], None
    while True:
        page = await gates.page(limit=2, cursor=cursor)
        names += [view.name for view in page.items]
        cursor = None if page.cursor is None else str(page.cursor)
        if cursor is None:
            break
    assert names == ["kind:*", "c", "a", "b", "d"]
    assert [view.name for view in await gates.holding()] == ["kind:*", "c"]
    assert [view.name for view in (await gates.page(does=GateDoes.PAUSED)).items] == ["kind:*", "c"]
    assert [view.name for view in (await gates.page(prefix="a")).items] == ["a"]
    assert (await gates.sums()).amounts[GateDoes.LETTING_THROUGH] == 3
    assert (await gates.sums()).amounts[GateDoes.PAUSED] == 2
    assert [rule.pattern for rule in await gates.rules()] == ["*"]
    with pytest.raises(UsageError, match="begin again without it"):
        await gates.page(cursor="x")


async def test_what_gates_did_is_recorded_once(home: ItemHome) -> None:
    """A pause from its beginning to its end, however often and by however many it is written down; after a while it is forgotten."""
    await home.ledger.pause_gate("bank", ADA)
    gates, other = ItemGates(home.ledger), ItemGates(await home.another())
    assert [await gates.record_now(), await other.record_now(), await gates.record_now()] == [1, 0, 0]
    [span] = await gates.spans(["bank", "kind:*"], START)
    assert (span.does, span.began_at, span.ended_at) == (GateDoes.PAUSED, home.clock.now(), None)
    began = home.clock.now()
    home.clock.advance(timedelta(minutes=5))
    await home.ledger.resume_gate("bank", ADA)
    assert [await gates.record(), await gates.record(), await other.record_now()] == [1, 0, 0]
    [span] = await gates.spans(["bank"], START)
    assert (span.began_at, span.ended_at) == (began, home.clock.now())
    assert await gates.spans(["bank"], home.clock.now() + seconds(1)) == []
