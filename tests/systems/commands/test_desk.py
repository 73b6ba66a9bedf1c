"""People: looking at what waits for them, and acting on it once, with their name."""

import asyncio

import pytest
from sqlalchemy import event, text

from redrive import Filter, State
from redrive.errors import UsageError
from redrive.events import Act, TasksChanged
from redrive.ports import Actor
from redrive.systems.commands import (
    BusinessRuleError,
    CommandNotFoundError,
    InvalidOperationError,
    PermanentCommandError,
)
from tests.systems.commands.conftest import DOMAIN, Bench

BAD = PermanentCommandError("NO_ACCOUNT", "no such account")


async def troubled(bench: Bench, *ids: str) -> None:
    """Commands that wait for a person."""
    for one in ids or ("c-1",):
        bench.raises.append(BAD)
        await bench.send(one)
        await bench.work()


async def test_list_count_and_get(bench: Bench) -> None:
    """What waits is listed newest first in pages, counted, and shown with its data; the rest is not."""
    await troubled(bench, "c-1", "c-2", "c-3")
    await bench.send("fine")
    await bench.work()
    first = await bench.bus.troubleshooting.list(DOMAIN, limit=2)
    rest = await bench.bus.troubleshooting.list(DOMAIN, limit=2, cursor=first.cursor)
    assert [one.command_id for one in (*first.items, *rest.items)] == ["c-3", "c-2", "c-1"]
    assert rest.cursor is None
    assert await bench.bus.troubleshooting.count() == await bench.bus.troubleshooting.count(DOMAIN) == 3
    assert await bench.bus.troubleshooting.count("shipping") == 0
    assert (await bench.bus.troubleshooting.list(type="Other")).items == []
    found = await bench.bus.troubleshooting.get(DOMAIN, "c-2")
    assert (found.data, found.last_error_code) == ({"n": 1}, "NO_ACCOUNT")
    with pytest.raises(InvalidOperationError, match="COMPLETED"):
        await bench.bus.troubleshooting.get(DOMAIN, "fine")
    with pytest.raises(CommandNotFoundError):
        await bench.bus.troubleshooting.get(DOMAIN, "nobody")


async def test_retry(bench: Bench) -> None:
    """Attempts begin anew with a new message; it is audited with the operator's name, and what was is kept."""
    await troubled(bench)
    before = (await bench.get()).msg_id
    await bench.bus.troubleshooting.retry(DOMAIN, "c-1", "ada", reason="account opened")
    row = await bench.get()
    assert (row.status, row.attempts, row.troubled_at) == ("PENDING", 0, None)
    assert await bench.message() == "queued for 0 s"
    assert bench.store == "sqlite" or row.msg_id > before
    [event] = [one for one in await bench.bus.audit_trail("c-1") if one.event_type == "OPERATOR_RETRY"]
    assert event.details == {"operator": "ada", "reason": "account opened"}
    assert await bench.replies() == []
    bench.result = "paid"
    await bench.work()
    assert (await bench.get()).status == "COMPLETED"
    assert bench.calls[-1][0].data == {"n": 1}
    assert bench.calls[-1][1:] == (1, 3)
    assert await bench.replies() == [("SUCCESS", "paid")]
    [task] = (await bench.bus.lane.find(Filter())).items
    [deed] = await bench.bus.lane.deeds(task.id)
    assert (deed.act, deed.actor) == ("redrive", "ada")


async def test_cancel(bench: Bench) -> None:
    """Cancelled for a reason, which the sender is told."""
    await troubled(bench)
    with pytest.raises(UsageError, match="reason"):
        await bench.bus.troubleshooting.cancel(DOMAIN, "c-1", "ada", reason=" ")
    await bench.bus.troubleshooting.cancel(DOMAIN, "c-1", "ada", reason="customer left")
    row = await bench.get()
    assert (row.status, row.troubled_at) == ("CANCELED", None)
    [reply] = await bench.bus.take_replies("payments__replies")
    assert (reply.outcome, reply.error) == ("CANCELED", {"code": "CANCELED", "message": "customer left"})
    [event] = [one for one in await bench.bus.audit_trail("c-1") if one.event_type == "OPERATOR_CANCEL"]
    assert event.details == {"operator": "ada", "reason": "customer left"}
    assert await bench.message() == "archived"


