"""A handler that blocks the event loop is named on the page."""

from datetime import timedelta

import httpx
import pytest

from redrive.events import LoopBlocked
from redrive.running import Service
from redrive.web import blocked
from redrive.web.app import make_web
from redrive.web.blocked import BlockedLoops


async def test_who_blocked_the_loop_is_on_the_overview(service: Service):
    """With how long it was, as text, for whoever looks at the overview."""
    transport = httpx.ASGITransport(make_web(service), client=("127.0.0.1", 1))
    for observer in service.app.observers:
        observer.observe([LoopBlocked("redrive_task", ("pay<b>",), timedelta(seconds=7.61))])
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        page = (await client.get("/", headers={"Accept": "text/html"})).text
    assert "A handler blocked the event loop for 7.6s: pay&lt;b&gt;." in page


def test_it_is_forgotten_after_an_hour(monkeypatch: pytest.MonkeyPatch):
    """The latest of each ledger, and only lately."""
    loops, now = BlockedLoops(), [0.0]
    monkeypatch.setattr(blocked.time, "monotonic", lambda: now[0])
    for seconds in (2, 3):
        loops.observe([LoopBlocked("redrive_task", ("pay",), timedelta(seconds=seconds))])
    assert loops.said() == ["3s: pay"]
    now[0] = 3601.0
    assert loops.said() == []
