"""Two versions side by side under load, in both directions: `python -m proof upgrades`. Step by step it is in `tests/ledgers/sql/test_works_with.py`."""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from sqlalchemy import Connection, text

from redrive import Redrive

from .books import all_ended, until

PATIENCE_SECONDS = 1800.0
LOAD = """
import asyncio, os, signal, sys
from redrive import Redrive
from redrive.ledgers.sql.migrate import migrate

async def main(url, who, evidence, migrates):
    app, over, file = Redrive(url), asyncio.Event(), os.open(evidence, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)

    @app.handler("work")
    async def work(task):
        os.write(file, f"ran {task.key} {who}\\n".encode())

    if migrates:
        await migrate(app.database)

    async def add():
        number = 0
        while not over.is_set():
            keys = [f"{who}-{number + n}" for n in range(5)]
            await asyncio.gather(*(app.add("work", {}, key=key) for key in keys))
            os.write(file, "".join(f"added {key} {who}\\n" for key in keys).encode())
            number += 5
            await asyncio.sleep(0.01)

    async with app:
        adding = asyncio.create_task(add())
        while not over.is_set():
            await app.work_off(app.tasks)
            await asyncio.sleep(0.01)
        await adding

asyncio.run(main(*sys.argv[1:4], sys.argv[4] == "migrate"))
"""
"""It runs with the code of either version, so it asks for no more than both have."""


class Load:
    """A process that adds and works off, with the code of some folder."""

    def __init__(self, process: asyncio.subprocess.Process, who: str, evidence: Path) -> None:
        self._process = process
        self._who = who
        self._evidence = evidence

    @classmethod
    async def of(cls, source: Path, url: str, who: str, evidence: Path, *, migrates: bool = False) -> "Load":
        """One that is started."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", LOAD, url, who, str(evidence), "migrate" if migrates else "as it is",
            env={**os.environ, "PYTHONPATH": str(source)}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process, who, evidence)

    async def has(self, *, added: int, ran: int, of: str) -> None:
        """Until it has added so many, and has run so many of what another has added."""

        mine, theirs, read_to = 0, 0, 0

        def enough() -> bool:
            nonlocal mine, theirs, read_to
            assert self._process.returncode is None, "it ended by itself"
            lines, read_to = read(self._evidence, read_to)
            mine += sum(what == "added" and who == self._who for what, _, who in lines)
            theirs += sum(what == "ran" and who == self._who and key.startswith(f"{of}-") for what, key, who in lines)
            return mine >= added and theirs >= ran

        try:
            await until(enough, f"{self._who} works on what {of} has added", PATIENCE_SECONDS, every=0.2)
        except AssertionError:
            self._process.kill()
            assert self._process.stderr is not None
            raise AssertionError((await self._process.stderr.read()).decode()[-1500:]) from None

    async def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        _, said = await self._process.communicate()
        assert self._process.returncode == 0, said.decode()[-1500:]

    def end(self) -> None:
        """If it still lives."""
        if self._process.returncode is None:
            self._process.kill()


def read(evidence: Path, start: int = 0) -> tuple[list[list[str]], int]:
    """What was added and run, by whom, from this byte on; and the byte from which to read on. A line that is half there comes later."""
    if not evidence.exists():
        return [], start
    with evidence.open("rb") as file:
        file.seek(start)
        said = file.read()
    whole = said[: said.rfind(b"\n") + 1]
    return [line.split(" ") for line in whole.decode().splitlines()], start + len(whole)


async def upgraded(url: str, old: Path, new: Path, folder: Path, *, least: int, back: bool = True) -> str:
    """N works, N+1 migrates and works beside it, N stops; N is started again beside N+1, which stops. All that was added is done, once."""
    evidence, started = folder / "evidence.txt", list[Load]()

    async def start(source: Path, who: str, *, migrates: bool = False) -> Load:
        started.append(await Load.of(source, url, who, evidence, migrates=migrates))
        return started[-1]

    try:
        first = await start(old, "old", migrates=True)
        await first.has(added=least, ran=least, of="old")
        newer = await start(new, "new", migrates=True)
        await newer.has(added=least, ran=5, of="old")
        await first.has(added=2 * least, ran=5, of="new")
        await first.stop()
        await newer.has(added=2 * least, ran=least, of="new")
        if back:
            again = await start(old, "again")
            await again.has(added=least, ran=5, of="new")
            await newer.has(added=3 * least, ran=5, of="again")
        await newer.stop()
        if back:
            await again.has(added=2 * least, ran=least, of="again")
            await again.stop()
    finally:
        for one in started:
            one.end()
    async with Redrive(url) as app:

        @app.handler("work")
        async def work(task: object) -> None:
            with evidence.open("a") as file:
                file.write(f"ran {task.key} rest\n")  # type: ignore[attr-defined]

        await app.work_off(app.tasks)
        await all_ended(app, PATIENCE_SECONDS)
        outcomes = await app.database.read(_outcomes)
    lines, _ = read(evidence)
    added = {key for what, key, _ in lines if what == "added"}
    ran = Counter(key for what, key, _ in lines if what == "ran")
    across = sum(what == "ran" and not key.startswith(f"{who}-") for what, key, who in lines)
    assert added <= set(outcomes), f"{len(added - set(outcomes))} of {len(added)} acknowledged tasks are lost"
    # A process that is stopped gives back what it has not begun.
    wrong = {
        key: tries
        for key, tries in outcomes.items()
        if sorted({*tries, "released"}) != ["done", "released"] or tries.count("done") != 1
    }
    assert not wrong, f"{len(wrong)} are not done once: {dict(list(wrong.items())[:3])}"
    assert all(amount == 1 for amount in ran.values()), "one ran twice"
    return f"{len(added):,} acknowledged, 0 lost, each run once; {across:,} were run by another process than the one that added them"


def _outcomes(connection: Connection) -> dict[str, list[str]]:
    """What the tries of each task came to."""
    rows = connection.execute(
        text(
            "SELECT t.key, a.outcome FROM redrive_task t LEFT JOIN redrive_attempt a ON a.task_id = CAST(t.id AS text)"
        )
    )
    found: dict[str, list[str]] = {}
    for key, outcome in rows:
        found.setdefault(key, []).append(outcome)
    return found
