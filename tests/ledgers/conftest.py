"""The homes that the conformance suite runs in: every shape on SQLite and on PostgreSQL, there with the server's clock.

By default those of `tests/breadth.py`, which are of every kind; all of them with `REDRIVE_TEST_WIDE`.
"""

import shutil
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.partitions import partition
from redrive.testing import VirtualClock
from tests.breadth import narrow
from tests.ledgers.aws.homes import DELIVERIES, ItemGround
from tests.ledgers.homes import START, Ground, Home, ServerClock, build, execute
from tests.ledgers.shapes import EVENTS, JOBS, OWN, SHAPES, Shape
from tests.servers import Migrated, portable

STORES = ("sqlite", "postgres")
HOMES = [
    *(("sqlite", shape, "virtual") for shape in SHAPES),
    *(("postgres", shape, "server") for shape in SHAPES),
    # With a virtual clock PostgreSQL gets instants instead of spans: other statements, in users' tests only.
    *(("postgres", shape, "virtual") for shape in (EVENTS,)),
    ("aws", DELIVERIES, "virtual"),
]

PORTABLE_HOMES = [("postgres", shape, "portable") for shape in (OWN, JOBS)]
"""For modules that say `HOMES = "portable"`. All of them with all tests: `REDRIVE_TEST_PORTABLE`."""
PARTITIONED_HOMES = [("postgres", OWN, "partitioned")]
"""For modules that say `HOMES = "partitioned"`: the history is in partitions of a day."""
_OTHERS = {"portable": PORTABLE_HOMES, "partitioned": PARTITIONED_HOMES}


@pytest.fixture
async def url(migrated: Migrated) -> str:
    """The URL of a new database with redrive's own tables and no others: names that systems use are free here."""
    return await migrated([])


_built: dict[tuple[str, str, str], str] = {}


def _name(home: tuple[str, Shape, str]) -> str:
    store, shape, clock = home
    return f"{store}{f'-{clock}' if store == 'postgres' and clock != 'server' else ''}-{shape.name.replace(' ', '')}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "homes(fits): run the test only over tables for which `fits(ledger_table)` is true"
    )
    config.addinivalue_line("markers", "on_store(store): run the test only on this database")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Given are the items of other folders too."""
    share_a_loop(items, Path(__file__).parent)


def share_a_loop(items: list[pytest.Item], folder: Path) -> None:
    """All tests of a folder with a home share an event loop, because they share its connections."""
    for item in items:
        if isinstance(item, pytest.Function) and "home" in item.fixturenames and item.path.is_relative_to(folder):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for a home those that fit it: what cannot apply is not run, rather than skipped."""
    if "home" in metafunc.fixturenames:
        fits = [mark.args[0] for mark in metafunc.definition.iter_markers("homes")]
        stores = [mark.args[0] for mark in metafunc.definition.iter_markers("on_store")] or getattr(
            metafunc.module, "STORES", STORES
        )
        homes = _OTHERS.get(getattr(metafunc.module, "OTHER_HOMES", ""), HOMES)
        fitting = [home for home in homes if home[0] in stores and all(fit(home[1].on(home[0])) for fit in fits)]
        every = homes is not HOMES or getattr(metafunc.module, "EVERY_HOME", False)
        chosen = fitting if every else narrow(fitting)
        metafunc.parametrize("home", chosen, ids=[_name(home) for home in chosen], indirect=True)


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note a failure: whatever it left behind, the next test must not inherit it."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def grounds() -> AsyncIterator[dict[tuple[str, str, str], Ground | ItemGround]]:
    """The grounds of this run, by store, shape and clock."""
    made: dict[tuple[str, str, str], Ground | ItemGround] = {}
    yield made
    for ground in made.values():
        await ground.close()


@pytest_asyncio.fixture(loop_scope="session")
async def home(
    request: pytest.FixtureRequest,
    grounds: dict[tuple[str, str, str], Ground | ItemGround],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Home]:
    """A ledger of one shape on one database, empty."""
    store, shape, clock_kind = request.param
    known = (store, shape.name, clock_kind)
    if known not in grounds:
        if store == "aws":
            grounds[known] = await ItemGround.at(request.getfixturevalue("aws"))
        elif store == "sqlite":
            if known not in _built:
                location = tmp_path_factory.mktemp("built") / "built.db"
                await build(f"sqlite:///{location}", shape, store)
                _built[known] = str(location)
            url = f"sqlite:///{shutil.copy(_built[known], tmp_path_factory.mktemp('ground') / 'test.db')}"
        else:
            server = request.getfixturevalue("postgres")
            if known not in _built:
                url = await server.create()
                await build(url, shape, store)
                if clock_kind != "virtual":
                    database = open_database(url)
                    if clock_kind == "partitioned":
                        await partition(database, "daily", None)
                        await execute(database, [f"SELECT redrive_keep_partitions('{START.isoformat()}')"])
                    await execute(database, ServerClock.SETUP)
                    await database.close()
                _built[known] = url
            url = _built[known]
        if store != "aws":
            through = request.getfixturevalue("postgres").through(url) if store == "postgres" else url
            if clock_kind == "portable":
                through = portable(through)
            clock = VirtualClock() if clock_kind == "virtual" else ServerClock(url)
            grounds[known] = await Ground.at(store, shape, url, clock, through=through)
    opened = await grounds[known].home()
    yield opened
    await opened.leave()
    if request.node.stash.get(_failed, False) or not grounds[known].intact:
        await grounds.pop(known).close()
