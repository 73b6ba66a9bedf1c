"""Telling the observers."""

from typing import Any

import pytest

from redrive.engine.announce import announce


class Hears:
    """Keeps what it is told, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[Any] = []
        self.error = error

    def observe(self, events: Any) -> None:
        self.heard.append(events)
        if self.error is not None:
            raise self.error


def test_each_observer_is_told_whatever_another_does(caplog: pytest.LogCaptureFixture) -> None:
    """The same events to all; one that fails is named in the log, with what it raised."""
    events: Any = ["started", "ended"]
    observers = [Hears(), Hears(OSError("no space left")), Hears()]
    announce(observers, events)
    assert [one.heard for one in observers] == [[events]] * 3
    [record] = caplog.records
    assert record.getMessage() == "Hears failed as an observer"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no space left"
