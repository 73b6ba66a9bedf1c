"""Effects at full size: ten thousand payments at a bank that drops its answers, and five hundred kills."""

from collections.abc import Iterator

from proof.ground import STORES, tried_on
from proof.scenario import Found, chance, scenario
from tests.faults.effect_proofs import killed


@scenario("no payment is made twice and none is lost, though the bank drops answers and workers are killed")
def effects_bank(short: bool) -> Iterator[Found]:
    """The bank itself pays whatever it is asked to, as often as it is asked. Without effects the same storm pays some twice."""
    payments, kills = (500, 15) if short else (10_000, 500)
    for store in STORES:
        yield tried_on(
            store,
            f"{payments:,} payments, {kills} kill -9",
            lambda ground: killed(ground, chance(), payments=payments, kills=kills),
        )
    yield tried_on(
        "sqlite",
        f"{payments // 10:,} payments without effects, {kills // 10} kill -9",
        lambda ground: killed(ground, chance(), payments=payments // 10, kills=kills // 10, blindly=True),
    )