async def test_complete(bench: Bench) -> None:
    """Done by hand: completed, and the sender gets the result that the operator gives."""
    await troubled(bench)
    with pytest.raises(UsageError):
        await bench.bus.troubleshooting.complete(DOMAIN, "c-1", "ada", result=object())
    await bench.bus.troubleshooting.complete(DOMAIN, "c-1", "ada", result={"paid": True})
    assert (await bench.get()).last_error_type is None
    assert (await bench.get()).status == "COMPLETED"
    assert await bench.replies() == [("SUCCESS", {"paid": True})]
    assert (await bench.events())[-1] == "OPERATOR_COMPLETE"


ACTS = {
    "retry": lambda queue, id_: queue.retry(DOMAIN, id_, "ada"),
    "cancel": lambda queue, id_: queue.cancel(DOMAIN, id_, "ada", reason="why"),
    "complete": lambda queue, id_: queue.complete(DOMAIN, id_, "ada"),
}


@pytest.mark.parametrize("act", ACTS)
async def test_only_from_the_troubleshooting_queue(bench: Bench, act: str) -> None:
    """Pending, running, done, failed and cancelled commands are left as they are, and the error says where they stand."""

    await troubled(bench, "canceled")
    await bench.bus.troubleshooting.cancel(DOMAIN, "canceled", "ada", reason="why")
    bench.raises = [BusinessRuleError("NO", "no")]
    await bench.send("failed")
    await bench.work()
    await bench.send("completed")
    await bench.work()
    await bench.send("in_progress")
    await bench.bus.ledger.claim(1, bench.bus.settings.commands_visibility_timeout, kinds=["payments/DebitAccount"])
    await bench.send("pending")
    await bench.replies()
    for status in ("pending", "in_progress", "completed", "failed", "canceled"):
        before = await bench.get(status), await bench.events(status)
        with pytest.raises(InvalidOperationError, match=f"is {status.upper()}"):
            await ACTS[act](bench.bus.troubleshooting, status)
        assert (await bench.get(status), await bench.events(status)) == before
    with pytest.raises(CommandNotFoundError, match="nobody"):
        await ACTS[act](bench.bus.troubleshooting, "nobody")
    assert await bench.replies() == []


