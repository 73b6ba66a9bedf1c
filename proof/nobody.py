"""Who gets in: every route of the whole service, asked by every scope and by every kind of stranger."""

import asyncio
from collections.abc import Iterator

from proof.ground import STORES, ground_on
from proof.scenario import Found, scenario
from tests.web.walk import faults, walk


@scenario("nobody gets in who may not")
def nobody_gets_in(short: bool) -> Iterator[Found]:
    """Routes are found by walking the router: one without a line of what it needs fails the walk."""
    for store in STORES[1:] if short else STORES:
        with ground_on(store) as ground:
            asked = asyncio.run(walk(ground.url))
        wrong = faults(asked)
        for one in wrong[:10]:
            print("  ", one)
        routes, people = {(one.method, one.path) for one in asked}, {one.who for one in asked}
        yield Found(
            tried=f"{store}: {len(routes)} routes, {len(people)} scopes and strangers, unknown ids",
            figure=f"{len(asked):,} requests, {len(wrong)} answered as they should not",
            holds=not wrong,
        )
