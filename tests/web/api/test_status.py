"""The verdict over HTTP."""

import re
from datetime import timedelta
from importlib import resources

import httpx
import pytest

from redrive import Redrive
from redrive.core.durations import seconds
from redrive.operator.roster import SILENT_AFTER
from redrive.operator.verdict.judge import WROTE_MAX
from redrive.running import Service
from redrive.signs import COUNTS_EVERY
from redrive.web import health
from redrive.web.api import overview
from tests.web.conftest import client_of


async def test_the_whole_verdict_is_one_answer(local: httpx.AsyncClient, app: Redrive) -> None:
    """Title, troubles, quiet lines, eight figures and kinds; of one ledger too, and of none that is not there."""
    answer = await local.get("/api/status")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["title"], body["well"], body["troubles"]) == ("All is well", True, [])
    assert len(body["strip"]) == 8
    assert (await local.get("/api/status", params={"ledger": app.tasks.name})).status_code == 200
    assert (await local.get("/api/status", params={"ledger": "none"})).status_code == 404


async def test_it_needs_a_key(remote: httpx.AsyncClient) -> None:
    """As every look."""
    assert (await remote.get("/api/status")).status_code == 401


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_health_is_unwell_while_no_write_goes_through(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are answered; the proof is too old, and both say so."""
    monkeypatch.setattr(health, "HEALTH_FRESH_SECONDS", 0.0)
    while service.proof.age is None:
        await service.proof.prove()
    monkeypatch.setattr("redrive.chores.PROOF_MAX_AGE", seconds(0))
    async with client_of(service) as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["checks"]["database"].startswith("no write has gone through for ")
        [trouble] = (await client.get("/api/status")).json()["troubles"]
        assert (trouble["subject"], trouble["rank"]) == ("ledger_away", "stopped")
        monkeypatch.undo()
        monkeypatch.setattr(health, "HEALTH_FRESH_SECONDS", 0.0)
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "known_after",
    [
        pytest.param(COUNTS_EVERY, id="the tenth failure is counted"),
        pytest.param(SILENT_AFTER, id="a killed worker is missed"),
        pytest.param(WROTE_MAX, id="a locked store is noticed"),
    ],
)
def test_ten_seconds_are_enough_from_trouble_to_the_screen(known_after: timedelta) -> None:
    """By the moments at which it is passed on, however busy the machine is: somebody knows of it, an answer is made anew,
    and an open page asks for it.
    """
    script = resources.files("redrive.web").joinpath("static/live.js").read_text()
    [every] = re.findall(r"^const EVERY_MS = (\d+);$", script, re.MULTILINE)
    asks = timedelta(milliseconds=int(every))
    assert known_after + timedelta(seconds=overview.FRESH_SECONDS) + asks <= timedelta(seconds=10)
