"""Upgrades one process after the other: version N and N+1 work side by side, in both directions, and nothing is lost."""

import asyncio
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from redrive import Redrive
from redrive.errors import NewerSchemaError
from redrive.ledgers.open import open_database
from redrive.ledgers.sql.migrate import ENGINE, _folder, heads, is_enough, migrate, systems_with_tables, versions
from tests.ledgers.sql.other_versions import BEFORE, LAST, LAST_VERSION, ROOT, code_of, make_next

PROMISED_SINCE = {ENGINE: 4, "commands": 4, "flags": 5, "relay": 4, "triggers": 3, "webhooks": 5}
"""The first version of each branch that must say `works_with`; those before were all migrated at once."""
TAKES_AWAY = re.compile(
    r"DROP (TABLE|COLUMN|CONSTRAINT)|RENAME|SET NOT NULL|ALTER COLUMN \S+ TYPE|ADD CONSTRAINT"
    r"|ADD COLUMN (?!.*DEFAULT).*NOT NULL|CREATE UNIQUE INDEX",
    re.IGNORECASE,
)
"""What code that was written before may trip over."""

SESSION = """
import asyncio, json, sys
from redrive import Redrive
from redrive.ledgers.sql.migrate import migrate

async def main(url, migrates):
    app, ran = Redrive(url), []

    @app.handler("work")
    async def work(task):
        ran.append(task.key)

    if migrates:
        await migrate(app.database)
    async with app:
        print(json.dumps([]), flush=True)
        for line in iter(sys.stdin.readline, ""):
            ran.clear()
            if line.startswith("add"):
                await asyncio.gather(*(app.add("work", {}, key=f"{line.split()[1]}-{n}") for n in range(5)))
            else:
                await app.work_off(app.tasks)
            print(json.dumps(ran), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2] == "migrate"))
"""


class Session:
    """An application in a process of its own, with the code of some folder."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def of(cls, source: Path, url: str, *, migrates: bool) -> "Session":
        """One that is ready for work."""
        session = cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", SESSION, url, "migrate" if migrates else "as it is",
                env={**os.environ, "PYTHONPATH": str(source)}, stdin=-1, stdout=-1, stderr=-1,
            )
        )  # fmt: skip
        await session.answer()
        return session

    async def answer(self) -> list[str]:
        """The keys of the tasks that it has run."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = await self._process.stdout.readline()
        if not line:
            raise AssertionError((await self._process.stderr.read()).decode())
        answer: list[str] = json.loads(line)
        return answer

    async def say(self, line: str) -> list[str]:
        """Tell it what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        return await self.answer()

    async def end(self) -> None:
        """Let it end."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


Open = Callable[..., Awaitable[Session]]


@pytest.fixture
async def session() -> AsyncIterator[Open]:
    """Opens sessions, and ends them."""
    opened: list[Session] = []

    async def open_one(source: Path, url: str, *, migrates: bool = False) -> Session:
        opened.append(await Session.of(source, url, migrates=migrates))
        return opened[-1]

    yield open_one
    for one in opened:
        await one.end()


async def work_side_by_side(old: Any, new: Any) -> None:
    """Each adds what the other runs, and they add at once; each task runs once."""
    await old("add from-old")
    assert sorted(await new("run")) == [f"from-old-{n}" for n in range(5)]
    await new("add from-new")
    assert sorted(await old("run")) == [f"from-new-{n}" for n in range(5)]
    await asyncio.gather(old("add both-old"), new("add both-new"))
    ran = [key for keys in await asyncio.gather(old("run"), new("run")) for key in keys]
    assert sorted(ran) == sorted(f"both-{who}-{n}" for who in ("old", "new") for n in range(5))


async def upgraded_beside(session: Open, older: Path, url: str) -> Session:
    """This code, after its migration came while older code ran, which works on beside it."""
    old = await session(older, url, migrates=True)
    await old.say("add early")
    new = await session(ROOT / "src", url, migrates=True)
    assert len(await new.say("run")) == 5
    await work_side_by_side(old.say, new.say)
    return new


@pytest.mark.wide  # of the last code, which makes the promise, it is shown below
async def test_code_that_runs_goes_on_while_newer_code_migrates(empty_url: str, session: Open, tmp_path: Path) -> None:
    """The code before the promise works on beside this one, whose migration comes in between; once it is started anew it is refused."""
    code_before = code_of(BEFORE, tmp_path)
    await upgraded_beside(session, code_before, empty_url)
    with pytest.raises(AssertionError, match="upgrade redrive"):
        await session(code_before, empty_url)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_the_last_code_starts_and_works_on_tables_of_this(empty_url: str, session: Open, tmp_path: Path) -> None:
    """N runs while N+1 migrates, and goes on; N that is started anew works beside it, too, as far as the tables say that it may."""
    last = code_of(LAST, tmp_path)
    new = await upgraded_beside(session, last, empty_url)
    if _scripts(ENGINE).get_revision(heads()[ENGINE]).module.works_with > LAST_VERSION:
        with pytest.raises(AssertionError, match="upgrade redrive"):
            await session(last, empty_url)
        return
    restarted = await session(last, empty_url, migrates=True)
    await restarted.say("add again")
    assert len(await new.say("run")) == 5
    await new.say("add back")
    assert len(await restarted.say("run")) == 5


