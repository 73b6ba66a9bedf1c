"""`redrive worker` in processes of its own: signals, hung threads, several processes."""

import asyncio
import os
import re
import signal
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path

import httpx
import pytest

from redrive import Redrive
from redrive.cli import processes
from redrive.cli.processes import SecondPress
from redrive.lane import make_task
from redrive.systems.commands import Commands
from redrive.systems.commands.registry import Registry

from .said import Said, Started, until

Run = Callable[..., Said]
Start = Callable[..., Started]

APPLICATION = """
import asyncio, os, time
from redrive import Redrive
app = Redrive({url!r})

@app.handler("quick")
async def quick(task):
    print(f"ran {{task.payload}} {{os.getpid()}}\\n", end="", flush=True)  # whole lines: processes share the file

@app.handler("slow")
async def slow(task):
    print("slow begins", flush=True)
    await asyncio.sleep(task.payload)
    print("slow ends", flush=True)

@app.handler("hung")
def hung(task):
    print("hung begins", flush=True)
    time.sleep(600)

@app.handler("crash")
async def crash(task):
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def shop(url: str, application: Callable[[str], str]) -> str:
    """An application on each kind of database."""
    return application(APPLICATION.format(url=url))


@pytest.fixture
def file_shop(folder: Path, application: Callable[[str], str]) -> str:
    """The same on SQLite alone, where the database makes no difference."""
    return application(APPLICATION.format(url=f"sqlite:///{folder / 'shop.db'}"))


def states(folder: Path) -> dict[str, tuple[str, int]]:
    """State and failures of each kind, read with a plain driver."""
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        return {
            kind: (state, failures)
            for kind, state, failures in connection.execute("SELECT kind, state, failures FROM redrive_task")
        }


@pytest.mark.long_on("sqlite")
def test_worker_runs_and_stops_gracefully(start: Start, stored: Run, shop: str):
    """Tasks are run, SIGTERM lets what runs finish, and the exit code is 0."""
    worker = start("worker", shop, "--concurrency", "4", "--grace", "60s")
    worker.wait_for("working on")
    stored("tasks", "add", "quick", "1")
    worker.wait_for("ran 1")
    stored("tasks", "add", "slow", "1.5", "--key", "slow")
    worker.wait_for("slow begins")
    assert worker.end(signal.SIGTERM) == 0
    assert "slow ends" in worker.said
    assert stored("tasks", "show", "slow", "--json").json["state"] == "done"


def test_what_outlasts_the_grace_is_released(start: Start, redrive: Run, file_shop: str, folder: Path):
    """A task that is not finished goes back to waiting, due now, and no failure is charged."""
    worker = start("worker", file_shop, "--grace", "0.1s")
    worker.wait_for("working on")
    redrive("tasks", "add", "slow", "600", "--app", file_shop)
    worker.wait_for("slow begins")
    assert worker.end(signal.SIGINT) == 0
    assert states(folder) == {"slow": ("waiting", 0)}


def test_hung_threads_do_not_keep_the_process(start: Start, redrive: Run, file_shop: str, folder: Path):
    """A plain function that never returns is named and left behind; its claim is not given up while it may go on."""
    worker = start("worker", file_shop, "--grace", "0.1s")
    worker.wait_for("working on")
    redrive("tasks", "add", "hung", "--app", file_shop)
    worker.wait_for("hung begins")
    assert worker.end(signal.SIGTERM) == 0
    assert states(folder) == {"hung": ("claimed", 0)}
    assert "threads_left" in worker.said


def test_second_signal_ends_at_once(start: Start, redrive: Run, file_shop: str):
    """Who presses twice does not wait for the grace; an echo of the first signal is not a second press."""
    worker = start("worker", file_shop, "--grace", "600s")
    worker.wait_for("working on")
    redrive("tasks", "add", "slow", "600", "--app", file_shop)
    worker.wait_for("slow begins")
    worker.process.send_signal(signal.SIGTERM)
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for("stopping")
    with pytest.raises(Exception, match="timed out"):
        worker.process.wait(1)
    assert worker.end(signal.SIGINT) == 128 + signal.SIGINT


def test_worker_waits_for_a_store_that_is_away(start: Start, folder: Path):
    """A worker that starts before its database says so once and waits; it can still be stopped."""
    (folder / "away.py").write_text(
        "from redrive import Redrive\napp = Redrive('postgresql://a@127.0.0.1:1/x')\n@app.handler('a')\ndef a(task): ...\n"
    )
    worker = start("worker", "away:app")
    worker.wait_for("ledger_away")
    assert worker.end(signal.SIGTERM) == 0
    assert worker.said.count('"event":"ledger_away"') == 1


def test_worker_without_handlers_says_so(start: Start, folder: Path):
    """An application that can do nothing is used wrongly."""
    (folder / "empty.py").write_text("from redrive import Redrive\napp = Redrive()\n")
    worker = start("worker", "empty:app")
    assert worker.process.wait(60) == 2
    assert "has no handlers" in worker.said


def pids(worker: Started) -> set[int]:
    """The processes that have run a task."""
    return {int(line.split()[2]) for line in worker.said.splitlines() if line.startswith("ran ")}


def children(worker: Started) -> list[int]:
    """The child processes of a running command."""
    listed = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def put(url: str, amount: int) -> None:
    """Add quick tasks."""
    async with Redrive(url) as app:
        await app.add_many([make_task("quick", number) for number in range(amount)])


@pytest.mark.long_on("postgres")
def test_two_processes_share_the_work(start: Start, url: str, shop: str):
    """`--processes 2` runs two children; SIGTERM ends all gracefully with exit code 0."""
    worker = start("worker", shop, "--processes", "2", "--concurrency", "1")
    worker.wait_for("working on", times=2)
    working = children(worker)
    assert len(working) == 2
    asyncio.run(put(url, 40))
    worker.wait_for("ran ", times=40)
    assert pids(worker) <= set(working)
    assert worker.end(signal.SIGTERM) == 0
    assert not any(alive(pid) for pid in working)


def test_a_child_that_dies_is_started_again(start: Start, redrive: Run, file_shop: str):
    """A handler that kills its process costs a try, not the worker; and when the parent is killed, no child goes on by itself."""
    worker = start("worker", file_shop, "--processes", "2", "--lease", "1s")
    worker.wait_for("working on", times=2)
    redrive("tasks", "add", "crash", "--attempts", "1", "--key", "crash", "--app", file_shop)
    worker.wait_for("was ended by SIGKILL; a new one starts in")
    worker.wait_for("working on", times=3)
    until(lambda: redrive("tasks", "show", "crash", "--app", file_shop, "--json").json["state"] == "dead", every=0.3)
    working = children(worker)
    assert working
    os.kill(worker.process.pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in working))


def test_a_command_that_cannot_work_is_not_tried_again(start: Start):
    """A wrong application ends all processes with exit code 2."""
    worker = start("worker", "no_such_module:app", "--processes", "2")
    assert worker.process.wait(60) == 2
    assert "a new one starts" not in worker.said


# --- figures ----------------------------------------------------------------------------------------------------------

BUS = """
from redrive import Redrive
from redrive.systems import commands
app = Redrive({url!r})
bus = commands.Commands(app)

