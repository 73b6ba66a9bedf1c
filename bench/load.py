"""Cheap load for HTTP services, in a process of its own: many connections, each with its own request, and exact times.

No HTTP library: a request is bytes that are sent, an answer is a status line and a Content-Length. One core asks some
ten thousand times a second, so what is measured is the service.
"""

import asyncio
import multiprocessing
import resource
import time
from dataclasses import dataclass, field
from typing import Any

import uvloop

FILES = 30_000


@dataclass(slots=True)
class Measured:
    """What a load came to: the seconds of each answer, how many were not 2xx, and how long it all took."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    broken: int = 0
    span: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.seconds) / self.span if self.span else 0.0

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


class _Connection(asyncio.Protocol):
    """One connection: `ask` sends the request and comes back with the status."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._buffer = b""
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[int]":
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found or self._answer is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
        if len(rest) >= length and not self._answer.done():
            self._buffer = rest[length:]
            self._answer.set_result(int(head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError())


def get(path: str, key: str, host: str = "127.0.0.1") -> bytes:
    """A GET as bytes."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {key}\r\n\r\n".encode()


def post(path: str, key: str, body: bytes, host: str = "127.0.0.1") -> bytes:
    """A POST of JSON as bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _steady(port: int, requests: list[bytes], every: float, rounds: int) -> Measured:
    """One connection for each request, which it sends again every so many seconds, evenly spread."""
    loop, measured = asyncio.get_running_loop(), Measured()
    connections = []
    for start in range(0, len(requests), 200):
        some = [loop.create_connection(_Connection, "127.0.0.1", port) for _ in requests[start : start + 200]]
        connections += [made[1] for made in await asyncio.gather(*some)]
    began = loop.time() + 1

    async def client(number: int) -> None:
        for turn in range(rounds):
            await asyncio.sleep(max(0.0, began + every * (turn + number / len(requests)) - loop.time()))
            await _measure(connections[number], requests[number], measured)

    await asyncio.gather(*(client(number) for number in range(len(requests))))
    measured.span = loop.time() - began
    for connection in connections:
        connection.transport.close()
    return measured


async def _closed(port: int, requests: list[bytes], connections: int, seconds: float) -> Measured:
    """As many as will go: each connection asks again as soon as it has its answer."""
    loop, measured = asyncio.get_running_loop(), Measured()
    made = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(connections)]
    began = loop.time()
    ends = began + seconds

    async def client(number: int) -> None:
        at = number
        while loop.time() < ends:
            await _measure(made[number], requests[at % len(requests)], measured)
            at += connections

    await asyncio.gather(*(client(number) for number in range(connections)))
    measured.span = loop.time() - began
    for connection in made:
        connection.transport.close()
    return measured


async def _measure(connection: _Connection, request: bytes, measured: Measured) -> None:
    asked = time.perf_counter()
    try:
        status = await connection.ask(request)
    except (OSError, RuntimeError):  # closed under us
        measured.broken += 1
        return
    measured.seconds.append(time.perf_counter() - asked)
    if not 200 <= status < 300:
        measured.refused += 1


def _run(pipe: Any, which: str, arguments: tuple[Any, ...]) -> None:
    more_files()
    kinds: Any = {"steady": _steady, "closed": _closed}
    pipe.send(uvloop.run(kinds[which](*arguments)))


def in_process(which: str, *arguments: Any) -> Measured:
    """Run a load in a process of its own: `steady(port, requests, every, rounds)` or `closed(port, requests, connections, seconds)`."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_run, args=(there, which, arguments))
    child.start()
    there.close()
    try:
        measured: Measured = here.recv()
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    return measured


def more_files() -> None:
    """Ten thousand connections need as many files, here and in the processes that are started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
