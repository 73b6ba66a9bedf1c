"""The command line where events are kept in DynamoDB: settings alone choose it, and no SQL database is there."""

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from redrive import Redrive
from redrive.access.secret_box import SecretBox, new_key
from redrive.stores.port import NO_TASKS
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.values import NewEvent
from tests.stores.items import item_settings, item_url

from .said import Said, Started, until

Run = Callable[..., Said]
Start = Callable[..., Started]
LEASE_SECONDS = "4"
GONE = "http://127.0.0.1:9/hook"


@pytest.fixture
def items(aws: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The settings of an empty store; its URL.

    A message that a service took when it ended is shown again soon, as its workers' lease allows.
    """
    with asyncio.Runner() as runner:
        made = item_url(aws, VisibilityTimeout=LEASE_SECONDS)
        url = runner.run(made.__aenter__())
        for name, value in (item_settings(url) | {"WORKER_LEASE": LEASE_SECONDS}).items():
            monkeypatch.setenv(name, value)
        yield f"{url}&lease={LEASE_SECONDS}"
        runner.run(made.__aexit__(None, None, None))


async def offer(url: str, *, events: int = 0) -> Any:
    """An endpoint that nobody answers at, with this secret, and some events for it."""
    app = Redrive(url)
    triggers = Triggers(app)
    async with app:
        values = {"user_id": "ada", "url": GONE, "event_types": ["*"], "policy": {}, "enabled": True}
        made = await triggers.endpoints.create(values | {"secret": new_secret()})
        new = NewEvent(user_id="ada", event_type="a.b", payload="{}", correlation_id="c")
        if events:
            await triggers.intake.take([new] * events)
        return await triggers.endpoints.get("ada", made.id)


def test_status_and_top_without_sql(redrive: Run, items: str):
    """What stands where is told, and that nobody works it off; that kinds are not counted is said, and not that there are none."""
    asyncio.run(offer(items, events=2))
    said = redrive("status", "--json")
    assert (said.code, [one["subject"] for one in said.json["troubles"]]) == (1, ["nobody_works"]), said.out
    figures = {one["name"]: one["value"] for one in said.json["strip"]}
    assert (figures["Waiting"], figures["Dead"]) == ("2", "0")
    seen = redrive("top", "--looks", "1")
    assert seen.code == 0, seen.err
    assert "Kinds are not counted on DynamoDB" in " ".join(seen.out.split())


def test_settings_alone_choose_the_table(redrive: Run, items: str):
    """Doctor, keys and tasks work on it. What it cannot do is refused with one sentence."""
    asyncio.run(offer(items, events=1))
    said = redrive("doctor", "--json")
    assert said.code == 0, said.out
    found = {finding["name"]: finding for finding in said.json["findings"]}
    assert "with its indexes" in found["table"]["said"]
    assert found["trigger_deliveries"]["said"] == "1 waiting"
    assert found["secrets"]["said"] == "1 are encrypted"
    made = redrive("keys", "create", "--user", "ada", "--scope", "viewer", "--json").json
    assert [key["key_id"] for key in redrive("keys", "list", "--json").json["keys"]] == [made["key_id"]]
    assert redrive("keys", "revoke", made["key_id"]).code == 0
    [task] = redrive("tasks", "list", "--json").json["tasks"]
    assert (task["ledger"], task["state"]) == ("trigger_deliveries", "waiting")
    assert redrive("tasks", "show", task["id"], "--json").json["id"] == task["id"]
    done = redrive("tasks", "cancel", task["id"], "--reason", "not needed", "--yes", "--json").json
    assert done["changed"] == [{"ledger": "trigger_deliveries", "id": task["id"]}]
    for command in (("tasks", "add", "a"), ("adopt", "orders")):
        refused = redrive(*command)
        assert (refused.code != 0, NO_TASKS in " ".join(refused.err.split())) == (True, True), refused.err
    refused = redrive("migrate")
    assert (refused.code != 0, "deploy/aws/template.yaml" in refused.err) == (True, True), refused.err


def test_the_queue_is_held_against_the_lease_of_the_workers(redrive: Run, items: str, monkeypatch: pytest.MonkeyPatch):
    """A queue that shows messages again while they are worked on is named by doctor, with the seconds that WORKER_LEASE asks for."""
    monkeypatch.setenv("WORKER_LEASE", "77")
    [queue] = [one for one in redrive("doctor", "--json").json["findings"] if one["name"] == "queue"]
    assert (queue["status"], "set it to at least 77 s" in queue["said"]) == ("problem", True)


def test_secrets_are_sealed_anew(redrive: Run, items: str, monkeypatch: pytest.MonkeyPatch):
    """A new key takes over, the old one can go."""
    old, new = new_key(), new_key()
    monkeypatch.setenv("REDRIVE_SECRET_KEY", old)
    before = asyncio.run(offer(items)).secret
    monkeypatch.setenv("REDRIVE_SECRET_KEY", f"{new},{old}")
    [found] = [one for one in redrive("doctor", "--json").json["findings"] if one["name"] == "secrets"]
    assert "1 of 1 are encrypted with an older key" in found["said"]
    said = redrive("secrets", "rotate", "--json")
    assert (said.code, said.json["changed"], said.json["older"]) == (0, 1, 1)
    assert redrive("secrets", "rotate", "--json").json["changed"] == 0
    monkeypatch.setenv("REDRIVE_SECRET_KEY", new)
    [found] = [one for one in redrive("doctor", "--json").json["findings"] if one["name"] == "secrets"]
    assert (found["status"], found["said"]) == ("ok", "1 are encrypted")
    assert SecretBox([old]).open(before).startswith("whsec_")


def test_other_systems_are_refused_at_the_start(redrive: Run, items: str):
    """With the remedy, before anything is served."""
    refused = redrive("serve", "--systems", "flags,triggers", "--port", "0")
    said = " ".join(refused.err.split())
    assert (refused.code != 0, f"flags cannot run here: {NO_TASKS}" in said) == (True, True), refused.err


def test_serve_and_worker_run_without_any_code(start: Start, items: str):
    """The service says what it is kept in and answers; a worker beside it tries what is due."""
    served = start("serve", "--port", "0", HTTP_TRUST_LOOPBACK="true", LOG_FORMAT="json")
    served.wait_for("admin key")
    table = urlsplit(items).netloc
    assert re.search(rf"store +dynamodb://{table} \(DynamoDB in us-east-1", served.said)
    [site] = re.findall(r"listens on (http://[^/]+/)", served.said)
    health = httpx.get(f"{site}health", timeout=60)
    assert (health.status_code, health.json()["checks"]["database"]) == (200, "ok")
    assert served.end(signal.SIGTERM) == 0
    asyncio.run(offer(items, events=1))
    worked = start("worker", LOG_FORMAT="json", DELIVERY_ALLOW_NETWORKS="127.0.0.0/8")
    worked.wait_for(f"working on dynamodb://{table}")
    until(lambda: "delivery_failure" in worked.said, lambda: worked.said)
    assert worked.end(signal.SIGTERM) == 0
