"""The inbox as part of a service: readiness, the page, metrics, logs, settings, and a real server that gets huge bodies."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from redrive import PermanentError, Redrive, Task, TransientError
from redrive.cli.preview import PUBLISHED
from redrive.errors import SettingsError
from redrive.observe.logs import LogObserver
from redrive.settings import Settings, load, load_settings
from redrive.systems.webhooks import Webhooks, WebhookSettings
from redrive.web.app import make_web
from redrive.wiring import Service, attach_systems

from .conftest import Make, at_work, execute, rows, webhook


async def until(holds: Any) -> None:
    """Come back when it holds."""
    ends = time.monotonic() + 60
    while not await holds():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


async def test_ready_when_the_store_is_open_and_the_loop_runs(make: Make):
    """503 before, 200 then, 503 after; a webhook is taken in and processed meanwhile."""
    app, webhooks = make()
    done = asyncio.Event()

    @webhooks.handler("*")
    async def handle(task: Task) -> None:
        done.set()

    service = Service(app, Settings(_env_file=None))
    transport = httpx.ASGITransport(make_web(service), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert (await client.get("/ready")).status_code == 503
        running = asyncio.create_task(service.run())
        await until(lambda: _answers(client, "/ready", 200))
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/webhooks", json=webhook())).status_code == 202
        await asyncio.wait_for(done.wait(), 60)
        service.stop()
        await running
        assert (await client.get("/ready")).status_code == 503


async def _answers(client: httpx.AsyncClient, path: str, status: int) -> bool:
    return (await client.get(path)).status_code == status


async def test_a_gap_is_visible_on_the_page(make: Make):
    """A type that nobody handles is named."""
    app, webhooks = make()
    webhooks.handler("order.*")(_nothing)
    async with at_work(app) as client:
        await client.post("/webhooks", json=webhook(event_type="invoice.paid"))
        page = (await client.get("/")).text
    assert "events" in page
    assert "invoice.paid" in page


def _nothing(task: Task) -> None:
    pass


async def test_a_library_user_hears_nothing(make: Make, capfd: pytest.CaptureFixture[str]):
    """Without an observer for logs there are none, also for what is refused."""
    _, webhooks = make(queue_maxsize=1)
    for number in range(4):
        await webhooks.accept("a", {}, idempotency_key=f"k{number}")
    await webhooks.accept("b", {}, idempotency_key="k0")
    said = capfd.readouterr()
    assert "webhook_" not in said.out + said.err


async def test_the_service_cleans_up(make: Make):
    """At its start and then every so often: what ended long ago goes, what waits stays."""
    app, webhooks = make()
    webhooks.handler("order.*")(_nothing)
    await app.open()
    at = "'2020-01-01T00:00:00Z'"
    made = ", ".join(
        f"('{number}', 'k{number}', 'unknown', '{{}}', '{status}', {at}, {at})"
        for number, status in enumerate(["completed"] * 1500 + ["failed"] * 2 + ["pending"])
    ).replace(":", "\\:")
    await execute(
        app,
        "INSERT INTO events (id, idempotency_key, event_type, payload, status, created_at, updated_at) VALUES " + made,
    )
    async with at_work(app):

        async def one_is_left() -> bool:
            return [row["status"] for row in await rows(app)] == ["pending"]

        await until(one_is_left)


async def test_metrics_and_logs_by_their_names(make: Make, capfd: pytest.CaptureFixture[str]):
    """Every step is counted and said at the level that is promised, with the request's id; payloads are not logged."""
    logged: list[dict[str, Any]] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        logged.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, keep])
    try:
        app, webhooks = make(queue_maxsize=1, retry_base_delay=0.01)
        app.observers.append(LogObserver())
        gate = asyncio.Event()
        tries = iter([TransientError("not yet"), None])

        @webhooks.handler("flaky")
        async def flaky(task: Task) -> None:
            await gate.wait()
            if error := next(tries):
                raise error

        @webhooks.handler("poison")
        async def poison(task: Task) -> None:
            raise PermanentError("never")

        async with at_work(app) as client:
            first = await client.post("/webhooks", json=webhook("a", "flaky", card="4111-1111"))
            await until(lambda: _is(client, "a", "processing"))  # what nobody has started counts as waiting
            await client.post("/webhooks", json=webhook("a", "flaky"))
            await client.post("/webhooks", json=webhook("a", "other"))
            await client.post("/webhooks", content=b"{", headers={"Content-Type": "application/json"})
            await client.post("/webhooks", json=webhook("b", "poison"))
            await until(lambda: _is(client, "b", "failed"))
            await client.post("/webhooks", json=webhook("u1", "unknown"))
            await client.post("/webhooks", json=webhook("u2", "unknown"))
            gate.set()
            await until(lambda: _is(client, "a", "completed"))
            full = await client.post("/webhooks", json=webhook("c", "unknown"))
            assert full.status_code == 429
            metrics = (await client.get("/metrics")).text
    finally:
        structlog.reset_defaults()

    def measured(name: str) -> float:
        return float(re.search(rf"^{re.escape(name)} ([\d.e+-]+)$", metrics, re.MULTILINE)[1])

    assert measured('webhook_events_total{result="accepted"}') == 4
    assert measured('webhook_events_total{result="duplicate"}') == 2
    assert measured('webhook_events_total{result="rejected"}') == 2
    assert measured("webhook_queue_depth") == 2
    assert measured("webhook_processing_errors_total") == 2
    assert measured("webhook_processing_duration_seconds_count") == 3

    ours = [line for line in logged if line.get("system") == "webhooks"]
    said = {line["event"]: line for line in ours}
    for event, level in (
        ("webhook_accepted", "info"),
        ("webhook_duplicate", "info"),
        ("webhook_started", "info"),
        ("webhook_completed", "info"),
        ("webhook_retry_scheduled", "info"),
        ("webhook_queue_full", "warning"),
        ("webhook_key_reused", "warning"),
        ("webhook_dead", "error"),
    ):
        assert said[event]["level"] == level
        assert {"event_type", "idempotency_key"} <= set(said[event])
    accepted = [line for line in ours if line["event"] == "webhook_accepted"]
    assert len({line["request_id"] for line in accepted}) == 4
    assert accepted[0]["request_id"] == first.headers["X-Request-ID"]
    assert not [line for line in logged if line["event"] in ("task_added", "task_done", "task_dead")]
    assert "4111-1111" not in str(logged)


