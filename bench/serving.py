"""A server in a process of its own, for whoever measures it from outside."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.servers import end

START_SECONDS_MAX = 60.0


@contextlib.contextmanager
def serving(
    command: Sequence[str], port: int, environment: Mapping[str, str], *, folder: Path, log: Path = Path(os.devnull)
) -> Iterator[int]:
    """Run the command until the block ends; its pid, once it answers /ready on this port."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_ready(port, process, log)
        yield process.pid
    finally:
        end(process)


def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError):
            if b" 200 " in ask(port, "/ready").partition(b"\r\n")[0]:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def ask(port: int, path: str) -> bytes:
    """A GET on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer
