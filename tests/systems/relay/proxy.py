"""A door between the relay and the broker that a test can shut, open and listen at."""

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Hands bytes on between a port of its own and the broker."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self.connections = 0

    @property
    def url(self) -> str:
        """The broker as seen through this door."""
        who = self._url.netloc.rpartition("@")[0]
        return urlunsplit(self._url._replace(netloc=f"{who}@127.0.0.1:{self._port}"))

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def mend(self) -> None:
        """Open the door."""
        self._answers.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._meet, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Shut it: what is under way is lost, and nobody comes in."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self._answers.set()
        await asyncio.sleep(0)

    def hush(self) -> None:
        """From now on the broker hears everything and its answers are not heard."""
        self._answers.clear()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self._url.hostname, self._url.port)
            self._writers |= {writer, far_writer}
            try:
                await asyncio.gather(
                    self._hand_on(reader, far_writer, answers=False), self._hand_on(far_reader, writer, answers=True)
                )
            finally:
                self._writers -= {writer, far_writer}
                for one in (writer, far_writer):
                    one.transport.abort()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if answers:
                    await self._answers.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