@pytest.mark.long_on("sqlite")
async def test_this_code_starts_and_works_on_tables_of_the_next(empty_url: str, session: Open, tmp_path: Path) -> None:
    """N, started after N+1 has migrated, works beside it, and to migrate again is nothing."""
    new = await session(make_next(tmp_path, works_with=heads()[ENGINE]), empty_url, migrates=True)
    old = await session(ROOT / "src", empty_url, migrates=True)
    await work_side_by_side(old.say, new.say)
    database = open_database(empty_url)
    try:
        [newer] = (await versions(database)).values()
        assert newer != heads()[ENGINE]
        assert is_enough(newer, heads()[ENGINE])
        assert await migrate(database) == ({ENGINE: newer}, {ENGINE: newer})
        with pytest.raises(NewerSchemaError, match="migrate with that one"):
            await migrate(database, ["flags"])
    finally:
        await database.close()


@pytest.mark.long_on("sqlite")
async def test_this_code_is_refused_where_the_next_says_so(empty_url: str, session: Open, tmp_path: Path) -> None:
    """Tables that took something away name the version that their code must have."""
    await session(make_next(tmp_path, works_with="redrive_9999"), empty_url, migrates=True)
    with pytest.raises(NewerSchemaError, match=r"needs code of version redrive_9999 or later.*: upgrade redrive"):
        async with Redrive(empty_url):
            pass


def test_every_migration_says_who_may_work_with_it() -> None:
    """From the version on that made the promise: a migration names the oldest code, and one that takes something away does not name the one before.

    What it does is read from the SQL that it prints for PostgreSQL. A new branch begins with its first version.
    """
    said = 0
    for branch in (ENGINE, *systems_with_tables()):
        scripts = _scripts(branch)
        for script in scripts.walk_revisions():
            first = PROMISED_SINCE.get(branch, 2)
            if int(script.revision.rpartition("_")[2]) < first:
                continue
            said += 1
            oldest = getattr(script.module, "works_with", None)
            assert oldest in {one.revision for one in scripts.walk_revisions()}, (
                f"{script.path} does not say works_with"
            )
            sql = _sql(branch, f"{script.down_revision}:{script.revision}")
            assert f"'{branch}', '{script.revision}', '{oldest}'" in sql, f"{script.path} does not record it"
            taken = [line for line in sql.splitlines() if TAKES_AWAY.search(line)]
            if taken:
                assert oldest == script.revision, f"{script.path}: older code may trip over {taken}"
            else:
                assert oldest <= script.down_revision, f"{script.path} takes nothing away, so the code before may go on"
    assert said


@pytest.mark.parametrize(
    "harmful",
    [
        "ALTER TABLE t DROP COLUMN c;", "DROP TABLE t;", "ALTER TABLE t RENAME TO u;", "ALTER TABLE t ALTER COLUMN c SET NOT NULL;",
        "ALTER TABLE t ALTER COLUMN c TYPE bigint;", "ALTER TABLE t ADD CONSTRAINT k CHECK (c > 0);",
        "ALTER TABLE t ADD COLUMN c TEXT NOT NULL;", "CREATE UNIQUE INDEX i ON t (c);",
    ],
)  # fmt: skip
def test_what_takes_something_away_is_known(harmful: str) -> None:
    """The rule finds each way in which older code can be shut out."""
    assert TAKES_AWAY.search(harmful)
    assert not TAKES_AWAY.search("ALTER TABLE t ADD COLUMN c TEXT DEFAULT 'none' NOT NULL;")
    assert not TAKES_AWAY.search("CREATE TABLE t (c TEXT NOT NULL, CONSTRAINT k CHECK (c > 0));")


def _config(branch: str, **given: Any) -> Config:
    config = Config(**given)
    config.set_main_option("script_location", str(_folder(ENGINE).parent))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", str(_folder(branch)))
    return config


def _scripts(branch: str) -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(branch))


def _sql(branch: str, steps: str) -> str:
    from alembic import command

    said = io.StringIO()
    command.upgrade(_config(branch, output_buffer=said, attributes={"dialect": "postgresql"}), steps, sql=True)
    return said.getvalue()
