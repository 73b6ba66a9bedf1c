"""Back-ups that are made under load, restored and continued."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from proof.ground import STORES, ground_on
from proof.scenario import Found, scenario
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate
from tests.faults.own_postgres import own_postgres
from tests.faults.processes import Ground
from tests.faults.restore_proofs import postgres_ways, restored, sqlite_ways


@scenario("a back-up has all that was acknowledged before it, and nothing that had ended runs again")
def restores(short: bool) -> Iterator[Found]:
    """Two workers work and twelve callers add while it is made; then another worker goes on with the restored database."""
    least = 50 if short else 5000
    for number in range(4):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-backup-")))
            folder.chmod(0o755)
            if number < 2:
                server = stack.enter_context(own_postgres())
                asyncio.run(_migrate(server.url))
                ground, way = Ground(server.url, folder), postgres_ways(server, folder)[number]
            else:
                ground = stack.enter_context(ground_on(STORES[1]))
                way = sqlite_ways(ground.url, folder)[number - 2]
            tried = f"{way.name} while tasks are added and worked off, after {least:,} were done"
            try:
                yield Found(tried=tried, figure=asyncio.run(restored(ground, way, least=least)), holds=True)
            except AssertionError as error:
                yield Found(tried=tried, figure=str(error), holds=False)


async def _migrate(url: str) -> None:
    database = open_database(url)
    await migrate(database)
    await database.close()