@pytest.mark.parametrize("first", ACTS)
@pytest.mark.parametrize("second", ACTS)
async def test_two_operators_at_once(bench: Bench, first: str, second: str) -> None:
    """Whatever two people press at the same moment, one of them does it and the other is told; one audit, one reply."""
    await troubled(bench)
    results = await asyncio.gather(
        *(ACTS[act](bench.bus.troubleshooting, "c-1") for act in (first, second)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["InvalidOperationError", "NoneType"]
    done = (first, second)[results.index(None)]
    assert [event for event in await bench.events() if event.startswith("OPERATOR")] in (
        [f"OPERATOR_{done.upper()}"],
        [f"OPERATOR_{done.upper()} why"],
    )
    assert len(await bench.replies()) == (0 if done == "retry" else 1)
    if done == "retry" and bench.store == "postgres":
        count = text("SELECT count(*) FROM pgmq.q_payments__commands")
        assert await bench.app.database.read(lambda connection: connection.execute(count).scalar_one()) == 1


async def test_in_bulk(bench: Bench) -> None:
    """Many at once, each for itself: those that changed, and why the others did not."""
    await troubled(bench, "c-1", "c-2", "c-3", "c-4")
    await bench.send("fine")
    queue = bench.bus.troubleshooting
    bulk = await queue.retry_many(DOMAIN, ["c-1", "fine", "nobody", "c-1"], "ada")
    assert list(bulk.changed) == ["c-1"]
    assert bulk.refused.keys() == {"fine", "nobody"}
    assert "PENDING" in bulk.refused["fine"]
    assert (await queue.cancel_many(DOMAIN, ["c-2", "c-1"], "ada", reason="why")).changed == ["c-2"]
    assert (await queue.complete_many(DOMAIN, ["c-3", "c-4"], "ada", result=1)).changed == ["c-3", "c-4"]
    assert await queue.count() == 0
    assert await bench.replies() == [("CANCELED", "CANCELED"), ("SUCCESS", 1), ("SUCCESS", 1)]
    with pytest.raises(UsageError, match="at most"):
        await queue.retry_many(DOMAIN, [str(n) for n in range(1001)], "ada")
    with pytest.raises(UsageError, match="operator"):
        await queue.retry_many(DOMAIN, ["c-1"], " ")


async def test_acts_of_the_engines_own_tools_are_the_same(bench: Bench) -> None:
    """`redrive tasks redrive` and its like go through the same door: new message, audit, reply."""
    await troubled(bench, "c-1", "c-2")

    done = await bench.bus.lane.redrive(Filter(error="no such account"), actor="ops", reason="by hand")
    assert done.matched == 2
    assert await bench.events() == [*(await bench.events())[:-1], "OPERATOR_RETRY by hand"]
    assert await bench.bus.troubleshooting.count() == 0
    [id_] = [one.id for one in (await bench.bus.lane.find(Filter())).items][:1]
    await bench.bus.lane.cancel(Filter(ids=[id_]), actor="ops", reason="why")
    assert (await bench.bus.lane.get_by_id(id_)).state is State.CANCELLED
    assert await bench.replies() == [("CANCELED", "CANCELED")]


async def test_observers_hear_of_it(bench: Bench) -> None:
    """What an operator does is announced like any other act."""
    heard = []

    class Ear:
        def observe(self, events):
            heard.extend(event for event in events if isinstance(event, TasksChanged))

    bench.app.observers.append(Ear())
    await troubled(bench)
    await bench.bus.troubleshooting.retry(DOMAIN, "c-1", "ada")
    [event] = heard
    assert (event.ledger, event.act, event.actor) == ("commands", "redrive", "ada")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_message_that_left_the_archive(bench: Bench) -> None:
    """Where somebody emptied PGMQ's archive, a retry says so and leaves the command where it is."""
    await troubled(bench)
    gone = text("DELETE FROM pgmq.a_payments__commands")
    await bench.app.database.write(lambda connection: connection.execute(gone))
    with pytest.raises(InvalidOperationError, match="no longer in PGMQ's archive"):
        await bench.bus.troubleshooting.retry(DOMAIN, "c-1", "ada")
    await bench.bus.troubleshooting.complete(DOMAIN, "c-1", "ada")


async def test_one_that_comes_into_the_queue_meanwhile(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not in the queue when it was asked for, and is now, is not called lost: the operator may ask again."""
    bench.raises = [PermanentCommandError("NO", "no such account")]
    await bench.send()
    looked = bench.bus.troubleshooting._standing

    async def late(domain, command_ids):
        found = await looked(domain, command_ids)
        await bench.work()
        return found

    monkeypatch.setattr(bench.bus.troubleshooting, "_standing", late)
    with pytest.raises(InvalidOperationError, match="has only just come into the troubleshooting queue"):
        await bench.bus.troubleshooting.retry(DOMAIN, "c-1", "ada")
    await bench.bus.troubleshooting.retry(DOMAIN, "c-1", "ada")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_queues_are_locked_in_one_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling and acting lock queues in the order of their names, however the database sorts those: never in a circle."""
    for domain in ("b", "c", "a"):
        await bench.bus.send(domain, "Pack", "c-1")
    ids = [one.id for one in (await bench.bus.lane.find(Filter())).items]
    statements, column = bench.bus.ledger._queued, bench.bus.messages.tables.command.c.queue_name
    backwards = statements.messages_of.order_by(None).order_by(column.desc())
    monkeypatch.setitem(vars(statements), "messages_of", backwards)
    locked = []

    def act(connection):
        def note(_connection, _cursor, statement, *_):
            if "FOR UPDATE" in statement:
                locked.append(statement.partition("FROM pgmq.q_")[2][:1])

        event.listen(connection, "before_cursor_execute", note)
        changed = bench.bus.ledger._act_on(
            connection, Act.CANCEL, State.CANCELLED, ids, Actor(name="ada", reason="why")
        )
        event.remove(connection, "before_cursor_execute", note)
        return changed

    assert sorted(await bench.app.database.write(act)) == sorted(ids)
    assert locked == ["a", "b", "c"]
