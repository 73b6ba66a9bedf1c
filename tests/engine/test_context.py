"""What a handler may ask for beside its task, and what it is told where it cannot be had."""

from types import SimpleNamespace
from typing import Any

import pytest

from redrive.engine.context import Context
from redrive.errors import UsageError
from tests.core.test_decide import claim_of

NO_PROGRESS = "no progress can be kept here: keep such tasks in a table of SQLite or PostgreSQL"


def context(**given: Any) -> Context:
    """The context of a run."""
    return Context(claim=claim_of(), attempts_max=3, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, NO_PROGRESS),
        ({"ledger": SimpleNamespace(progress=None), "loop": object()}, NO_PROGRESS),
        ({"ledger": SimpleNamespace(progress=object())}, NO_PROGRESS),
        (
            {"connection": object(), "ledger": SimpleNamespace(progress=object()), "loop": object()},
            "a transactional handler ends whole or not at all: it has no progress to keep",
        ),
    ],
    ids=["outside a worker", "in a ledger that keeps none", "without a loop", "in a transaction"],
)
def test_where_no_progress_is_kept(given: dict[str, Any], said: str) -> None:
    """Telling it, and leaving something for the next try, says so."""
    for tell in (lambda: context(**given).progress(0.5), lambda: context(**given).checkpoint):
        with pytest.raises(UsageError) as refused:
            tell()
        assert str(refused.value) == said


def test_an_effect_needs_a_probe() -> None:
    """A handler that was registered without one is told how."""
    with pytest.raises(UsageError) as refused:
        context().effect()
    assert str(refused.value) == (
        "register the handler with effect=Effect(probe=…): nobody could find out whether it happened"
    )
    entry: Any = object()
    assert context(entry=entry).effect() is entry


def test_a_key_for_an_effect_needs_a_ledger() -> None:
    """It holds the ledger's name, so that no other one's task has the same."""
    with pytest.raises(UsageError) as refused:
        _ = context().effect_key
    assert str(refused.value) == "only a handler that redrive runs has a key for its effect"
    one, other = (context(ledger=SimpleNamespace(name=name)) for name in ("jobs", "mails"))
    assert one.effect_key == context(ledger=SimpleNamespace(name="jobs")).effect_key != other.effect_key


async def test_words_may_be_left_out() -> None:
    """A share alone is progress too."""
    told: list[Any] = []
    progress: Any = SimpleNamespace(tell=lambda *given: told.append(given))
    context(told=progress).progress(0.5)
    context(told=progress).progress(0.75, "page 3")
    assert told == [(0.5, ""), (0.75, "page 3")]


def test_without_stops_nobody_wants_a_run_to_end() -> None:
    """A context that a test makes is not cancelled."""
    assert context().cancelled is False
    asked = context(stops=SimpleNamespace(tell=lambda claim: True))
    assert asked.cancelled is True
