"""`make demo`: every chart has something to show within a minute."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from redrive import demo

from .said import Started
from .test_serve import address

Start = Callable[..., Started]


def lives(client: httpx.Client) -> bool:
    """Whether each of the eight charts, and the list of causes, has data."""
    overview = client.get("/api/overview").json()
    series = client.get("/api/series").json()
    states, tried = overview["states"], [one["amount"] for one in overview["tries"]]
    return (
        all(states[name] for name in ("waiting", "done", "dead", "cancelled"))
        and overview["success_rate"] is not None
        and sum(amount > 0 for amount in tried) >= 3
        and overview["took"]["p99"] is not None
        and overview["drift"] is not None
        and any(one["dead"] for one in series["points"])
        and any(one["waiting"] is not None for one in series["depth"])
        and len(client.get("/api/groups").json()) >= 1
    )


def test_every_chart_lives_within_a_minute(start: Start, folder: Path):
    """A real process, a real port, and nobody who helps."""
    service = start(
        "serve",
        "--app",
        "redrive.demo:app",
        "--port",
        "0",
        DATABASE_URL=f"sqlite:///{folder / 'demo.db'}",
        LOG_LEVEL="error",
    )
    ends = time.monotonic() + 60
    with httpx.Client(base_url=address(service), timeout=10) as client:
        while not lives(client):
            assert time.monotonic() < ends
            time.sleep(0.5)
    assert service.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("running_seconds", "is_out"), [(0, False), (20, True), (39, True), (41, False), (140, True)])
def test_the_outage_begins_and_heals(running_seconds: float, is_out: bool):
    """Within the first minute, and again every two."""
    assert demo.is_out(running_seconds) is is_out
