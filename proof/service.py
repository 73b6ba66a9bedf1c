"""A real service in a process of its own, watched from outside."""

import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.servers import free_ports
from bench.serving import serving as start

ASKED_EVERY_SECONDS = 0.05
OWN = "/proc/thread-self/schedstat"


@dataclass(slots=True)
class Served:
    """A running service."""

    pid: int
    port: int

    @property
    def memory_mib(self) -> float:
        """What it holds in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far."""
        parts = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def queued_seconds(self) -> float:
        """How long its loop has waited for a processor, which others had."""
        return queued(f"/proc/{self.pid}/schedstat")

    @property
    def files(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def connect(self) -> socket.socket:
        """A plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@dataclass(slots=True)
class Watched:
    """What somebody who asks for /health all the time has seen, and the most that the service took meanwhile."""

    seconds: list[float] = field(default_factory=list)
    """How long each answer took, less what the service or whoever asked waited for a processor: that tells of the machine."""
    failed: int = 0
    memory_mib: float = 0
    files: int = 0

    @property
    def slowest(self) -> float:
        return max(self.seconds, default=float("inf"))


def queued(schedstat: str) -> float:
    """The second number of it, which not every system counts."""
    try:
        return int(Path(schedstat).read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@contextmanager
def serving(
    files_max: int = 1024, url: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """`redrive serve` on a free port, on SQLite where no URL is given, with as few files as many systems give a process."""
    with tempfile.TemporaryDirectory(prefix="redrive-proof-") as folder:
        [port] = free_ports(1)
        url = url or f"sqlite:///{folder}/proof.db"
        settings = {"DATABASE_URL": url, "LOG_LEVEL": "error", "REDRIVE_SYSTEMS": "all"} | dict(environment or {})
        limited = f"ulimit -n {files_max} && exec {sys.executable} -m redrive serve --port {port}"
        with start(["/bin/sh", "-c", limited], port, settings, folder=Path(folder), log=Path(folder) / "said") as pid:
            yield Served(pid, port)


@contextmanager
def watching(served: Served) -> Iterator[Watched]:
    """Ask for /health on a new connection again and again, as a load balancer does."""
    watched, over = Watched(), threading.Event()

    def watch() -> None:
        while not over.wait(ASKED_EVERY_SECONDS):
            began, before = time.perf_counter(), served.queued_seconds + queued(OWN)
            try:
                ok = httpx.get(f"http://127.0.0.1:{served.port}/health", timeout=30).status_code == 200
            except httpx.TransportError:
                ok = False
            stood = served.queued_seconds + queued(OWN) - before
            watched.seconds.append(max(0.0, time.perf_counter() - began - stood))
            watched.failed += not ok
            watched.memory_mib = max(watched.memory_mib, served.memory_mib)
            watched.files = max(watched.files, served.files)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield watched
    finally:
        over.set()
        thread.join()
