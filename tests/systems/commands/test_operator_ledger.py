"""The dashboard's own pages and acts over the ledger of the bus: on PostgreSQL it waits in queues of PGMQ, which they know nothing of."""

from typing import Any

import pytest

from redrive import seconds
from redrive.errors import UsageError
from redrive.operator.carrier import Carrier
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.figures import SqlFigures
from redrive.ports import Filter
from redrive.systems.commands import BusinessRuleError, NewCommand, TransientCommandError
from tests.systems.commands.conftest import BAD, DOMAIN, REPLIES, TYPE, Desk

KIND = f"{DOMAIN}/{TYPE}"


async def in_every_state(desk: Desk) -> dict[str, int]:
    """Commands in every state: the ids of their tasks."""
    bench = desk.bench
    await desk.troubled("dead-1", "dead-2")
    bench.raises = [TransientCommandError("BANK_AWAY", "later"), BusinessRuleError("NO", "no"), None]
    for one in ("retrying", "refused", "done"):
        await bench.send(one)
        await bench.work()
    await bench.send("claimed")
    assert len(await bench.bus.ledger.claim(1, seconds(30), kinds=[KIND])) == 1
    await bench.send("waiting")
    names = ("dead-1", "dead-2", "retrying", "refused", "done", "claimed", "waiting")
    await SqlCensus(bench.bus.ledger).take()
    return {name: (await bench.get(name)).id for name in names}


async def test_the_overview_counts_by_state(desk: Desk) -> None:
    """Tasks by state, what was done and what died, and that a handler is known."""
    await in_every_state(desk)
    said = await desk.get("/api/overview", ledger="commands")
    assert said["states"] == {"waiting": 2, "claimed": 1, "done": 1, "dead": 2, "cancelled": 1}
    [ledger] = said["by_ledger"]
    assert (ledger["ledger"], ledger["system"], ledger["without_handler"]) == ("commands", "commands", [])
    assert ledger["oldest_due_seconds"] == 0
    assert said["success_rate"] == pytest.approx(1 / 3)
    depth = (await desk.get("/api/series", ledger="commands"))["depth"][-1]
    assert (depth["waiting"], depth["claimed"], depth["dead"]) == (2, 1, 2)
    # What is sent later is found by the next count, and is counted once.
    await desk.bench.send("later")
    await SqlCensus(desk.bench.bus.ledger).take()
    desk.bench.advance(seconds=2)
    states = await counted_states(desk)
    assert states == {"waiting": 3, "claimed": 1, "done": 1, "dead": 2, "cancelled": 1}


async def counted_states(desk: Desk) -> dict[str, int]:
    """What the figures say, past the answers that hold for a moment."""
    counted = (await SqlFigures(desk.bench.app.database).states())["commands"]
    return {state.value: amount for state, amount in counted.amounts.items()}


async def test_pages_of_tasks_by_state(desk: Desk) -> None:
    """Every state has its page, in either direction, with and without a kind; small pages miss nothing."""
    ids = await in_every_state(desk)
    for state, names in (
        ("waiting", ["retrying", "waiting"]),
        ("claimed", ["claimed"]),
        ("done", ["done"]),
        ("dead", ["dead-1", "dead-2"]),
        ("cancelled", ["refused"]),
    ):
        expected = sorted(ids[name] for name in names)
        for asked in ({}, {"newest_first": "true"}, {"kind": KIND}):
            found, cursor = [], None
            while True:
                page = await desk.get(
                    "/api/tasks",
                    ledger="commands",
                    state=state,
                    limit=1,
                    **asked,
                    **({"cursor": cursor} if cursor else {}),
                )
                found += [task["id"] for task in page["tasks"]]
                cursor = page["cursor"]
                if cursor is None:
                    break
            assert sorted(found) == expected, (state, asked)
        assert (await desk.get("/api/tasks", ledger="commands", state=state, kind="nobody/Nothing"))["tasks"] == []
    due_first = await desk.get("/api/tasks", ledger="commands", state="waiting")
    assert [task["id"] for task in due_first["tasks"]] == [ids["waiting"], ids["retrying"]]


