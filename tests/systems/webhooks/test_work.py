"""Webhooks that are POSTed on, where there are no handlers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from redrive import Redrive, State, Task, seconds
from redrive.systems.webhooks import Webhooks
from redrive.systems.webhooks import work as module
from redrive.systems.webhooks.work import ANSWER_BYTES_MAX, Forward
from redrive.testing import VirtualClock, drain

from .conftest import Make

URL = "http://10.0.0.7:9000/hooks?shop=1"


@pytest.fixture
def store() -> str:
    """What an answer means does not depend on the database: SQLite stands for both."""
    return "sqlite"


def answered(status: int, **headers: str) -> httpx.Response:
    """An answer that is still to be read, as one from the network is."""

    async def nothing() -> AsyncIterator[bytes]:
        yield b"ok"

    return httpx.Response(status, headers=headers, content=nothing())


@pytest.fixture
def forwarding(make: Make, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """An inbox that forwards to a receiver of the test's own."""

    def run(receive: Callable[[httpx.Request], Any], **given: Any) -> tuple[Redrive, Webhooks]:
        app, webhooks = make(clock=clock, webhook_forward_url=URL, **given)
        transport = httpx.MockTransport(receive)
        monkeypatch.setattr(module, "Forward", lambda url: Forward(url, transport=transport))
        webhooks.prepare()
        webhooks.prepare()
        return app, webhooks

    return run


