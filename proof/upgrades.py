"""Version N and N+1 side by side, in both directions, under load."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from proof.ground import STORES, empty_on
from proof.scenario import Found, scenario, sized
from redrive.ledgers.sql.migrate import ENGINE, heads
from tests.faults.upgrade_proofs import upgraded
from tests.ledgers.sql.other_versions import LAST, ROOT, code_of, make_next


@scenario("an upgrade and the way back lose nothing, one process after the other")
def upgrades(short: bool) -> Iterator[Found]:
    """Both versions add and work all the time: N, then N+1 beside it, N+1 alone, N started anew beside it, N alone."""
    least = 30 if short else sized(3000)
    for store in STORES[1:] if short else STORES:
        for what in ("this version and the next", "an older version and this"):
            with empty_on(store) as url, tempfile.TemporaryDirectory(prefix="redrive-proof-") as folder:
                place, back = Path(folder), what.startswith("this")
                if back:
                    old, new = ROOT / "src", make_next(place, works_with=heads()[ENGINE])
                else:
                    old, new = code_of(LAST, place), ROOT / "src"
                way = "forth and back" if back else "forth"
                tried = f"{store}: {what}, {way}, {least:,} tasks at each step"
                try:
                    figure = asyncio.run(upgraded(url, old, new, place, least=least, back=back))
                    yield Found(tried=tried, figure=figure, holds=True)
                except AssertionError as error:
                    yield Found(tried=tried, figure=str(error), holds=False)
