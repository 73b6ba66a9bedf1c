"""`redrive operations`: started, looked at and steered from a terminal."""

import asyncio
import json
from collections.abc import Callable

import pytest

from redrive import PermanentError, Redrive, Task
from redrive.operator.carrier import Carrier

from .said import Said

Run = Callable[..., Said]
WHY = ("--reason", "bank is back", "--by", "ada")


@pytest.fixture
def url(tmp_path) -> str:  # what is said differs by no database; what is done is tested on both elsewhere
    return f"sqlite:///{tmp_path / 'work.db'}"


def with_app(url, work):
    """Do something with an application on the database: rounds of a carrier, or a run of its worker."""

    async def run():
        app = Redrive(url, durable=False)

        @app.handler("pay", retries=0)
        async def pay(task: Task) -> None:
            if task.redrives == 0 or task.payload["bad"]:
                raise PermanentError("no bank")

        async with app:
            return await work(app, Carrier(app.store.operations, lambda: app.lanes, "test"))

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def dead(url) -> None:
    """Three payments that died."""

    async def make(app, _):
        for number in range(3):
            await app.add("pay", {"bad": False}, key=f"pay-{number}")
        await app.work_off(app.tasks)

    with_app(url, make)


def carried(url, rounds=40):
    async def carry(app, carrier):
        for _ in range(rounds):
            await carrier.round()
            await app.work_off(app.tasks)

    with_app(url, carry)


def test_a_dry_run_says_what_would_be_taken(stored: Run):
    """And stores nothing."""
    plan = stored("operations", "start", "--kind", "pay", "--dry-run", "--json").json
    assert (plan["matched"], plan["kinds"]) == (3, [{"kind": "pay", "amount": 3}])
    assert plan["ramp"]["words"] == "1, 5, 25, 100, then the rest; 20 a second; stops above 10%"
    assert stored("operations", "list", "--json").json["operations"] == []
    said = stored("operations", "start", "--all", "--dry-run", "--patch", '[{"op":"replace","path":"/bad","value":1}]')
    assert "/bad: False → 1" in said.err
    assert "dead tasks of redrive_task match" in said.err


def test_from_the_start_to_its_end(stored: Run, url: str):
    """Started, carried on by whoever works, and told step by step."""
    started = stored("operations", "start", "--all", *WHY, "--steps", "1", "--rate", "1000/s", "--json").json
    assert (started["state"], started["started_by"], started["reason"]) == ("gathering", "ada", "bank is back")
    carried(url)
    shown = stored("operations", "show", started["id"], "--json").json
    assert (shown["state"], shown["tasks"]["done"]) == ("done", 3)
    assert [step["fates"]["done"] for step in shown["by_step"]] == [1, 2]
    told = stored("operations", "show", started["id"]).out
    assert "all 3 are through: 3 done" in told
    assert started["id"] in stored("operations", "list", "--state", "done").out


def test_it_is_steered(stored: Run, url: str):
    """Changed, paused, resumed, halted, given back; each with a reason, and refused where it does not stand so."""
    id_ = stored("operations", "start", "--all", *WHY, "--json").json["id"]
    carried(url, rounds=1)
    assert stored("operations", "change", id_, "--rate", "5/s", *WHY, "--json").json["ramp"]["rate"] == 5
    for act, state in (("pause", "paused"), ("halt", "halted"), ("resume", "running"), ("give-back", "given back")):
        assert stored("operations", act, id_, *WHY, "--json").json["state"] == state
    late = stored("operations", "resume", id_, *WHY)
    assert late.code == 1
    assert "the operation is given back" in late.err
    unsaid = stored("operations", "pause", id_)
    assert (unsaid.code, "say why" in unsaid.err) == (2, True)
    assert "there is no operation" in stored("operations", "show", "nothing").err


def test_another_person_approves(stored: Run, url: str, monkeypatch):
    """What the environment asks for holds here, too."""
    monkeypatch.setenv("REDRIVE_APPROVALS", "2")
    id_ = stored("operations", "start", "--all", *WHY, "--json").json["id"]
    carried(url, rounds=1)
    refused = stored("operations", "approve", id_, *WHY)
    assert "somebody else must approve it" in refused.err
    approved = stored("operations", "approve", id_, "--by", "ben", "--reason", "seen", "--json").json
    assert (approved["state"], approved["approved_by"]) == ("running", "ben")


def test_a_patch_from_a_file(stored: Run, url: str, folder):
    """And the old payload can be read afterwards."""
    (folder / "patch.json").write_text(json.dumps([{"op": "add", "path": "/note", "value": "again"}]))
    id_ = stored("operations", "start", "--all", *WHY, "--patch", "@patch.json", "--all-now", "--json").json["id"]
    carried(url, rounds=4)
    edited = stored("operations", "show", id_, "--json").json["edited"]
    assert [(one["before"], one["after"]) for one in edited] == [({"bad": False}, {"bad": False, "note": "again"})] * 3
    assert "is not JSON" in stored("operations", "start", "--all", *WHY, "--patch", "{").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "say which tasks"),
        (("--all",), "say why"),
        (("--all", "--reason", "x", "--halt", "200%"), "halt is a share"),
        (("--all", "--reason", "x", "--rate", "fast"), "rate must look like"),
        (("--all", "--reason", "x", "--all-now", "--rate", "1/s"), "all now has no steps"),
        (("pay-0", "--kind", "pay", "--reason", "x"), "not both"),
    ],
)
def test_what_cannot_be_meant_is_refused(stored: Run, options, said):
    """With one sentence, and nothing is stored."""
    refused = stored("operations", "start", *options)
    assert refused.code == 2
    assert said in refused.err