async def test_the_payload_is_posted_with_its_key(forwarding: Any, clock: VirtualClock):
    """With the headers that a receiver needs to process it once; a key that no header can carry is written as in a URL."""
    seen: list[httpx.Request] = []

    def receive(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answered(204)

    app, webhooks = forwarding(receive)
    receipt = await webhooks.accept("order.paid", {"order": 7}, idempotency_key="order-7")
    await webhooks.accept("Zoë\r\nX-Evil: 1", {}, idempotency_key="100% ü\n")
    await drain(app, clock=clock)
    first, second = sorted(seen, key=lambda request: request.headers["X-Event-Type"] != "order.paid")
    assert (first.method, str(first.url), json.loads(first.content)) == ("POST", URL, {"order": 7})
    assert first.headers["Idempotency-Key"] == "order-7"
    assert first.headers["X-Event-Id"] == receipt.id
    assert first.headers["X-Attempt"] == "1"
    assert first.headers["Content-Type"] == "application/json"
    assert second.headers["Idempotency-Key"] == "100%25%20%C3%BC%0A"
    assert "X-Evil" not in second.headers
    assert (await webhooks.lane.get("order-7")).state is State.DONE
    await webhooks.close()


@pytest.mark.parametrize(
    ("status", "outcomes", "state"),
    [
        (200, 1, State.DONE),
        (202, 1, State.DONE),
        (301, 1, State.DEAD),
        (400, 1, State.DEAD),
        (401, 1, State.DEAD),
        (404, 1, State.DEAD),
        (410, 1, State.DEAD),
        (422, 1, State.DEAD),
        (408, 5, State.DEAD),
        (425, 5, State.DEAD),
        (429, 5, State.DEAD),
        (500, 5, State.DEAD),
        (503, 5, State.DEAD),
    ],
)
async def test_the_answer_decides(forwarding: Any, clock: VirtualClock, status: int, outcomes: int, state: State):
    """2xx is done; what may get better is tried as often as the settings say; all else once; redirects are not followed."""
    requests: list[str] = []

    def receive(request: httpx.Request) -> httpx.Response:
        requests.append(str(request.url))
        return answered(status, Location="http://elsewhere.example/")

    app, webhooks = forwarding(receive)
    await webhooks.accept("a", {}, idempotency_key="k")
    drained = await drain(app, clock=clock)
    task = await webhooks.lane.get("k")
    assert (len(drained.settlements), task.state) == (outcomes, state)
    assert requests == [URL] * outcomes
    if state is State.DEAD:
        assert f"the receiver answered {status}" in task.last_error


async def test_a_broken_connection_is_tried_again(forwarding: Any, clock: VirtualClock):
    """As any other error that may pass."""
    answers = iter([httpx.ConnectError("refused"), httpx.ReadTimeout("too slow"), answered(200)])

    def receive(request: httpx.Request) -> httpx.Response:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    app, webhooks = forwarding(receive)
    await webhooks.accept("a", {}, idempotency_key="k")
    assert (await drain(app, clock=clock)).of("k") == ["failed", "failed", "done"]


async def test_retry_after_is_a_floor(forwarding: Any, clock: VirtualClock):
    """The receiver's wish is waited for where it is longer than our own wait."""
    waits = iter(["100", "1"])

    def receive(request: httpx.Request) -> httpx.Response:
        wait = next(waits, None)
        return answered(200) if wait is None else answered(429, **{"Retry-After": wait})

    app, webhooks = forwarding(receive)
    await webhooks.accept("a", {}, idempotency_key="k")
    drained = await drain(app, clock=clock)
    assert [one.delay for one in drained.settlements] == [seconds(100), seconds(20), None]
    assert drained.settlements[0].error_class == "rate_limited"


async def test_a_long_answer_is_cut(forwarding: Any, clock: VirtualClock):
    """An answer without end costs no more than its first bytes."""
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1 << 14
            yield b"x" * (1 << 14)

    app, webhooks = forwarding(lambda request: httpx.Response(200, content=endless()))
    await webhooks.accept("a", {}, idempotency_key="k")
    assert (await drain(app, clock=clock)).of("k") == ["done"]
    assert sent <= ANSWER_BYTES_MAX + 2 * (1 << 14)


async def test_an_answer_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """A receiver that sends its answer byte by byte is as slow as one that sends none: at the limit the connection is cut."""
    limits: list[asyncio.Timeout] = []
    cut = asyncio.Event()

    def timeout(seconds: float) -> asyncio.Timeout:
        assert seconds == module.FORWARD_SECONDS_MAX
        limits.append(asyncio.timeout(None))
        return limits[0]

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx")
        await writer.drain()
        limits[0].reschedule(asyncio.get_running_loop().time())  # half a minute has passed
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        cut.set()

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(timeout=timeout))
    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    forward = Forward(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    task = Task(id="x", key="k", kind="a", payload={}, state=State.CLAIMED, failures=0)
    with pytest.raises(TimeoutError):
        await forward(task, SimpleNamespace(attempt=1))  # type: ignore[arg-type]
    await forward.close()
    await cut.wait()
    server.close()
    await server.wait_closed()


async def test_handlers_go_before_the_url(make: Make, clock: VirtualClock):
    """With any handler nothing is forwarded: types that have none wait."""
    app, webhooks = make(clock=clock, webhook_forward_url=URL)

    @webhooks.handler("order.*")
    def order(task: Task) -> None:
        pass

    webhooks.prepare()
    await webhooks.accept("invoice.paid", {}, idempotency_key="k")
    await drain(app, clock=clock)
    assert (await webhooks.lane.get("k")).state is State.WAITING


async def test_without_handlers_and_url_webhooks_wait(make: Make, clock: VirtualClock):
    """They are taken in all the same."""
    _, webhooks = make(clock=clock)
    webhooks.prepare()
    assert len(webhooks.lane.handlers) == 0
    assert (await webhooks.accept("a", {}, idempotency_key="k")).new


async def test_every_worker_has_a_connection():
    """More webhooks than a pool usually holds are under way at once: none waits for another's answer."""
    amount, meeting = 120, 0
    all_there = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal meeting
        await reader.readuntil(b"\r\n\r\n")
        meeting += 1
        if meeting == amount:
            all_there.set()
        await all_there.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    async with server:
        forward = Forward(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        task = Task(id="1", key="k", kind="a", payload={}, state=State.CLAIMED, failures=0)
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(forward(task, SimpleNamespace(attempt=1)) for _ in range(amount)))
        finally:
            all_there.set()
            await forward.close()
    assert meeting == amount
