"""PostgreSQL is killed with all of its processes under load: small by `test_postgres_restart.py`, and at full size by `python -m proof postmaster_kills`."""

import asyncio
import random
from collections import Counter
from contextlib import suppress

from redrive import Redrive, State
from redrive.errors import LedgerAwayError
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import migrate

from .books import create_effects, effects, read_books, until
from .own_postgres import OwnServer
from .processes import Ground, WorkerProcess, events

ADDERS = 8
PATIENCE_SECONDS = 1800.0


async def killed(server: OwnServer, ground: Ground, rng: random.Random, *, tasks: int, kills: int) -> str:
    """All that was acknowledged before a kill is there after it, tasks as well as settlements, and each claim ends in one attempt."""
    assert (await server.setting("fsync"), await server.setting("synchronous_commit")) == ("on", "on")
    database = open_database(server.url)
    await migrate(database)
    await database.close()
    added: list[str] = []
    ended = 0
    async with Redrive(ground.url) as app:
        await create_effects(app)

        async def add(number: int) -> None:
            for turn in range(tasks // ADDERS):
                kind, key = "pair" if turn % 10 == 0 else "work", f"{number}-{turn}"
                while True:
                    try:
                        await app.add(kind, {"ms": 5, "fails": turn % 7 == 0}, key=key)
                        break
                    except LedgerAwayError:
                        await asyncio.sleep(0.05)
                added.append(key)

        with WorkerProcess(ground, "one", lease=3) as one, WorkerProcess(ground, "two", lease=3) as two:
            adders = [asyncio.create_task(add(number)) for number in range(ADDERS)]
            for number in range(kills):
                least = (number + 1) * tasks // ADDERS * ADDERS // (kills + 1)
                await until(lambda least=least: len(added) >= least, "more was added", PATIENCE_SECONDS)
                await asyncio.sleep(rng.uniform(0, 0.2))
                ended += await server.kill()
            await asyncio.gather(*adders)

            async def all_done() -> bool:
                with suppress(LedgerAwayError):
                    counts = await app.tasks.counts(counted_max=1)
                    return counts[State.WAITING] == counts[State.CLAIMED] == 0
                return False

            await until(all_done, "all tasks ended", PATIENCE_SECONDS)
            assert [one.stop(), two.stop()] == [0, 0]
        books = await read_books(app, ground.evidence)
        written = await effects(app)
    keys = {task.key for task in books.tasks.values()}
    lost = set(added) - keys
    assert not lost, f"{len(lost)} of {len(added)} acknowledged tasks are lost: {sorted(lost)[:3]}"
    settled = _settled(ground)
    attempts = Counter((books.tasks[id_].key, one.outcome) for id_, tries in books.attempts.items() for one in tries)
    assert settled, "no settlement was acknowledged: this shows nothing"
    missing = settled - attempts
    assert not missing, f"{missing.total()} of {settled.total()} acknowledged settlements are lost"
    assert books.faults() == []
    pairs = [task.key for task in books.tasks.values() if task.kind == "pair"]
    assert written == dict.fromkeys(pairs, 1)
    outcomes = books.outcomes()
    return (
        f"{kills} kills ended {ended} processes; {len(added):,} tasks and {settled.total():,} settlements acknowledged, 0 lost; "
        f"{outcomes['lease_expired']:,} claims were lost and made up for; {len(pairs):,} writes of transactional handlers, once each"
    )


def _settled(ground: Ground) -> Counter[tuple[str, str]]:
    """What workers say that they have settled, once the server has said so to them."""
    said = {"task_done": "done", "retry_scheduled": "failed"}
    return Counter(
        (line["key"], outcome)
        for log in ground.logs().values()
        for event, outcome in said.items()
        for line in events(log, event)
    )
