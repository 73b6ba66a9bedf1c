"""`redrive serve` as a newcomer meets it: a real process, a real port, real work."""

import asyncio
import json
import re
import signal
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from .said import Said, Started, until

Run = Callable[..., Said]
Start = Callable[..., Started]

NOISY = """
import asyncio, logging, threading, warnings
from redrive import LedgerTable, Redrive, Words
from redrive.ledgers.sqlite import write_lock
write_lock.LONG_SECONDS = 0.5
app = Redrive({url!r})

async def fail(*_, **__):
    raise RuntimeError("a view cannot be deleted from")

@app.handler("a")
async def a(task): ...

from redrive.system import System

class Noise(System):
    name = "noise"
    async def run(self, stopped):
        (await app.tasks.ledger()).prune = fail
        logging.getLogger("some.library").warning("a library's own line\\nwith a second one")
        warnings.simplefilter("always")
        warnings.warn("a warning of Python")
        threading.Thread(target=lambda: 1 / len("")).start()
        while not stopped.is_set():
            await app.add("a")
            await asyncio.sleep(0.05)

Noise(app)
"""


def address(service: Started) -> str:
    """Where the service listens."""
    service.wait_for("listens on")
    return re.search(r"http://[\d.:]+/", service.said)[0]


def is_ready(client: httpx.Client) -> bool:
    """Whether the service says that it is ready."""
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long_on("postgres")
def test_serve_from_start_to_end(start: Start, stored: Run, url: str):
    """It starts, says what it is, does work that is added, shows it, and ends on SIGTERM."""
    service = start("serve", "--app", "examples.sample:app", "--port", "0", DATABASE_URL=url, LOG_FORMAT="json")
    with httpx.Client(base_url=address(service), timeout=60) as client:
        until(lambda: is_ready(client), lambda: service.said)
        service.wait_for("Ctrl-C stops")
        key = re.search(r"rdk_[\w-]+", service.said)[0]
        assert "SQLite" in service.said or "PostgreSQL" in service.said
        assert "redrive tasks add flaky.hello" in service.said
        assert re.search(r"curl http://[\d.:]+/webhooks -H 'Content-Type: application/json' -d '\{", service.said)
        assert client.get("/health").json()["checks"] == {"database": "ok"}
        stored("tasks", "add", "flaky.hello", "--key", "flaky")
        stored("tasks", "add", "poison.hello", "--key", "poison")
        stored("tasks", "add", "plain.hello", "--key", "plain")
        until(lambda: bool(client.get("/api/tasks", params={"kind": "poison.hello"}).json()["tasks"]))
        for name, state, failures in (("plain", "done", 0), ("flaky", "done", 2), ("poison", "dead", 4)):
            until(
                lambda name=name, state=state: stored("tasks", "show", name, "--json").json["state"] == state, every=0.3
            )
            assert stored("tasks", "show", name, "--json").json["failures"] == failures
        metrics = client.get("/metrics", headers={"X-API-Key": key}).text
        assert re.search(
            r'redrive_tasks_dead_total\{kind="poison.hello",ledger="redrive_task",verdict="exhausted"\} 1.0', metrics
        )
    assert service.end(signal.SIGTERM) == 0
    logged = [json.loads(line) for line in service.said.splitlines() if line.startswith("{")]
    assert {"task_done", "retry_scheduled", "task_dead", "request"} <= {line["event"] for line in logged}
    assert all({"service", "system", "level", "@timestamp"} <= set(line) for line in logged)
    assert not any("Traceback" in line for line in service.said.splitlines())


def test_nothing_is_suggested_that_is_not_installed(start: Start, redrive: Run):
    """The examples are in the repository alone: who installed the package is not sent to a module that is not there."""
    service = start("serve", "--port", "0")
    service.wait_for("Ctrl-C stops")
    assert "redrive doctor" in service.said
    assert "examples." not in service.said
    assert "examples." not in redrive("serve", "--help").out
    assert service.end(signal.SIGINT) == 0


def test_first_key_is_printed_once(start: Start):
    """A second start finds the key and prints none."""
    for keys in (1, 0):
        service = start("serve", "--port", "0")
        service.wait_for("Ctrl-C stops")
        assert len(re.findall(r"rdk_[\w-]+", service.said)) == keys
        assert service.end(signal.SIGINT) == 0


def test_given_admin_key_is_not_printed(start: Start, redrive: Run):
    """REDRIVE_ADMIN_KEY is stored, and said by nobody."""
    service = start("serve", "--port", "0", REDRIVE_ADMIN_KEY="a-key-from-the-outside")
    service.wait_for("Ctrl-C stops")
    assert "a-key-from-the-outside" not in service.said
    assert "rdk_" not in service.said
    assert [key["owner"] for key in redrive("keys", "list", "--json").json["keys"]] == ["REDRIVE_ADMIN_KEY"]
    with httpx.Client(base_url=address(service), headers={"X-Forwarded-For": "192.0.2.7"}, timeout=60) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"X-API-Key": "a-key-from-the-outside"}).status_code == 200
    assert service.end(signal.SIGTERM) == 0


