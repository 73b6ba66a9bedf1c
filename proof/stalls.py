"""Workers that are stopped past their leases and continued at the worst moment."""

from collections.abc import Iterator

from proof.ground import STORES, tried_on
from proof.scenario import Found, chance, scenario
from tests.faults.stall_proofs import LEASE_SECONDS, stalled


@scenario("a task has one holder, and what a late worker settles is refused")
def stalls(short: bool) -> Iterator[Found]:
    """SIGSTOP while a handler runs, SIGCONT while another worker runs the same task or just after it has ended it."""
    workers = 4 if short else 200
    for store in STORES[1:] if short else STORES:
        tried = f"{workers} workers stopped (SIGSTOP) past leases of {LEASE_SECONDS:.0f} s and continued at the worst moment"
        yield tried_on(
            store, tried, lambda ground: stalled(ground, chance(), workers=workers, at_once=min(10, workers))
        )
