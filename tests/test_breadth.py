"""What is left out shows nothing new: every shape and every store stays."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import breadth
from tests.ledgers.conftest import HOMES
from tests.ledgers.shapes import EVENTS, OWN, SHAPES


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breadth, "WIDE", False)


def test_each_shape_and_each_store_stays() -> None:
    """Each shape is there on one of the two databases, our own on both, and the items too."""
    kept = breadth.narrow(HOMES)
    assert {shape.name for store, shape, _ in kept if store != "aws"} == {shape.name for shape in SHAPES}
    assert [store for store, shape, _ in kept if shape is OWN] == ["sqlite", "postgres"]
    assert {store for store, *_ in kept} == {"sqlite", "postgres", "aws"}
    assert len(kept) == len(SHAPES) + 2


def test_a_claim_of_one_shape_keeps_its_stores() -> None:
    """Where none of the chosen shapes fits, all that fit stay: a claim does not leave a database."""
    of_events = [home for home in HOMES if home[1] is EVENTS]
    assert breadth.narrow(of_events) == [home for home in of_events if home[2] != "virtual" or home[0] == "sqlite"]


def test_all_of_them_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """`REDRIVE_TEST_WIDE` leaves nothing out."""
    monkeypatch.setattr(breadth, "WIDE", True)
    items: Any = [item("tests/web/test_pages.py", f"test_{n}", store) for n in "ab" for store in ("sqlite", "postgres")]
    assert breadth.narrow(HOMES) == HOMES
    assert breadth.without_repeats(items) == (items, [])


def test_what_stands_above_runs_once_on_postgres() -> None:
    """The first test of a file on both, the others on SQLite; who asks for a store or has the mark, on both."""
    above, below = "tests/web/test_pages.py", "tests/systems/flags/test_tables.py"

    def asks(store: str) -> None:
        """For its store."""

    items: Any = [item(above, name, store) for name in ("first", "second") for store in ("sqlite", "postgres")]
    items += [item(above, "marked", store, "every_store") for store in ("sqlite", "postgres")]
    items += [item(above, "asks", store, function=asks) for store in ("sqlite", "postgres")]
    items += [item(above, "only", "postgres"), item(above, "long", "sqlite", "wide")]
    items += [item(below, "any", store) for store in ("sqlite", "postgres")]
    run, left = breadth.without_repeats(items)
    assert [(one.originalname, one.callspec.params["store"]) for one in left] == [
        ("second", "postgres"),
        ("long", "sqlite"),
    ]
    assert len(run) + len(left) == len(items)


def test_what_takes_long_runs_on_the_store_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, wherever its file is; on all of them where all homes are asked for."""
    marks = {"long_on": pytest.mark.long_on("postgres").mark}
    above, stores = "tests/web/test_any.py", ("sqlite", "postgres", "dynamodb")
    first: Any = [item(above, "first", store) for store in stores]
    items: Any = [item(above, "long", store) for store in stores]
    for one in items:
        one.get_closest_marker = marks.get
    run, left = breadth.without_repeats(first + items)
    assert [one.callspec.params["store"] for one in run] == [*stores, "postgres"]
    assert [one.callspec.params["store"] for one in left] == ["sqlite", "dynamodb"]
    monkeypatch.setattr(breadth, "WIDE", True)
    assert breadth.without_repeats(items) == (items, [])


def item(path: str, name: str, store: str, *marks: str, function: Any = lambda: None) -> Any:
    """As much of a test as is looked at."""
    return SimpleNamespace(
        path=breadth.ROOT / path, originalname=name, name=f"{name}[{store}]", function=function,
        callspec=SimpleNamespace(params={"store": store}), get_closest_marker=lambda mark: mark in marks or None,
    )  # fmt: skip
