"""What charts of a store over items are drawn from, beside what every store promises."""

from redrive.core.histograms import TRIES
from redrive.core.outcome import Done
from redrive.operator.aws.figures import ItemFigures
from redrive.systems.triggers.ledger import EVENTS
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.homes import LEASE, PERMANENT, START, settlement

STORES = ("aws",)


async def test_events_are_counted_in_minutes_of_their_own(home: ItemHome) -> None:
    """Each once when it came in and once when it ended, however many deliveries it has."""
    ids = await home.put(7)  # of three events
    claims = await home.ledger.claim(6, LEASE)
    ends = [settlement(claim, PERMANENT if claim.task.id == ids[0] else Done()) for claim in claims]
    assert await home.ledger.settle(ends, worker="w") == []
    figures = ItemFigures(home.ledger.dynamo, clock=home.clock)
    sums = await figures.sums([EVENTS], START)
    assert [sums[name] for name in ("added", "done", "dead")] == [3, 1, 1]
    assert sum(sums[name] for name in TRIES) == 2
    assert (await figures.sums([home.ledger.name], START))["done"] == 5
