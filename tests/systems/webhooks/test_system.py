"""The inbox as a whole: the tries and the end of a webhook, as part of a service, and a real server that gets huge bodies."""

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
from sqlalchemy import text

from redrive import PermanentError, Redrive, Snoozed, State, Task, days, hours, seconds
from redrive.app import WorkerSettings
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.webhooks import Webhooks, WebhookSettings
from redrive.testing import VirtualClock, drain
from redrive.web.app import make_web

from .conftest import Inbox, Make, at_work, execute, has_status, rows, until, webhook


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


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_second_inbox_is_refused(tmp_path: Path):
    """An application has one table `events`."""
    app = Redrive(f"sqlite:///{tmp_path / 'a.db'}")
    Webhooks(app, WebhookSettings(_env_file=None), sources=())
    with pytest.raises(ValueError, match="webhooks already"):
        Webhooks(app, WebhookSettings(_env_file=None), sources=())


# --- a real server ----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
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
        [sys.executable, "-m", "redrive", "serve", "--app", "examples.sample:app", "--port", str(port)],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env=os.environ | {"DATABASE_URL": f"sqlite:///{tmp_path}/a.db", "REDRIVE_SYSTEMS": "webhooks", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            ends = time.monotonic() + 150
            while not _is_ready(client):
                assert process.poll() is None and time.monotonic() < ends, (tmp_path / "log").read_text()
                time.sleep(0.05)
        yield process.pid, port
        process.send_signal(signal.SIGTERM)
        assert process.wait(150) == 0
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
        await until(lambda: has_status(client, "order.paid", "completed"))

        async def waits(key: str) -> bool:
            shown = (await client.get("/webhooks", params={"idempotency_key": key})).json()
            return shown["status"] == "pending" and shown["attempts"] == 1 and shown["retry_after"] is not None

        await until(lambda: waits("flaky.hello"))
        await until(lambda: waits("poison.hello"))


async def test_delays_are_those_of_the_spec(inbox: Inbox, clock: VirtualClock):
    """10, 20, 40, 80 s, then dead at the fifth failure, with attempts 5 and no time left to wait for."""
    app, webhooks = inbox
    began = clock.now()
    receipt = await webhooks.accept("a", {"fail": True}, idempotency_key="k")
    for attempts, due in ((1, 10), (2, 30), (3, 70), (4, 150)):
        await drain(app, clock=clock, until=timedelta(0))
        task = await webhooks.lane.get_by_id(receipt.id)
        assert task.state is State.WAITING
        assert (task.failures, task.due_at) == (attempts, began + seconds(due))
        clock.advance(task.due_at - clock.now())
    await drain(app, clock=clock, until=timedelta(0))
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["retry_after"]) == ("failed", 5, None)
    assert row["last_error"] == "ValueError: not today"
    assert (row["lease_until"], row["claim_id"]) == (None, None)


async def test_settings_change_waits_and_tries(make: Make, clock: VirtualClock):
    """RETRY_MAX_DELAY cuts the waits, also where it is shorter than the first; MAX_ATTEMPTS ends them."""
    for base, cap, attempts, waits in ((5, 300, 8, [10, 20, 40, 80, 160, 300, 300]), (200, 300, 3, [300, 300])):
        _, webhooks = make(retry_base_delay=base, retry_max_delay=cap, max_attempts=attempts)
        policy = webhooks.policy
        assert policy.failures_max == attempts
        assert [policy.delay(n, "any").total_seconds() for n in range(1, attempts)] == waits


async def test_a_permanent_error_ends_at_once(make: Make, clock: VirtualClock):
    """It is failed after one try, though there were four left."""
    app, webhooks = make(clock=clock)

    @webhooks.handler("order.*")
    def order(task: Task) -> None:
        raise PermanentError("there is no such order")

    await webhooks.accept("order.paid", {}, idempotency_key="k")
    await drain(app, clock=clock)
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["retry_after"]) == ("failed", 1, None)


