"""Three roles, each tried by what it may do and by what it may not."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from redrive import Redrive, Task
from redrive.errors import UsageError
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.grants import grants
from redrive.ledgers.sql.migrate import migrate
from tests.servers import PostgresServer

ROLES = {"owner": "grants_owner", "worker": "grants_worker", "viewer": "grants_viewer"}


@pytest.fixture
async def granted(postgres: PostgresServer) -> AsyncIterator[dict[str, str]]:
    """A database whose tables were made by the owner; its URL for each role."""
    url = await postgres.create()
    sql = grants(schema="public", **ROLES)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())
        for role in ROLES.values():
            connection.execute(f"ALTER ROLE {role} LOGIN".encode())
    urls = {role: f"{url}&user={name}".replace("postgres:@", "") for role, name in ROLES.items()}
    database = open_database(urls["owner"])
    await migrate(database, ["flags", "relay", "triggers", "webhooks"])
    await database.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())  # once more, as after an upgrade
    yield urls
    await postgres.drop(url)


def change(connection: Connection, statement: str) -> int:
    return connection.execute(text(statement)).rowcount


async def test_the_worker_works_and_builds_nothing(granted: dict[str, str]):
    """It adds, runs and settles tasks; it makes and drops no table."""
    app, ran = Redrive(granted["worker"]), list[str | None]()

    @app.handler
    async def mail(task: Task) -> None:
        ran.append(task.key)

    async with app:
        await app.add("mail", key="m-1")
        await app.work_off(app.tasks)
        assert ran == ["m-1"]
        for statement in ("CREATE TABLE mine (n int)", "DROP TABLE redrive_task"):
            with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"):
                await app.database.write(change, statement)


async def test_the_viewer_sees_all_and_changes_nothing(granted: dict[str, str]):
    """Every table that the owner has made can be read; none can be written."""
    database = open_database(granted["viewer"])
    tables = await database.read(
        lambda c: c.execute(text("SELECT relname FROM pg_class WHERE relowner = 'grants_owner'::regrole AND relkind = 'r'"))
        .scalars()
        .all()
    )  # fmt: skip
    assert {"redrive_task", "redrive_version", "retry_queue"} <= set(tables)
    for table in tables:
        await database.read(lambda c, table=table: c.execute(text(f'SELECT count(*) FROM "{table}"')).scalar_one())
    with pytest.raises(ProgrammingError, match="permission denied"):
        await database.write(change, "DELETE FROM redrive_task")
    await database.close()


def test_names_are_checked():
    """What goes into SQL is a plain name, and three roles are three."""
    for name in ("", "x; DROP TABLE t", 'a"b', "x" * 64):
        with pytest.raises(UsageError, match="cannot be a name here"):
            grants(schema=name, **ROLES)
    with pytest.raises(UsageError, match="three names"):
        grants(schema="public", owner="a", worker="a", viewer="b")