@commands.handler("payments", "Debit")
async def debit(command, context): ...
"""


def probes(worker: Started) -> list[str]:
    """Where its processes answer monitoring."""
    return re.findall(r"health and metrics are at (http://[\d.:]+)/", worker.said)


def test_figures_of_a_worker(start: Start, url: str, application: Callable[[str], str]):
    """Health, readiness and what it has done, commands too, on this machine alone; nothing else is served."""
    worker = start("worker", application(BUS.format(url=url)), "--http-port", "0")
    worker.wait_for("working on")
    [address] = probes(worker)
    assert address.startswith("http://127.0.0.1:")
    with httpx.Client(base_url=address, timeout=60) as client:
        until(lambda: client.get("/ready").status_code == 200)
        assert client.get("/health").json()["checks"] == {"database": "ok"}
        asyncio.run(send(url))
        counted = 'redrive_attempts_total{kind="payments/Debit",ledger="commands",outcome="done"} 1.0'
        until(lambda: counted in client.get("/metrics").text, lambda: client.get("/metrics").text)
        for path in ("/", "/tasks", "/api/tasks", "/api/overview", "/api/commands", "/openapi.json", "/login"):
            assert client.get(path).status_code == 404, path
    assert worker.end(signal.SIGTERM) == 0


async def send(url: str) -> None:
    """Send a command."""
    app = Redrive(url)
    bus = Commands(app, handlers=Registry())
    async with app:
        await bus.send("payments", "Debit", "debit-1", {})


def test_each_process_has_a_port(start: Start, file_shop: str):
    """Figures of one process are not those of another, so each is asked at its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    worker = start("worker", file_shop, "--processes", "2", "--http-port", str(port))
    worker.wait_for("working on", times=2)
    assert sorted(probes(worker)) == [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"]
    for address in probes(worker):
        until(lambda address=address: httpx.get(f"{address}/ready", timeout=60).status_code == 200)
    assert worker.end(signal.SIGTERM) == 0


def test_a_port_for_figures_that_cannot_be_had(redrive: Run, file_shop: str):
    """Says which option to change, and nothing is run."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = redrive("worker", file_shop, "--http-port", str(taken.getsockname()[1]))
    assert (said.code, "choose another with --http-port" in said.err) == (2, True)
    said = redrive("worker", file_shop, "--http-port", "0", "--http-host", "192.0.2.1")
    assert (said.code, "change --http-host" in said.err) == (2, True)
    said = redrive("worker", file_shop, "--http-port", "65535", "--processes", "2")
    assert (said.code, "need as many ports" in said.err) == (2, True)


@pytest.mark.parametrize("starts_at", [-1e6, 0.0, 1e6])
def test_a_press_and_its_echo(monkeypatch: pytest.MonkeyPatch, starts_at: float):
    """The first signal counts whatever the clock says, one right behind it is its echo, a later one is the second press."""
    moments = chain([starts_at, starts_at + 0.4], repeat(starts_at + 0.6))  # whoever else asks meanwhile
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(moments))
    press = SecondPress()
    assert [press.count() for _ in range(3)] == [1, 0, 2]
