"""Connections of strangers: slow, endless, or a thousand at once. Real sockets; the server's clock is moved by hand."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from redrive.web.connections import ConnectionLimits, Doorkeeper, backlog_for, connections_for, guarded
from redrive.web.server import HttpServer

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@dataclass(slots=True)
class Served:
    """A server under limits, and what its application was asked."""

    port: int
    doorkeeper: Doorkeeper
    asked: list[str]
    let_go: asyncio.Event
    """Answers to /slow wait for it."""

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def get(self, path: str = "/", timeout: float = 60) -> int:
        """The status of a whole request on a connection of its own."""
        reader, writer = await self.connect()
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            return await status_of(reader)
        finally:
            writer.close()

    def later(self, seconds: float) -> None:
        """So much later nothing else has come: the sweep looks at the deadlines."""
        self.doorkeeper.sweep(asyncio.get_running_loop().time() + seconds)


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await reader.readline()).split()[1])


async def refusal(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and code of an answer after which the connection ends; it has the form of all errors."""
    answer = await reader.read()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "details", "timestamp", "request_id"}
    assert f"x-request-id: {error['request_id']}".encode() in head
    return int(head.split()[1]), error["code"]


async def until(true: Callable[[], Any]) -> None:
    while not true():
        await asyncio.sleep(0.001)


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Served]]]:
    """Starts servers; they end with the test."""
    ends: list[Callable[[], Awaitable[None]]] = []

    async def start(**limits: Any) -> Served:
        let_go = asyncio.Event()
        asked: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            asked.append(scope["path"])
            if scope["path"] == "/slow":
                await let_go.wait()
            if scope["path"] == "/body":
                while (await receive()).get("more_body"):
                    pass
            body = b"x" * (32 << 20) if scope["path"] == "/large" else b"ok"
            if scope["path"] == "/class":
                body = type(receive.__self__).__name__.encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

        doorkeeper = Doorkeeper(ConnectionLimits(**limits))
        config = uvicorn.Config(
            app, port=0, http=guarded(doorkeeper), ws="none", lifespan="off", log_config=None, access_log=False
        )
        server = HttpServer(config, doorkeeper)
        running = asyncio.create_task(server.serve())
        await until(lambda: server.started or running.done())
        if running.done():
            running.result()

        async def end() -> None:
            let_go.set()
            server.should_exit = server.force_exit = True
            await running

        ends.append(end)
        return Served(server.servers[0].sockets[0].getsockname()[1], doorkeeper, asked, let_go)

    yield start
    for end in ends:
        await end()


async def test_answers_are_those_of_one_write(serve: Serve):
    """Each request of a connection is answered by `OneWrite`, not only its first."""
    reader, writer = await (await serve()).connect()
    for _ in range(2):
        writer.write(b"GET /class HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"OneWrite" in await reader.readuntil(b"0\r\n\r\n")
    writer.close()


async def test_a_header_without_an_end_is_refused(serve: Serve):
    """64 KiB of head are enough: then 431, whatever else would have come, and the application hears nothing of it."""
    served = await serve()
    reader, writer = await served.connect()
    writer.write(HEAD + b"X: ")
    sent = 0
    with pytest.raises(ConnectionError):
        while sent < 200 << 20:
            writer.write(b"a" * 65536)
            sent += 65536
            await writer.drain()
            if reader.at_eof() or reader._buffer:
                raise ConnectionResetError
    assert sent < 20 << 20, "what a socket's buffers hold, not what a stranger sends"
    assert await refusal(reader) == (431, "head_too_large")
    assert served.asked == []
    writer.close()


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(70)) + b"\r\n",
        HEAD + b"X: " + b"a" * (65 * 1024) + b"\r\n\r\n",
        b"GET /" + b"a" * (65 * 1024) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["many", "one", "url"],
)
async def test_a_large_head_at_one_go_is_refused(serve: Serve, head: bytes):
    """A head that comes in one piece, whole, is held to the same limit."""
    served = await serve()
    reader, writer = await served.connect()
    writer.write(head)
    assert await refusal(reader) == (431, "head_too_large")
    assert served.asked == []
    writer.close()


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nA b\r\n\r\n"]
)
async def test_what_is_not_http_is_refused_like_all_else(serve: Serve, sent: bytes):
    """TLS at a port without it, nonsense and a broken head: a 400 in the form of all errors, and the connection ends."""
    served = await serve()
    reader, writer = await served.connect()
    writer.write(sent)
    assert await refusal(reader) == (400, "not_http")
    assert served.asked == []
    writer.close()


async def test_a_head_within_the_limit_is_served(serve: Serve):
    """60 KiB of headers go through, and a body does not count as head, also of the request before on the same connection."""
    served = await serve()
    reader, writer = await served.connect()
    body = b"b" * 200_000
    for _ in range(2):
        writer.write(b"POST /body HTTP/1.1\r\nHost: a\r\nX: %s\r\n" % (b"a" * 60 * 1024))
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert await status_of(reader) == 200
    await until(lambda: len(served.asked) == 2)
    writer.close()


async def test_half_a_head_has_a_deadline(serve: Serve):
    """A head that does not end is refused with 408 once its time is over, though bytes keep coming."""
    served = await serve(head_seconds=10)
    reader, writer = await served.connect()
    writer.write(HEAD)
    await until(lambda: any(one._in_head for one in served.doorkeeper._all))
    served.later(9)
    writer.write(b"X: 1\r\n")
    await asyncio.sleep(0)
    served.later(11)
    assert await refusal(reader) == (408, "head_too_slow")
    writer.close()


