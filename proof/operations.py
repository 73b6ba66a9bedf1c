"""Operations at full size: a cause that is not mended, one that is, fifty kills, and a million dead tasks."""

from collections.abc import Iterator

from proof.ground import STORES, tried_on
from proof.scenario import Found, chance, scenario
from tests.faults.operation_proofs import killed, mended, million, not_mended


@scenario("an operation on a cause that is not mended runs at most six tasks again, and a mended one keeps to its rate")
def operations_brake(short: bool) -> Iterator[Found]:
    """Ten thousand dead tasks, with and without their bank."""
    tasks, rate = (300, 20) if short else (10_000, 50)
    for store in STORES:
        yield tried_on(store, f"{tasks:,} dead tasks, the bank still down", lambda ground: not_mended(ground, tasks))
        yield tried_on(
            store,
            f"{tasks:,} dead tasks, the bank up again, {rate} a second",
            lambda ground: mended(ground, tasks, rate=rate),
        )


@scenario("no operation releases a task twice or forgets one, whoever is killed")
def operations_killed(short: bool) -> Iterator[Found]:
    """Two workers and a service, killed at random."""
    tasks, kills, rate = (200, 8, 40) if short else (3000, 50, 50)
    for store in STORES:
        yield tried_on(
            store,
            f"{tasks:,} dead tasks, {kills} kill -9 of workers and the service",
            lambda ground: killed(ground, chance(), tasks=tasks, kills=kills, rate=rate),
        )


@scenario("a start is answered within a second, however many tasks match")
def operations_start(short: bool) -> Iterator[Found]:
    """A million dead tasks."""
    tasks = 20_000 if short else 1_000_000
    for store in STORES:
        yield tried_on(store, f"{tasks:,} dead tasks", lambda ground: million(ground, tasks))
