"""How long a newcomer waits: from the clone to the first retry seen, in an empty folder with an empty HOME. `make newcomer` runs it.

Only what a newcomer has is used: git, make and this Python, so nothing is imported from redrive.
"""

import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WAIT_SECONDS_MAX = 600
WALL_SECONDS_WANTED, CPU_SECONDS_WANTED = 120, 40
"""On a quiet machine with two cores."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(seen: Callable[[], bool], what: str, ends: float) -> None:
    """Wait until something is seen, or give up."""
    while not seen():
        if time.monotonic() > ends:
            sys.exit(f"{what} was not seen in {WAIT_SECONDS_MAX} s")
        time.sleep(0.1)


def main() -> None:
    """Clone, `make run`, add a flaky task, see it retried."""
    began = time.monotonic()
    ends = began + WAIT_SECONDS_MAX
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        home, clone, port = Path(folder) / "home", Path(folder) / "redrive", free_port()
        home.mkdir()
        said = Path(folder) / "said.log"
        kept = ("PATH", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_FIND_LINKS", "SSL_CERT_FILE")
        environment = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(home),
            "HTTP_PORT": str(port),
        }
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True, env=environment)
        served = subprocess.Popen(
            ["make", "run", f"PYTHON={sys.executable}"], cwd=clone, env=environment, stdout=said.open("w"),
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            until(lambda: served.poll() is not None or _answers(port), "the service", ends)
            if served.poll() is not None:
                sys.exit(f"`make run` ended with {served.returncode}: {said.read_text()[-2000:]}")
            up = time.monotonic() - began
            add = [".venv/bin/redrive", "tasks", "add", "flaky.hello", "--database", "sqlite:///redrive.db"]
            subprocess.run(add, cwd=clone, env=environment, check=True, stdout=subprocess.DEVNULL)
            until(lambda: _retried(clone / "redrive.db"), "a retry", ends)
            wall = time.monotonic() - began
        finally:
            if served.poll() is None:
                os.killpg(served.pid, signal.SIGTERM)
                served.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    sys.stdout.write(
        f"serving after {up:.0f} s, the first retry seen after {wall:.0f} s (wanted: {WALL_SECONDS_WANTED}), {cpu:.0f} s of CPU "
        f"(wanted: {CPU_SECONDS_WANTED}); load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
    )


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _retried(file: Path) -> bool:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as store:
        return store.execute("SELECT count(*) FROM redrive_attempt WHERE outcome = 'failed'").fetchone()[0] > 1


if __name__ == "__main__":
    main()
