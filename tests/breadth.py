"""Where each claim is shown: in one home of every kind by default, in every home with `REDRIVE_TEST_WIDE=1`.

A claim about tables, locks or statements runs on every kind of ledger. A shape of table is then there once, on the database
where it differs most from our own: `NARROW` says where. What stands above the stores (routes, pages, commands, log lines, the
application, the engine, operators' acts and desks, what systems deliver and decide) asks ports that are shown to be alike in all stores
elsewhere, so it runs on SQLite, and the first test of each file on the others too: `ABOVE_STORES` says which files these are. There a
test that asks for its `store`, or has the mark `every_store`, still runs on both: its claim is of transactions, locks, pages or texts. What has the mark `wide` shows in a long way what others show in short ones; what has the mark
`long_on` is such a way that is gone once, on the store that it names.
"""

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from inspect import signature
from pathlib import Path

import pytest

from tests.ledgers.shapes import COMMANDS, EVENTS, FLAGS, JOBS, LEGACY, OWN, Shape

WIDE = bool(os.environ.get("REDRIVE_TEST_WIDE"))
ROOT = Path(__file__).parents[1]
NARROW = {
    # Two due columns and a word for two states; keys of uuid and tries that count as they start.
    "sqlite": (OWN, FLAGS, JOBS),
    # Instants in text beside columns of time; a schema, an enum and names in quotes; queues of PGMQ.
    "postgres": (OWN, EVENTS, LEGACY, COMMANDS),
}
OTHER_STORES = ("postgres", "dynamodb")
ABOVE_STORES = (
    "tests/cli/test_*.py",
    "tests/engine/test_asks.py",
    "tests/engine/test_effects.py",
    "tests/engine/test_keeper.py",
    "tests/engine/test_leases.py",
    "tests/engine/test_nap.py",
    "tests/engine/test_pauses.py",
    "tests/engine/test_stops.py",
    "tests/engine/test_worker*.py",
    "tests/http/test_*.py",
    "tests/lane/test_*.py",
    "tests/operator/test_acts.py",
    "tests/operator/test_gates.py",
    "tests/operator/test_operations.py",
    "tests/systems/*/test_cache.py",
    "tests/systems/*/test_logs.py",
    "tests/systems/*/test_policy.py",
    "tests/systems/*/test_routes.py",
    "tests/systems/flags/test_desk.py",
    "tests/systems/flags/test_intake.py",
    "tests/systems/flags/test_system.py",
    "tests/systems/flags/test_work.py",
    "tests/systems/relay/test_broker.py",
    "tests/systems/relay/test_dead_letters.py",
    "tests/systems/relay/test_desk.py",
    "tests/systems/relay/test_flow.py",
    "tests/systems/relay/test_intake.py",
    "tests/systems/relay/test_system.py",
    "tests/systems/triggers/test_client.py",
    "tests/systems/triggers/test_desk_alarms.py",
    "tests/systems/triggers/test_status_life.py",
    "tests/systems/triggers/test_limits.py",
    "tests/systems/triggers/test_routes_ownership.py",
    "tests/systems/triggers/test_work.py",
    "tests/systems/webhooks/test_desk.py",
    "tests/systems/webhooks/test_intake.py",
    "tests/systems/webhooks/test_system.py",
    "tests/test_alerting.py",
    "tests/test_app.py",
    "tests/test_system.py",
    "tests/test_testing.py",
    "tests/web/*test_*.py",
)

Chosen = tuple[str, Shape, str]
"""A store, a shape of table on it, and whose clock counts."""


def narrow(homes: Sequence[Chosen]) -> list[Chosen]:
    """One home of each kind among those that fit a test; all of a store where none of its chosen shapes fits."""
    if WIDE:
        return list(homes)
    kept: list[Chosen] = []
    for store in dict.fromkeys(home[0] for home in homes):
        there = [home for home in homes if home[0] == store]
        kept += [one for one in there if one[1] in NARROW.get(store, (one[1],)) and _usual(one)] or there
    return kept


def _usual(home: Chosen) -> bool:
    """PostgreSQL with instants from outside is for users' tests, and all systems are tested so."""
    return home[0] != "postgres" or home[2] != "virtual"


def without_repeats(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Which tests run, and which show in another store what they show on SQLite."""
    if WIDE:
        return list(items), []
    on_sqlite = {_named(item) for item in items if _store(item) == "sqlite"}
    first: dict[Path, str] = {}
    run: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("wide") or _is_long_elsewhere(item):
            left.append(item)
            continue
        repeats = _store(item) in OTHER_STORES and _named(item) in on_sqlite and _stands_above(item)
        # The first test of a file, in all its cases.
        (left if repeats and first.setdefault(item.path, _named(item)[1]) != _named(item)[1] else run).append(item)
    return run, left


def _named(item: pytest.Item) -> tuple[Path, str]:
    return item.path, getattr(item, "originalname", item.name)


def _store(item: pytest.Item) -> str | None:
    given = getattr(item, "callspec", None)
    return None if given is None else given.params.get("store")


def _is_long_elsewhere(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("long_on")
    return mark is not None and _store(item) != mark.args[0]


def _stands_above(item: pytest.Item) -> bool:
    """Who asks for its store by name, or names it in a mark, knows of a difference."""
    place = item.path.relative_to(ROOT).as_posix()
    marked = item.get_closest_marker("every_store") or item.get_closest_marker("long_on")
    if marked or "store" in signature(item.function).parameters:  # type: ignore[attr-defined]
        return False
    return any(fnmatch(place, one) for one in ABOVE_STORES)
