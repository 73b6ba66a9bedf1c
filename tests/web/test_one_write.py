"""Answers as they leave the server: the same bytes as the server writes by itself, and in one write where the answer is known whole."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from redrive.http.body import has_come
from redrive.web.one_write import OneWrite

LENGTH = (b"content-length", b"4")
JSON = (b"Content-Type", b"application/json")


class Transport:
    """What was written, piece by piece."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def resume_reading(self) -> None:
        pass


def make(*, method: str = "GET", keep_alive: bool = True, ours: bool = True) -> tuple[Any, Transport, list[str]]:
    """A request that waits for its answer, what its transport gets, and whether its answer was complete."""
    transport: Any = Transport()
    ends: list[str] = []
    cycle = RequestResponseCycle(
        scope={"method": method, "headers": []},  # type: ignore[typeddict-item]
        transport=transport,
        flow=FlowControl(transport),
        logger=logging.getLogger("test"),
        access_logger=logging.getLogger("test"),
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: ends.append("complete"),
    )
    if ours:
        OneWrite.take_over(cycle)
    return cycle, transport, ends


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


ANSWERS: dict[str, tuple[dict[str, Any], Sequence[dict[str, Any]]]] = {
    "whole": ({}, [start(LENGTH, JSON), body(b"done")]),
    "in two pieces": ({}, [start(LENGTH, JSON), body(b"do", more=True), body(b"ne")]),
    "of unknown length": ({}, [start(JSON), body(b"do", more=True), body(b"ne")]),
    "with an empty body": ({}, [start((b"content-length", b"0")), body(b"")]),
    "without a body": ({}, [start(status=204), body(b"")]),
    "to HEAD": ({"method": "HEAD"}, [start(LENGTH, JSON), body(b"")]),
    "the last of its connection": ({"keep_alive": False}, [start(LENGTH), body(b"done")]),
    "that ends the connection": ({}, [start(LENGTH, (b"connection", b"close")), body(b"done")]),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_the_bytes_are_those_of_the_server(name: str):
    """Whatever the answer is like, what the client reads and what becomes of the connection is as without us."""
    options, messages = ANSWERS[name]
    outcomes = []
    for ours in (True, False):
        cycle, transport, ends = make(**options, ours=ours)
        for message in messages:
            await cycle.send(message)
        outcomes.append((b"".join(transport.written), transport.closed, ends, cycle.response_complete))
    assert outcomes[0] == outcomes[1]


async def test_a_whole_answer_is_one_write():
    """Head and body leave together."""
    cycle, transport, ends = make()
    await cycle.send(start(LENGTH, JSON))
    assert (transport.written, cycle.response_started, ends) == ([], True, [])
    await cycle.send(body(b"done"))
    expected = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 4\r\ncontent-type: application/json\r\n\r\ndone"
    assert (transport.written, ends) == ([expected], ["complete"])


async def test_what_comes_in_pieces_leaves_in_pieces():
    """A head waits for nothing where nobody knows when the body ends."""
    cycle, transport, _ = make()
    await cycle.send(start(JSON))
    assert len(transport.written) == 1
    await cycle.send(body(b"do", more=True))
    assert len(transport.written) == 2


async def test_a_client_that_has_gone_gets_nothing():
    """Neither head nor body is written where the connection was lost between them."""
    cycle, transport, _ = make()
    await cycle.send(start(LENGTH))
    cycle.disconnected = True
    await cycle.send(body(b"done"))
    assert transport.written == []


@pytest.mark.parametrize("length", [b"3", b"5"])
async def test_a_wrong_length_is_refused(length: bytes):
    """A body that is not as long as its head says is the server's to refuse, as ever."""
    cycle, _, ends = make()
    await cycle.send(start((b"content-length", length)))
    with pytest.raises(RuntimeError, match="Content-Length"):
        await cycle.send(body(b"done"))
    assert ends == []


@pytest.mark.parametrize("header", [(b"x a", b"1"), (b"x", b"1\r\ny: 2")])
async def test_what_is_no_header_is_refused(header: tuple[bytes, bytes]):
    """Nobody puts a line of their own into a head."""
    cycle, transport, _ = make()
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        await cycle.send(start(LENGTH, header))
    assert transport.written == []


async def test_a_body_that_has_come_needs_no_clock():
    """The server says when the whole body is there; of other servers nobody knows."""
    cycle, _, _ = make()
    assert not has_come(cycle.receive)
    cycle.more_body = False
    assert has_come(cycle.receive)
    assert not has_come(make(ours=False)[0].receive)
