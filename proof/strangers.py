"""Strangers without a key, each as rude as can be, while somebody else asks for /health."""

import contextlib
import time
from collections.abc import Callable, Iterator

from proof.scenario import Found, scenario
from proof.service import Served, serving, watching

MIB = 1 << 20
GROWTH_MIB_MAX = 32
HEALTH_SECONDS_MAX = 5.0
"""A busy machine is slow as well; the service was gone for 31 s before it had limits."""
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@scenario("a stranger costs others nothing: memory, time or files")
def strangers(short: bool) -> Iterator[Found]:
    """Headers without an end, a thousand half requests, bodies that do not come, answers that nobody reads."""
    mib = 20 if short else 200
    rude: list[tuple[str, Callable[[Served], None]]] = [
        (f"{mib} MiB of headers on one connection", lambda served: _headers(served, mib)),
        (f"one header of {mib // 2} MiB", lambda served: _one_header(served, mib // 2)),
        ("1,100 half requests at once", lambda served: _halves(served, 1100)),
        ("1,100 requests without their bodies", lambda served: _bodiless(served, 1100)),
        ("300 clients that read no answer", lambda served: _unread(served, 300)),
    ]
    with serving() as served:
        for tried, attack in rude:
            before, computed = served.memory_mib, served.cpu_seconds
            with watching(served) as watched:
                attack(served)
                time.sleep(1)
            grown, computed = watched.memory_mib - before, served.cpu_seconds - computed
            yield Found(
                tried=tried,
                figure=f"memory +{grown:.0f} MiB, {computed:.1f} s of CPU, {watched.files} files, "
                f"/health {watched.slowest * 1000:.0f} ms at most beside waiting for a processor, {watched.failed} of {len(watched.seconds)} failed",
                holds=grown <= GROWTH_MIB_MAX and watched.slowest <= HEALTH_SECONDS_MAX and not watched.failed,
            )


def _headers(served: Served, mib: int) -> None:
    header = b"X-Header: " + b"a" * 1000 + b"\r\n"
    with served.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(HEAD)
        for _ in range(mib):
            connection.sendall(header * (MIB // len(header)))


def _one_header(served: Served, mib: int) -> None:
    with served.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(HEAD + b"X-Header: ")
        for _ in range(mib):
            connection.sendall(b"a" * MIB)


def _halves(served: Served, amount: int) -> None:
    _hold(served, amount, HEAD)


def _bodiless(served: Served, amount: int) -> None:
    _hold(served, amount, b"POST /webhooks HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")


def _unread(served: Served, amount: int) -> None:
    _hold(served, amount, b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 5)


def _hold(served: Served, amount: int, said: bytes) -> None:
    """Open connections, say this on each, and leave them open for a while."""
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        for _ in range(amount):
            connection = opened.enter_context(served.connect())
            connection.settimeout(1)
            with contextlib.suppress(OSError):
                connection.sendall(said)
        time.sleep(3)