async def test_a_type_without_handler_waits(make: Make, clock: VirtualClock):
    """It is not failed, no try is charged, and a handler that is there later gets it."""
    app, webhooks = make(clock=clock)
    seen = []

    @webhooks.handler("order.*")
    def order(task: Task) -> None:
        seen.append(task.kind)

    await webhooks.accept("invoice.paid", {}, idempotency_key="i")
    await webhooks.accept("order.paid", {}, idempotency_key="o")
    await drain(app, clock=clock, until=hours(24))
    assert seen == ["order.paid"]
    by_key = {row["idempotency_key"]: row for row in await rows(app)}
    assert (by_key["i"]["status"], by_key["i"]["attempts"]) == ("pending", 0)
    later, more = make(clock=clock)
    more.handler("invoice.*")(order)
    await drain(later, clock=clock)
    assert seen == ["order.paid", "invoice.paid"]


async def test_attempts_count_what_was_started(make: Make, clock: VirtualClock):
    """A try that fails counts, one that is put off does not, and the one that succeeds does."""
    app, webhooks = make(clock=clock)
    calls = iter(["fail", "snooze", "done"])

    @webhooks.handler("*")
    def handle(task: Task) -> Any:
        match next(calls):
            case "fail":
                raise ValueError
            case "snooze":
                return Snoozed(seconds(5))
        return None

    await webhooks.accept("a", {}, idempotency_key="k")
    await drain(app, clock=clock)
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["retry_after"]) == ("completed", 2, None)


@pytest.mark.parametrize("lease", ["run out", "none"])
async def test_a_row_left_processing_comes_back_uncharged(inbox: Inbox, clock: VirtualClock, lease: str):
    """Whether its lease has run out or it has none at all, as a row from elsewhere may have: its worker was lost beside others."""
    app, webhooks = inbox
    receipt = await webhooks.accept("a", {}, idempotency_key="k")
    [claim] = await (await webhooks.lane.ledger()).claim(1, seconds(30))
    assert str(claim.task.id) == receipt.id
    if lease == "none":
        await execute(app, "UPDATE events SET lease_until = NULL, claim_id = NULL")
    else:
        clock.advance(seconds(31))
    drained = await drain(app, clock=clock)
    assert drained.of("k") == ["lease_expired", "done"]
    [row] = await rows(app)
    assert (row["status"], row["attempts"]) == ("completed", 1)


async def test_old_webhooks_are_deleted_and_open_ones_never(inbox: Inbox, clock: VirtualClock):
    """Completed, failed and cancelled ones after RETENTION_DAYS, in batches; those that wait or are processed stay, however old."""
    app, webhooks = inbox
    for key, payload in (("done", {}), ("dead", {"fail": True})):
        await webhooks.accept("a", payload, idempotency_key=key)
    await drain(app, clock=clock)
    await webhooks.accept("a", {}, idempotency_key="cancelled")
    await webhooks.lane.cancel("cancelled", actor="ada")
    await webhooks.accept("a", {}, idempotency_key="held")
    ledger = await webhooks.lane.ledger()
    [held] = await ledger.claim(1, seconds(30))
    await webhooks.accept("a", {}, idempotency_key="waits")
    tuned = webhooks.lane.tune(_worker())
    assert tuned.retention == {State.DONE: days(30), State.DEAD: days(30), State.CANCELLED: days(30)}
    assert tuned.prune_every == hours(1)
    assert tuned.concurrency == 85
    clock.advance(days(30))
    for state, span in tuned.retention.items():
        await ledger.prune([state], span)
    assert len(await rows(app)) == 5 - 3
    assert {row["idempotency_key"] for row in await rows(app)} == {held.task.key, "waits"}
    assert await _count(app, "redrive_attempt") == 0


async def test_retention_of_zero_keeps_for_ever(make: Make):
    """As it does for tasks."""
    _, webhooks = make(retention_days=0)
    assert webhooks.lane.tune(_worker()).retention == {}


def _worker() -> WorkerSettings:
    return WorkerSettings()


async def _count(app: Redrive, table: str) -> int:
    return await app.database.read(
        lambda connection: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()
    )
