"""The relay as a service: its health and metrics, its wake-ups, and the command that runs it alone."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from redrive import Redrive, State, seconds
from redrive.app import WorkerSettings
from redrive.cli.preview import PUBLISHED
from redrive.errors import MissingExtraError
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay import system as service
from redrive.wiring import attach_systems
from tests import forks
from tests.web.conftest import client_of
from tests.web.conftest import running as serving

from .kit import Broker, retry, running, until

# --- settings ---------------------------------------------------------------------------------------------------------


def test_the_published_waits_are_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults wait as `redrive preview --policy relay` says, to the microsecond."""
    monkeypatch.undo()
    policy = service.backoff_policy(RelaySettings(_env_file=None))
    for key in ("m-1", "example"):
        for count in range(1, 12):
            assert policy.delay(count, key) == PUBLISHED["relay"].delay(count, key)
    assert policy.backoff.wait(40) == seconds(60)


@pytest.mark.usefixtures("no_settings")
def test_serve_needs_to_know_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RABBITMQ_URL `redrive serve` runs no relay, with it it does."""
    without, with_ = (Redrive(f"sqlite:///{tmp_path / name}.db") for name in "ab")
    attach_systems(without, ["relay"])
    monkeypatch.setenv("RABBITMQ_URL", "amqp://localhost:5672")
    attach_systems(with_, ["relay"])
    assert (list(without.systems), list(with_.systems)) == ([], ["relay"])


@pytest.mark.usefixtures("no_settings")
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its drivers the relay says what to install; its settings can be read all the same."""
    monkeypatch.setenv("RABBITMQ_URL", "amqp://localhost:5672")
    for name in [name for name in sys.modules if name.startswith("redrive.systems.relay")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    with pytest.raises(MissingExtraError, match=r"redrive\[rabbitmq\]"):
        attach_systems(Redrive(f"sqlite:///{tmp_path / 'a.db'}"), ["relay"])
    import redrive.systems.relay.settings  # noqa: F401


# --- the table --------------------------------------------------------------------------------------------------------


# --- health and metrics -----------------------------------------------------------------------------------------------


async def test_health_and_metrics(app: Redrive, broker: Broker) -> None:
    """The checks name the broker, and every metric of the contract is there with its numbers."""
    settings = broker.settings()
    Relay(app, settings)
    queue = await broker.queue()
    async with serving(app) as running_service, client_of(running_service) as client:
        await until(lambda: _is(client, "/ready", 200), "it is ready")
        health = (await client.get("/health")).json()
        assert (health["status"], health["checks"]) == ("ok", {"database": "ok", "rabbitmq": "ok"})
        await broker.send(
            settings, retry("m-1", queue), retry("m-2", queue, retry_count=3), retry("m-3", "nowhere"), b"\xff",
        )  # fmt: skip
        await broker.take(queue)
        await broker.take(settings.manual_review_queue)
        await broker.take(settings.invalid_queue)
        lane = app.lanes["retry_queue"]
        await until(lambda: _failed(lane), "the unroutable one was tried")
        scraped = (await client.get("/metrics")).text
    for line in (
        rf'retries_scheduled_total{{queue="{re.escape(queue)}"}} 2.0',
        rf'retries_executed_total{{queue="{re.escape(queue)}",status="success"}} 1.0',
        r'retries_executed_total{queue="nowhere",status="failed"} \d+',
        rf'retries_exhausted_total{{queue="{re.escape(queue)}"}} 1.0',
        r"retry_queue_depth 1.0",
        r"retry_oldest_due_seconds \d",
        r"retry_drift_seconds_count 1.0",
        r'retry_invalid_messages_total{reason="unparsable"} 1.0',
        r"retry_confirms_lost_total 0.0",
        r"service_up 1.0",
        r'redrive_tasks_added_total{kind="retry_queue",ledger="retry_queue"} 3.0',
    ):
        assert re.search(f"^{line}", scraped, re.MULTILINE), line


async def _is(client: httpx.AsyncClient, path: str, status: int) -> bool:
    return (await client.get(path)).status_code == status


async def _failed(lane: Any) -> bool:
    found = [task for task in (await lane.find(_waiting())).items if task.key == "m-3"]
    return bool(found) and "unroutable" in (found[0].last_error or "")


def _waiting() -> Any:
    from redrive import Filter

    return Filter(state=State.WAITING)


async def test_health_without_a_broker(app: Redrive, broker: Broker) -> None:
    """A broker that is away makes the service unwell and not ready; the database stays well."""
    Relay(app, broker.settings(rabbitmq_url="amqp://guest:guest@127.0.0.1:1/"))
    async with serving(app) as running_service, client_of(running_service) as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["checks"]) == (503, {"database": "ok", "rabbitmq": "away"})
        assert (await client.get("/ready")).status_code == 503


async def test_the_worker_looks_in_time_however_long_the_poll(app: Redrive, broker: Broker) -> None:
    """A message that arrives while nothing waits needs no safety net: neither the ten seconds that it is, nor a longer one."""
    assert broker.settings().poll == seconds(10)
    settings = broker.settings(base_delay_ms=700, max_delay_ms=700, retry_poll_interval_ms=3_600_000)
    relay = Relay(app, settings)
    assert relay._tune(WorkerSettings()).poll == settings.poll
    queue = await broker.queue()
    async with running(app, relay):
        await asyncio.sleep(0.3)  # the worker naps by now
        await broker.send(settings, retry("m-1", queue))
        await broker.take(queue)


# --- the command ------------------------------------------------------------------------------------------------------


async def test_relay_run(broker: Broker, tmp_path: Path) -> None:
    """`redrive relay run` says what it does, signs its log lines and messages, and ends with 0."""
    settings = broker.settings()
    queue = await broker.queue()
    environment = os.environ | {
        "DATABASE_URL": "sqlite:///relay.db", "RABBITMQ_URL": settings.rabbitmq_url, "RETRY_QUEUE": settings.retry_queue,
        "MANUAL_REVIEW_QUEUE": settings.manual_review_queue, "BASE_DELAY_MS": "20", "MAX_DELAY_MS": "20",
    }  # fmt: skip
    process = forks.run("relay", "run", "--port", "0", folder=tmp_path, log=tmp_path / "log", environment=environment)
    said: Callable[[], str] = (tmp_path / "log").read_text
    try:
        await until(lambda: "Ctrl-C stops" in said() or process.poll() is not None, "it has started", seconds=120)
        address = re.search(r"http://[\d.:]+/", said())
        assert address, said()
        async with httpx.AsyncClient(base_url=address[0], timeout=60) as client:
            await until(lambda: _is(client, "/ready", 200), "it is ready", seconds=120)
            await broker.send(settings, retry("m-1", queue))
            [message] = await broker.take(queue)
            assert message.headers["x-retry-scheduler"] == "retry-scheduler"
            assert (await client.get("/metrics")).status_code == 200
        await until(lambda: "retry_published" in said(), "it is told")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    lines = [json.loads(line) for line in said().splitlines() if line.startswith("{")]
    told = {line["event"]: line for line in lines if line["system"] == "relay"}
    assert {"broker_connected", "retry_scheduled", "retry_published"} <= set(told)
    assert {line["service"] for line in lines} == {"retry-scheduler"}
    assert (told["retry_published"]["message_id"], told["retry_published"]["retry_count"]) == ("m-1", 1)
    assert "payload" not in said()
    assert "guest:guest" not in said()
