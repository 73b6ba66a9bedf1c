"""The tables that are made, and PGMQ as an extension of the server: `redrive migrate` takes it from there, and the bus works on it as
on PGMQ's own SQL.

PostgreSQL finds the extension in a folder that the test makes of the same SQL, as a package of the distribution would.
"""

import tempfile
import warnings
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine import make_url

from redrive import Redrive
from redrive.ledgers.sql.migrate import migrate
from redrive.systems.commands import Commands, Registry, RetryPolicy
from redrive.systems.commands.tables import make_tables
from redrive.testing import VirtualClock
from tests.servers import PostgresServer
from tests.systems.commands.conftest import BAD, DOMAIN, TYPE, Bench

CONTROL = "default_version = '{version}'\nschema = 'pgmq'\nrelocatable = false\nsuperuser = false\n"


@pytest.fixture
async def with_extension(postgres: PostgresServer) -> AsyncIterator[str]:
    """The URL of an empty database whose server has the extension."""
    package = resources.files("pgmq") / "sql"
    version = (package / "VERSION").read_text().strip()
    with tempfile.TemporaryDirectory(prefix="redrive-extension-") as made:
        folder = Path(made) / "extension"
        folder.mkdir()
        Path(made).chmod(0o755)  # the server runs as a user of its own when the tests are root
        (folder / "pgmq.control").write_text(CONTROL.format(version=version))
        (folder / f"pgmq--{version}.sql").write_text((package / "pgmq.sql").read_text())
        url = await postgres.create()
        name = make_url(url).database
        postgres.execute(f"ALTER DATABASE \"{name}\" SET extension_control_path = '{made}:$system'")
        yield url


async def test_the_extension_is_preferred(with_extension: str, clock: VirtualClock) -> None:
    """It is created and not its SQL run beside it, and commands are sent, retried, replied to and sent again by people."""
    app, handlers = Redrive(with_extension, clock=clock), Registry()
    bus = Commands(app, handlers=handlers, retry_policy=RetryPolicy())
    bench = Bench(app, bus, handlers, clock, "postgres")
    handlers.handler(DOMAIN, TYPE)(bench.handle)
    for _ in range(2):  # the second time there is nothing to do
        await migrate(app.database, ["commands"])

    def members(connection: Connection) -> Any:
        found = "SELECT count(*) FROM pg_extension e JOIN pg_depend ON refobjid = e.oid AND deptype = 'e'"
        return connection.execute(text(f"{found} WHERE extname = 'pgmq'")).scalar_one()

    async with app:
        assert await app.database.read(members) > 10
        bench.raises, bench.result = [ConnectionError("reset")], "paid"
        await bench.send()
        await bench.work()
        assert await bench.message() == "queued for 60 s"
        bench.advance(seconds=60)
        await bench.work()
        assert (await bench.get()).status == "COMPLETED"
        assert await bench.message() == "deleted"

        bench.raises = [BAD]
        await bench.send("c-2")
        await bench.work()
        assert await bench.message("c-2") == "archived"
        await bus.troubleshooting.retry(DOMAIN, "c-2", "ada")
        await bench.work()
        assert (await bench.get("c-2")).status == "COMPLETED"
        assert await bench.replies() == [("SUCCESS", "paid"), ("SUCCESS", "paid")]


async def test_the_migration_makes_these_tables(bench: Bench) -> None:
    """Columns, constraints and indexes of the code are those of the migration."""
    tables = make_tables(has_queues=bench.app.database.dialect.has_queues)
    metadata = tables.command.metadata

    def look(connection: Connection) -> tuple[list[Any], list[str], list[str]]:
        names = {table.name for table in metadata.sorted_tables}
        options = {
            "compare_type": True,
            "compare_server_default": False,
            "include_schemas": True,
            "include_name": lambda name, kind, parents: (
                name == metadata.schema if kind == "schema" else kind != "table" or name in names
            ),
        }
        context = MigrationContext.configure(connection, opts=options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it cannot read indexes on expressions back
            different = compare_metadata(context, metadata)
            found = inspect(connection)
            unique = found.get_unique_constraints(tables.command.name, schema=metadata.schema)
            checks = found.get_check_constraints(tables.command.name, schema=metadata.schema)
        return (
            different,
            [column for one in unique for column in one["column_names"]],
            sorted(str(one["name"]) for one in checks),
        )

    different, unique, checks = await bench.app.database.read(look)
    assert different == []
    assert unique == ["domain", "command_id"]
    prefix = "commandbus_" if bench.store == "sqlite" else ""
    assert checks == [f"{prefix}command_attempts_check", f"{prefix}command_status_check"]


async def test_the_audit_is_append_only(bench: Bench) -> None:
    """What it says can be neither changed nor deleted, and the bus goes on writing to it."""
    name = "commandbus_audit" if bench.store == "sqlite" else "commandbus.audit"
    await bench.send()
    truncate = [] if bench.store == "sqlite" else [f"TRUNCATE {name}"]
    for statement in (f"UPDATE {name} SET event_type = 'FORGED'", f"DELETE FROM {name}", *truncate):
        with pytest.raises(Exception, match="append-only"):
            await bench.app.database.write(lambda connection, act=statement: connection.execute(text(act)))
    await bench.work()
    assert await bench.events() == ["SENT", "RECEIVED", "COMPLETED"]