async def test_silence_has_a_deadline(serve: Serve):
    """Whoever connects and says nothing, or nothing but empty lines, is gone when a head would be overdue."""
    served = await serve(head_seconds=10)
    for said in (b"", b"\r\n"):
        reader, writer = await served.connect()
        writer.write(said)
        await until(lambda: served.doorkeeper._all)
        served.later(11)
        with pytest.raises(ConnectionError):
            assert await reader.read() == b""
            raise ConnectionResetError
        await until(lambda: not served.doorkeeper._all)
        writer.close()


async def test_half_a_body_has_a_deadline(serve: Serve):
    """A body that does not come is refused with 408, whether the application reads it or not."""
    served = await serve(body_seconds=60)
    reader, writer = await served.connect()
    writer.write(b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
    await until(lambda: served.asked)
    served.later(59)
    served.later(61)
    assert await refusal(reader) == (408, "body_too_slow")
    writer.close()


async def test_a_slow_answer_is_not_the_clients_fault(serve: Serve):
    """A whole request has no deadline, and keeps none from being answered: only its sender's part is timed."""
    served = await serve()
    asking = asyncio.create_task(served.get("/slow"))
    await until(lambda: served.asked)
    served.later(3600)
    served.let_go.set()
    assert await asking == 200


async def test_an_answer_that_nobody_reads_has_a_deadline(serve: Serve):
    """A client that asks for much and reads nothing is cut off, and what it would have got is not kept."""
    served = await serve(unread_seconds=60)
    _, writer = await served.connect()
    writer.transport.pause_reading()
    writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
    await until(lambda: any(one.flow and one.flow.write_paused for one in served.doorkeeper._all))
    served.later(61)
    await until(lambda: not served.doorkeeper._all)
    writer.transport.abort()


async def test_half_requests_make_room(serve: Serve):
    """However many half requests one address opens, the next whole request is answered; the oldest half goes."""
    served = await serve(per_address=5)
    halves = [await served.connect() for _ in range(5)]
    for _, writer in halves:
        writer.write(HEAD)
    await until(lambda: len(served.doorkeeper._all) == 5)
    for _ in range(3):
        assert await served.get() == 200
    assert len(served.doorkeeper._all) <= 5
    for _, writer in halves:
        writer.transport.abort()


async def test_who_has_waited_longest_makes_room(serve: Serve):
    """A connection that was answered just now outlives one that was opened later and has said nothing since."""
    served = await serve(per_address=2)
    used_reader, used = await served.connect()
    await until(lambda: len(served.doorkeeper._all) == 1)
    silent_reader, silent = await served.connect()
    await until(lambda: len(served.doorkeeper._all) == 2)
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    used.write(request)
    assert await status_of(used_reader) == 200
    await until(lambda: [one.cycle is None for one in served.doorkeeper._all] == [True, False])
    assert await served.get() == 200
    with pytest.raises(ConnectionError):
        assert await silent_reader.read() == b""
        raise ConnectionResetError
    used.write(request)
    await until(lambda: served.asked.count("/") == 3)
    for writer in (used, silent):
        writer.transport.abort()


async def test_all_connections_together_have_a_limit(serve: Serve):
    """The same over all addresses, so that files are left for the database."""
    served = await serve(connections=5)
    halves = [await served.connect() for _ in range(20)]
    await until(lambda: len(served.doorkeeper._all) == 5)
    assert await served.get() == 200
    for _, writer in halves:
        writer.transport.abort()


async def test_work_in_hand_is_not_dropped_for_a_newcomer(serve: Serve):
    """Where every connection has a request at work, the next is told to try again, and those at work are answered."""
    served = await serve(per_address=3)
    asking = [asyncio.create_task(served.get("/slow")) for _ in range(3)]
    await until(lambda: len(served.asked) == 3)
    reader, writer = await served.connect()
    assert await refusal(reader) == (503, "too_many_connections")
    writer.close()
    served.let_go.set()
    assert await asyncio.gather(*asking) == [200, 200, 200]


async def test_a_connection_that_ended_leaves_no_trace(serve: Serve):
    """Addresses are forgotten with their last connection."""
    served = await serve()
    assert await served.get() == 200
    await until(lambda: not served.doorkeeper._all)
    assert served.doorkeeper._by_sender == {}


@pytest.mark.parametrize("files", [1024, 4096, 65_536])
def test_files_are_left_for_all_else(files: int):
    """All connections, and all that are accepted at one go on top of them, still leave files for database and broker."""
    assert connections_for(files) + backlog_for(files) <= files - 200


class Caller(asyncio.Transport):
    """The other end of a connection, at any address."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1234), "sockname": ("::", 80)})
        self.is_gone = False

    def abort(self) -> None:
        self.is_gone = True


async def test_a_network_is_one_sender():
    """Connections from all over one /64 of IPv6 share one limit, and cost its neighbours none of theirs."""
    made = guarded(Doorkeeper(ConnectionLimits(per_address=3)))
    config = uvicorn.Config(lambda: None, log_config=None)
    config.load()
    callers = [Caller(f"2001:db8:1:2::{number:x}") for number in range(1, 6)] + [Caller("2001:db8:1:3::1")]
    for caller in callers:
        made(config=config, server_state=uvicorn.server.ServerState(), app_state={}).connection_made(caller)
    assert [caller.is_gone for caller in callers] == [True, True, False, False, False, False]
