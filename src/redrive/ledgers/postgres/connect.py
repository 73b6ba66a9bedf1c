"""Opening a connection. Of several hosts the one that is what is looked for: usually the primary.

The driver asks one host after the other, within one time-out for all of them: a host that is silent, as a machine without
power is, would keep everybody from those behind it. Here each has its own time-out, the next is asked soon after, and the
host that was right the last time is asked first.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from redrive.ledgers.postgres.address import PostgresAddress

NEXT_HOST_SECONDS = 0.5
"""How long a host may be silent before the next one is asked as well."""
ASK_AGAIN_SECONDS = 0.5
"""How soon a host that refused is asked again while another is still silent: it may be promoted meanwhile."""
SILENT_SECONDS = 15
"""How long the machine at the other end may confirm nothing."""
_KEEPALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": SILENT_SECONDS // 5 - 1,
    "TCP_USER_TIMEOUT": 1000 * SILENT_SECONDS,
}

_right: dict[str, int] = {}
"""Which of several hosts was what was looked for, by place."""
_found: dict[str, bool] = {}
"""Where a pooler was found or not, by place: it is asked once in a process."""


async def connect(address: PostgresAddress, **arguments: Any) -> Any:
    """A connection of asyncpg; the arguments are those of `PostgresAddress.arguments`, and perhaps more."""
    if len(address.hosts) == 1:
        connection = await asyncpg.connect(**arguments)
    else:
        connection = await _Race(address, arguments).run()
    _notice_silence(connection)
    return connection


def _notice_silence(connection: Any) -> None:
    """Let the system give a connection up whose other end says nothing: by itself it would take many minutes."""
    opened = connection._transport.get_extra_info("socket")  # noqa: SLF001 - the driver has no other way to it
    if opened is not None and opened.family != socket.AF_UNIX:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not every system has all of them
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def shares_servers(address: PostgresAddress) -> bool:
    """Whether a pooler stands between: then the server that answers is another one than the one that said hello."""
    if address.pooler is not None:
        return address.pooler
    if address.place not in _found:
        connection = await connect(address, **address.arguments(pooled=True))
        try:
            answers = await connection.fetchval("SELECT pg_backend_pid()")
            _found[address.place] = bool(answers != connection.get_server_pid())
        finally:
            connection.terminate()
    return _found[address.place]


class _Race:
    """All hosts, each asked by a task of its own; the first that answers with a connection wins."""

    def __init__(self, address: PostgresAddress, arguments: dict[str, Any]) -> None:
        self._address = address
        self._arguments = arguments
        amount = len(address.hosts)
        first = _right.get(address.place, 0)
        self._order = [(first + step) % amount for step in range(amount)]
        self._refused = [asyncio.Event() for _ in range(amount)]
        self._errors: dict[int, Exception] = {}

    async def run(self) -> Any:
        asking = [asyncio.create_task(self._ask(position)) for position in range(len(self._order))]
        try:
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            winner = min(done, key=lambda one: (one.exception() is not None, asking.index(one)))
            connection = winner.result()
            asking.remove(winner)
            return connection
        finally:
            for one in asking:
                one.cancel()
                one.add_done_callback(_give_up)
            if asking:
                await asyncio.wait(asking, timeout=1)

    async def _ask(self, position: int) -> Any:
        """Ask one host, again and again while another has not answered at all."""
        if position:
            with suppress(TimeoutError):
                async with asyncio.timeout(position * NEXT_HOST_SECONDS):
                    await self._refused[position - 1].wait()
        number = self._order[position]
        while True:
            try:
                connection = await asyncpg.connect(**self._arguments | {"dsn": self._address.hosts[number]})
            except Exception as error:
                self._errors[position] = error
                self._refused[position].set()
                if len(self._errors) == len(self._order):
                    raise _most_telling([self._errors[one] for one in sorted(self._errors)]) from error
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            else:
                _right[self._address.place] = number
                return connection


def _most_telling(errors: Sequence[Exception]) -> Exception:
    """What somebody has to do something about, before a host that is only away or not the primary."""
    passing = (OSError, asyncpg.exceptions.TargetServerAttributeNotMatched)
    return next((error for error in errors if not isinstance(error, passing)), errors[0])


def _give_up(asked: "asyncio.Task[Any]") -> None:
    """Whoever answers too late is not needed."""
    if not asked.cancelled() and asked.exception() is None:
        asked.result().terminate()