async def test_one_task_with_its_preview(desk: Desk) -> None:
    """Its row, its attempts with the sentence, and the very instants of the tries to come."""
    ids = await in_every_state(desk)
    said = await desk.get(f"/api/tasks/commands/{ids['retrying']}")
    assert (said["task"]["kind"], said["task"]["failures"]) == (KIND, 1)
    [attempt] = said["attempts"]
    assert attempt["delay_seconds"] == 60
    assert "again after" in attempt["sentence"]
    assert [one["at"] for one in said["preview"]] == [said["task"]["due_at"], "2030-01-01T00:06:00.000000Z"]
    assert "hunter2" not in str(await desk.get(f"/api/tasks/commands/{ids['dead-1']}"))
    page = await desk.local.get(f"/tasks/commands/{ids['retrying']}", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "BANK_AWAY" in page.text


async def test_a_group_of_the_dead_is_redriven(desk: Desk) -> None:
    """Dead letters by cause; the group goes back with new messages and is done, audited for each command."""
    await in_every_state(desk)
    [group] = await desk.get("/api/groups", ledger="commands")
    assert (group["amount"], "no account" in group["text"]) == (2, True)
    asked = {"ledger": "commands", "filter": {"cause": group["cause"]}, "reason": "account opened"}
    counted = await post(desk, "/api/tasks/redrive", {**asked, "dry_run": True})
    assert (counted["matched"], counted["changed"]) == (2, 0)
    done = await post(desk, "/api/tasks/redrive", asked)
    assert (done["matched"], done["changed"], done["complete"]) == (2, 2, True)
    await desk.bench.work()
    for one in ("dead-1", "dead-2"):
        assert (await desk.bench.get(one)).status == "COMPLETED"
        assert "OPERATOR_RETRY account opened" in await desk.bench.events(one)
    assert (await desk.get("/api/commands/troubleshooting"))["waiting"] == {}


async def test_what_waits_is_cancelled_by_a_filter(desk: Desk) -> None:
    """All waiting commands of a kind, and nothing else."""
    await in_every_state(desk)
    asked = {"ledger": "commands", "filter": {"kind": KIND}, "reason": "not wanted"}
    assert (await post(desk, "/api/tasks/cancel", {**asked, "dry_run": True}))["matched"] == 2
    assert (await post(desk, "/api/tasks/cancel", asked))["changed"] == 2
    statuses = {name: (await desk.bench.get(name)).status for name in ("waiting", "retrying", "claimed", "dead-1")}
    assert list(statuses.values()) == ["CANCELED", "CANCELED", "IN_PROGRESS", "IN_TROUBLESHOOTING_QUEUE"]


SAME = {
    "retry": ("redrive", {}),
    "cancel": ("resolve", {"state": "cancelled"}),
    "complete": ("resolve", {"state": "done"}),
}


@pytest.mark.parametrize("act", SAME)
async def test_acts_on_tasks_are_the_acts_of_the_bus(desk: Desk, act: str) -> None:
    """The same status, message, audit, reply, count in the batch and line in the audit log, whichever door was taken."""
    bench = desk.bench
    for batch in ("by-task", "by-bus"):
        bench.raises.append(BAD)
        command = NewCommand(domain=DOMAIN, command_type=TYPE, command_id=batch, data={"n": 1}, reply_to=REPLIES)
        await bench.bus.create_batch(DOMAIN, [command], batch_id=batch)
        await bench.work()
    path, more = SAME[act]
    task = (await bench.get("by-task")).id
    assert (await post(desk, f"/api/tasks/{path}", {"ledger": "commands", "ids": [task], "reason": "mended", **more}))[
        "changed"
    ] == 1
    assert (await desk.act(act, "by-bus"))["changed"] == 1
    seen = [await whole_story(desk, one) for one in ("by-task", "by-bus")]
    assert seen[0] == seen[1]
    replies = [(one.outcome, one.result, one.error) for one in await bench.bus.take_replies(REPLIES)]
    assert len(replies) == (0 if act == "retry" else 2)
    assert len({str(reply) for reply in replies}) <= 1


async def whole_story(desk: Desk, command_id: str) -> Any:
    """All that is on record of a command, but for its ids."""
    bench = desk.bench
    row = await bench.get(command_id)
    batch = await bench.bus.get_batch(DOMAIN, command_id)
    audit = [(event.event_type, dict(event.details)) for event in await bench.bus.audit_trail(command_id)]
    deeds = [(deed.act, deed.actor, deed.reason) for deed in await bench.bus.lane.deeds(row.id)]
    counted = {
        name: getattr(batch, name) for name in ("status", "pending", "completed", "canceled", "in_troubleshooting")
    }
    return row.status, row.attempts, row.troubled_at, await bench.message(command_id), audit, deeds, counted


async def post(desk: Desk, path: str, body: Any) -> Any:
    """The answer to an act of the operator API."""
    answer = await desk.local.post(path, json=body, headers={"X-API-Key": desk.keys["operator"]})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_operation_brings_commands_back(desk: Desk) -> None:
    """Step by step, also where they wait in queues; what their senders asked for is not edited."""
    await desk.troubled("dead-1", "dead-2", "dead-3")
    bench = desk.bench
    lane = bench.app.lanes["commands"]
    with pytest.raises(UsageError, match="send another command instead"):
        await lane.operations.start(Filter(), actor="ada", reason="x", payload={})
    started = await lane.operations.start(Filter(), actor="ada", reason="the bank is back", steps="1", rate="1000/s")
    carrier = Carrier(bench.app.store.operations, lambda: bench.app.lanes, "test")
    operation = started
    for _ in range(50):
        await carrier.round()
        await bench.work()
        bench.advance(seconds=1)
        operation = await lane.operations.get(started.id)
        if operation.ended_at is not None:
            break
    assert (operation.state, operation.tally.done) == ("done", 3)
    assert [step.released for step in await lane.operations.steps(started.id)] == [1, 2]