async def _is(client: httpx.AsyncClient, key: str, status: str) -> bool:
    return (await client.get("/webhooks", params={"idempotency_key": key})).json()["status"] == status


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder and no variable of ours."""
    for name in (*Settings.model_fields, *WebhookSettings.model_fields):
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("clean")
def test_the_defaults_are_those_of_the_spec(monkeypatch: pytest.MonkeyPatch):
    """And give the policy that `redrive preview --policy webhooks` shows."""
    given = load(WebhookSettings)
    assert (given.worker_count, given.queue_maxsize, given.max_attempts) == (85, 1000, 5)
    assert (given.retry_base_delay, given.retry_max_delay) == (timedelta(seconds=5), timedelta(seconds=300))
    assert (given.retention_days, given.cleanup_interval_hours, given.webhook_max_bytes) == (30, 1, 1 << 20)
    app = Redrive("sqlite:///a.db")
    attach_systems(app, ["webhooks"])
    assert app.systems["webhooks"].policy == PUBLISHED["webhooks"]
    for name, text in (("RETRY_BASE_DELAY", "2m"), ("RETRY_MAX_DELAY", "600"), ("WEBHOOK_OPEN", "true")):
        monkeypatch.setenv(name, text)
    given = load(WebhookSettings)
    assert (given.retry_base_delay, given.retry_max_delay) == (timedelta(minutes=2), timedelta(minutes=10))
    assert given.webhook_open


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORKER_COUNT", "0"),
        ("QUEUE_MAXSIZE", "0"),
        ("MAX_ATTEMPTS", "0"),
        ("RETRY_BASE_DELAY", "soon"),
        ("WEBHOOK_MAX_BYTES", "2000000"),
        ("WEBHOOK_FORWARD_URL", "ftp://example.com/"),
        ("CLEANUP_INTERVAL_HOURS", "0"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str):
    """Before anything starts."""
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=name):
        Webhooks(Redrive("sqlite:///a.db"))


@pytest.mark.usefixtures("clean")
def test_a_path_is_a_database_too(monkeypatch: pytest.MonkeyPatch):
    """DB_PATH names a SQLite file; DATABASE_URL wins."""
    monkeypatch.setenv("DB_PATH", "data/hooks.db")
    assert load_settings().database_url == "sqlite:///data/hooks.db"
    monkeypatch.setenv("DB_PATH", "/data/hooks.db")
    assert load_settings().database_url == "sqlite:////data/hooks.db"
    monkeypatch.setenv("DATABASE_URL", "postgresql://a@b/c")
    assert load_settings().database_url == "postgresql://a@b/c"


def test_a_second_inbox_is_refused(tmp_path: Path):
    """An application has one table `events`."""
    app = Redrive(f"sqlite:///{tmp_path / 'a.db'}")
    Webhooks(app, WebhookSettings(_env_file=None), sources=())
    with pytest.raises(ValueError, match="webhooks already"):
        Webhooks(app, WebhookSettings(_env_file=None), sources=())


# --- a real server ----------------------------------------------------------------------------------------------------

BODY_BYTES = 64 << 20
GROWTH_BYTES_MAX = 24 << 20


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """`redrive serve` with the sample application in a process of its own; its pid and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive", "serve", "--app", "redrive.sample:app", "--port", str(port)],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=os.environ | {"DATABASE_URL": f"sqlite:///{tmp_path}/a.db", "REDRIVE_SYSTEMS": "webhooks"},
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            ends = time.monotonic() + 60
            while not _is_ready(client):
                assert process.poll() is None and time.monotonic() < ends, (tmp_path / "log").read_text()
                time.sleep(0.05)
        yield process.pid, port
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