def test_without_an_application_nothing_is_run(start: Start, redrive: Run):
    """A service without handlers shows tasks and leaves them alone; what systems do by themselves goes on."""
    service = start("serve", "--port", "0", REDRIVE_SYSTEMS="webhooks")
    service.wait_for("Ctrl-C stops")
    assert "nobody handles them here" in service.said
    assert "curl" not in service.said
    redrive("tasks", "add", "mine", "--key", "mine")
    with httpx.Client(base_url=address(service), timeout=60) as client:
        until(lambda: bool(client.get("/api/tasks", params={"kind": "mine"}).json()["tasks"]))
        assert "No handlers are loaded" in client.get("/").text
        until(lambda: client.get("/ready").json()["checks"]["worker"] == "running")
    assert service.end(signal.SIGTERM) == 0
    assert redrive("tasks", "show", "mine", "--json").json["state"] == "waiting"


def test_it_says_which_systems_run_and_how_to_turn_on_the_others(start: Start):
    """None runs that nobody named; the words that turn on the others are ones that work."""
    service = start("serve", "--port", "0")
    service.wait_for("Ctrl-C stops")
    assert re.search(r"systems +none\b", service.said)
    assert re.search(r"not running +commands, flags, relay, triggers, webhooks: turn on", service.said)
    assert "relay needs RABBITMQ_URL too" in service.said
    [named] = re.findall(r"REDRIVE_SYSTEMS=([a-z,]+)", service.said)
    with httpx.Client(base_url=address(service), timeout=60) as client:
        assert client.get("/api/config/flags", params={"user_id": "u"}).status_code == 404
    assert service.end(signal.SIGTERM) == 0
    service = start("serve", "--port", "0", "--systems", named)
    service.wait_for("Ctrl-C stops")
    assert re.search(r"systems +commands, flags, triggers, webhooks\b", service.said)
    assert re.search(r"not running +relay: turn on", service.said)
    with httpx.Client(base_url=address(service), timeout=60) as client:
        assert client.get("/api/config/flags", params={"user_id": "u"}).status_code == 200
    assert service.end(signal.SIGTERM) == 0


def test_the_help_names_what_runs(redrive: Run):
    """Systems run without an application, and those that nobody names do not: the help says both."""
    said = re.sub(r"[\s│]+", " ", redrive("serve", "--help").out)
    assert "nothing is run" not in said
    assert "without it none of your handlers run" in said
    assert "Systems run if they are named by --systems or REDRIVE_SYSTEMS, or if the application has them" in said


def test_every_line_of_a_json_log_is_one_object(start: Start, application: Callable[[str], str], folder: Path):
    """Of a service and of a worker: what it says at the start and at the end, warnings of libraries, of the keeper and of the
    write lock, and what a thread crashed with."""
    source = application(NOISY.format(url=f"sqlite:///{folder}/noisy.db"))
    for command in (["serve", "--port", "0", "--app", source], ["worker", source, "--http-port", "0"]):
        process = start(*command, LOG_FORMAT="json", RETENTION_DAYS="0.00001", LOG_LEVEL="warning")
        process.wait_for("Ctrl-C stops")
        with closing(sqlite3.connect(folder / "noisy.db", isolation_level=None, timeout=60)) as other:
            other.execute("BEGIN IMMEDIATE")
            process.wait_for("waiting for the write lock")
        process.wait_for("is free again")
        for said in ("a library's own line", "a warning of Python", "division by zero", "are not pruned"):
            process.wait_for(said)
        assert process.end(signal.SIGTERM) == 0
        lines = [json.loads(line) for line in process.said.splitlines()]
        assert all({"event", "level", "service", "system", "@timestamp"} <= set(line) for line in lines)
        shown = [line for line in lines if "waiting for the write lock" in line.get("message", "")]
        assert [(line["level"], line["system"]) for line in shown] == [("warning", "engine")]


def test_a_webhook_is_suggested_that_somebody_handles(start: Start, application: Callable[[str], str], folder: Path):
    """The event type is one of the application's own."""
    path = application(
        f"from redrive import Redrive\nfrom redrive.systems.webhooks import Webhooks\napp = Redrive('sqlite:///{folder}/a.db')\n"
        "webhooks = Webhooks(app)\n@webhooks.handler('order.*')\ndef order(task): ...\n"
    )
    service = start("serve", "--app", path, "--port", "0")
    service.wait_for("Ctrl-C stops")
    assert "order.hello" in service.said
    assert service.end(signal.SIGTERM) == 0


def test_a_store_that_is_away_is_waited_for(start: Start):
    """The service answers, is not healthy and not ready, and can be stopped."""
    service = start("serve", "--port", "0", "--systems", "flags", DATABASE_URL="postgresql://a@127.0.0.1:1/x")
    with httpx.Client(base_url=address(service), timeout=60) as client:
        until(lambda: client.get("/health").status_code == 503)
        assert client.get("/ready").json() == {
            "status": "not ready", "checks": {"store": "not open", "worker": "not running"}
        }  # fmt: skip
        assert "The database is not open yet" in client.get("/").text
        assert client.get("/metrics").status_code == 200
        assert client.get("/", headers={"X-API-Key": "rdk_anything"}).json()["error"]["code"] == "store_away"
    assert service.end(signal.SIGTERM) == 0


def test_an_unmigrated_store_stops_the_start(start: Start, postgres):
    """What waiting cannot mend is said, with exit code 1."""
    service = start("serve", "--port", "0", DATABASE_URL=asyncio.run(postgres.create()))
    assert service.process.wait(60) == 1
    assert "run `redrive migrate`" in service.said


def test_a_port_in_use_stops_the_start(start: Start):
    """With exit code 2 and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = start("serve", "--port", str(taken.getsockname()[1]))
        assert service.process.wait(60) == 2
    assert "is in use" in service.said
