"""A statement that PostgreSQL carried out, or never heard of, and a connection that is cut before anybody can know."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import make_url

from redrive import Redrive, State, Task, seconds
from redrive.app import WorkerSettings
from redrive.errors import LedgerAwayError
from redrive.events import AttemptEnded, Event, LedgerAway, LedgerBack, SettleLost
from redrive.lane import make_task
from redrive.signs import Signs

from .books import all_ended

READY = b"Z\x00\x00\x00\x05I"
"""What PostgreSQL ends its answer with when the statement is committed."""


class Proxy:
    """Stands between the application and PostgreSQL, and cuts the connection at one message."""

    def __init__(self, url: str) -> None:
        self._target = make_url(url)
        self._marker: bytes | None = None
        self._forward = True
        self.cuts = 0

    def cut_at(self, marker: bytes, *, lost: str) -> None:
        """The next message that holds the marker is the last of its connection: it is lost itself, or its answer is."""
        self._marker, self._forward = marker, lost == "answer"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        folder = self._target.query.get("host")
        if folder is not None:
            upstream = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{self._target.port or 5432}")
        else:
            upstream = await asyncio.open_connection(self._target.host, self._target.port or 5432)
        cutting = asyncio.Event()
        ways = [
            asyncio.create_task(self._to_server(reader, upstream[1], cutting)),
            asyncio.create_task(self._to_client(upstream[0], writer, cutting)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for one in (writer, upstream[1]):
            one.close()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _to_server(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cutting: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if self._marker is not None and self._marker in data:
                self._marker = None
                self.cuts += 1
                if not self._forward:
                    return
                cutting.set()
            writer.write(data)
            await writer.drain()

    async def _to_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cutting: asyncio.Event
    ) -> None:
        kept = b""
        while data := await reader.read(1 << 16):
            if cutting.is_set():
                kept += data
                if kept.endswith(READY):
                    return
                continue
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy on loopback, and the URL of the same database through it."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    through = make_url(url).set(host="127.0.0.1", port=port, query={})
    async with server:
        yield proxy, through.render_as_string(hide_password=False)


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`."""
        self.events += events

    def count(self, kind: type) -> int:
        """How many of a kind."""
        return sum(isinstance(event, kind) for event in self.events)


pytestmark = pytest.mark.parametrize("store", ["postgres"], indirect=True)


@pytest.mark.parametrize(("lost", "new"), [("answer", False), ("request", True)])
async def test_add_again_after_a_cut(url: str, lost: str, new: bool) -> None:
    """An add whose commit was cut raises; adding again with the same key gives one task, whether it was committed or not."""
    async with proxied(url) as (proxy, through), Redrive(through) as app:
        await app.add("work", key="warm-up")
        proxy.cut_at(
            b"once", lost=lost
        )  # one that comes alone is one statement, which brings its key and commits by itself
        with pytest.raises(LedgerAwayError):
            await app.add("work", key="once")
        assert proxy.cuts == 1
        again = await app.add("work", key="once")
        assert again.new is new
        assert (await app.tasks.counts())[State.WAITING] == 2


@pytest.mark.parametrize(("lost", "new"), [("answer", False), ("request", True)])
async def test_add_many_again_after_a_cut(url: str, lost: str, new: bool) -> None:
    """The same for several, which are added in a transaction: all of them or none."""
    async with proxied(url) as (proxy, through), Redrive(through) as app:
        await app.add("work", key="warm-up")
        both = [make_task("work", key="one"), make_task("work", key="two")]
        proxy.cut_at(b"COMMIT;", lost=lost)
        with pytest.raises(LedgerAwayError):
            await app.add_many(both)
        assert proxy.cuts == 1
        assert [added.new for added in await app.add_many(both)] == [new, new]
        assert (await app.tasks.counts())[State.WAITING] == 3


@pytest.mark.parametrize("lost", ["answer", "request"])
async def test_a_settlement_is_written_once(url: str, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settlement that was cut is tried again and written once; the handler does not run again.

    If only the answer was lost, the second try is refused by the fence, because the first has ended the claim: the history
    says by whom, so it is told as written.
    """
    notes, runs = Notes(), []
    monkeypatch.setattr(Signs, "give", _nothing)  # they bring the worker's name too, which is what is cut at
    async with proxied(url) as (proxy, through), Redrive(through, observers=[notes]) as app:

        @app.handler("work")
        async def work(task: Task) -> None:
            runs.append(task.key)

        workers = app.workers(WorkerSettings(lease=seconds(5)))
        proxy.cut_at(workers.name.encode(), lost=lost)
        added = await app.add("work", key="once")
        working = asyncio.create_task(workers.run())
        await all_ended(app)
        await app.add("work", key="next")
        await all_ended(app)
        workers.stop()
        await working
        assert proxy.cuts == 1
        assert runs == ["once", "next"]
        assert [one.outcome for one in await app.tasks.attempts(added.id)] == ["done"]
        assert (notes.count(LedgerAway), notes.count(LedgerBack)) == (1, 1)
        assert (notes.count(SettleLost), notes.count(AttemptEnded)) == (0, 2)


async def _nothing(_: Signs) -> None: ...


async def test_a_claim_whose_answer_is_cut(url: str) -> None:
    """A claim whose answer is cut off is asked for by its fence: the task runs, uncharged, though it has one try only."""
    runs = []
    async with proxied(url) as (proxy, through), Redrive(through) as app:

        @app.handler("work", attempts=1)
        async def work(task: Task) -> None:
            runs.append(task.failures)

        added = await app.add("work", key="once")
        lease = timedelta(microseconds=77_123_457)  # bytes that nothing but a claim sends here
        workers = app.workers(WorkerSettings(lease=lease))
        proxy.cut_at(struct.pack(">qii", 77_123_457, 0, 0), lost="answer")
        working = asyncio.create_task(workers.run())
        await all_ended(app)
        workers.stop()
        await working
        assert proxy.cuts == 1
        assert runs == [0]
        assert [one.outcome for one in await app.tasks.attempts(added.id)] == ["done"]
