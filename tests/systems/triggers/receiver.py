"""A small HTTP server on loopback that receives deliveries and answers as it is told."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Received], str | bytes]


def status(code: int, *headers: str, body: str = "") -> str:
    """An answer with this status."""
    lines = [f"HTTP/1.1 {code} Said", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines) + "\r\n\r\n" + body


@dataclass
class Receiver:
    """What came in, and what is answered: `answer` is called for each request, `seconds` says how long it takes."""

    answer: Answer = lambda _received: status(200)
    seconds: Callable[[Received], float] = lambda _received: 0.0
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._writers: set[asyncio.StreamWriter] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while request := await self._request(reader):
                self.received.append(request)
                said = self.answer(request)
                if takes := self.seconds(request):
                    await asyncio.sleep(takes)
                writer.write(said.encode() if isinstance(said, str) else said)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> Received | None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Received(first.split(" ")[1], headers, body)
