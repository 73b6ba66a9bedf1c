"""The homes that the conformance suite runs in: every shape on SQLite and on PostgreSQL, there with the server's clock."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ledgers.homes import Home, ServerClock, build, execute, open_home, wipe
from ledgers.shapes import EVENTS, SHAPES, Shape
from servers import Migrated

from redrive.ledgers.open import open_database
from redrive.testing import VirtualClock

HOMES = [
    *(("sqlite", shape, "virtual") for shape in SHAPES),
    *(("postgres", shape, "server") for shape in SHAPES),
    # With a virtual clock PostgreSQL gets instants instead of spans: other statements, in users' tests only.
    *(("postgres", shape, "virtual") for shape in (EVENTS,)),
]


@pytest.fixture
async def url(migrated: Migrated) -> str:
    """The URL of a new database with redrive's own tables and no others: names that systems use are free here."""
    return await migrated([])


_built: dict[tuple[str, str, str], str] = {}


def _name(home: tuple[str, Shape, str]) -> str:
    store, shape, clock = home
    return f"{store}{'-virtual' if (store, clock) == ('postgres', 'virtual') else ''}-{shape.name.replace(' ', '')}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "homes(fits): run the test only over tables for which `fits(ledger_table)` is true"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for a home those that fit it: what cannot apply is not run, rather than skipped."""
    if "home" in metafunc.fixturenames:
        fits = [mark.args[0] for mark in metafunc.definition.iter_markers("homes")]
        chosen = [home for home in HOMES if all(fit(home[1].on(home[0])) for fit in fits)]
        metafunc.parametrize("home", chosen, ids=[_name(home) for home in chosen], indirect=True)


@pytest.fixture
async def home(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Home]:
    """A ledger of one shape on one database, empty."""
    store, shape, clock_kind = request.param
    known = (store, shape.name, clock_kind)
    if store == "sqlite":
        if known not in _built:
            location = tmp_path_factory.mktemp("built") / "built.db"
            await build(f"sqlite:///{location}", shape, store)
            _built[known] = str(location)
        shutil.copy(_built[known], tmp_path / "test.db")
        url = f"sqlite:///{tmp_path / 'test.db'}"
    else:
        server = request.getfixturevalue("postgres")
        if known not in _built:
            url = await server.create()
            await build(url, shape, store)
            if clock_kind == "server":
                database = open_database(url)
                await execute(database, ServerClock.SETUP)
                await database.close()
            _built[known] = url
        url = _built[known]
        await wipe(url, shape, store)
    opened = await open_home(store, shape, url, ServerClock(url) if clock_kind == "server" else VirtualClock())
    yield opened
    await opened.close()