async def test_huge_bodies_cost_no_memory(served: tuple[int, int]):
    """Sixty-four megabytes in pieces, several at once: 413 each, and the server's memory hardly grows. It goes on to serve."""
    pid, port = served
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = (
        f"POST /webhooks HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()

    async def flood() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        try:
            for _ in range(BODY_BYTES // 0x10000):
                writer.write(piece)
                await writer.drain()
            return await reader.readline()
        finally:
            writer.close()

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for number in range(20):
            await client.post("/webhooks", json=webhook(f"warm-{number}"))
        before = _peak_bytes(pid)
        answers = await asyncio.gather(*(flood() for _ in range(3)))
        assert all(answer.startswith(b"HTTP/1.1 413 ") for answer in answers), answers
        grown = _peak_bytes(pid) - before
        print(f"three bodies of {BODY_BYTES >> 20} MB: memory grew by {grown / (1 << 20):.1f} MB")
        assert grown < GROWTH_BYTES_MAX
        assert (await client.post("/webhooks", json=webhook("after"))).status_code == 202
        page = (await client.get("/webhooks", params={"limit": 1000})).json()
    assert len(page["webhooks"]) == 21


async def test_the_sample_shows_retries(served: tuple[int, int]):
    """`flaky.*` waits for its retry after the first try, `poison.*` too, and all others are completed at once."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served[1]}", timeout=60) as client:
        for event_type in ("flaky.hello", "poison.hello", "order.paid"):
            taken = await client.post("/webhooks", json=webhook(event_type, event_type))
            assert taken.status_code == 202
        await until(lambda: _is(client, "order.paid", "completed"))

        async def waits(key: str) -> bool:
            shown = (await client.get("/webhooks", params={"idempotency_key": key})).json()
            return shown["status"] == "pending" and shown["attempts"] == 1 and shown["retry_after"] is not None

        await until(lambda: waits("flaky.hello"))
        await until(lambda: waits("poison.hello"))
