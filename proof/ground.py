"""What a scenario with processes stands on: a new database with the settings that a server comes with, and a folder for logs."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.servers import servers
from proof.scenario import Found
from redrive import Redrive
from redrive.ledgers.sql.migrate import migrate
from tests.faults.processes import Ground

STORES = tuple(os.environ.get("PROOF_STORES", "postgres sqlite").split())
MEMORY = Path("/dev/shm")


@contextmanager
def empty_on(store: str, *, in_memory: bool = False) -> Iterator[str]:
    """An empty database; its URL. `in_memory` is for promises that no disk has a part in: what a process has written outlives it there, too."""
    parent = MEMORY if in_memory and MEMORY.is_dir() else None
    with servers(parent, postgres=store == "postgres", rabbitmq=False, timed=not in_memory) as running:
        yield f"sqlite:///{running.folder}/proof.db" if running.postgres is None else running.postgres.create("proof")


@contextmanager
def ground_on(store: str, systems: Sequence[str] = (), *, in_memory: bool = False) -> Iterator[Ground]:
    """A migrated database; see `empty_on`."""
    with empty_on(store, in_memory=in_memory) as url, tempfile.TemporaryDirectory(prefix="redrive-proof-") as folder:
        asyncio.run(_prepare(url, systems))
        yield Ground(url, Path(folder))


async def _prepare(url: str, systems: Sequence[str]) -> None:
    app = Redrive(url)
    await migrate(app.database, systems)
    await app.close()


def tried_on(
    store: str,
    tried: str,
    run: Callable[[Ground], Coroutine[Any, Any, str]],
    systems: Sequence[str] = (),
    *,
    in_memory: bool = False,
) -> Found:
    """What came of it; an assertion that did not hold is what was found."""
    with ground_on(store, systems, in_memory=in_memory) as ground:
        try:
            return Found(tried=f"{store}: {tried}", figure=asyncio.run(run(ground)), holds=True)
        except AssertionError as error:
            return Found(tried=f"{store}: {tried}", figure=str(error), holds=False)
