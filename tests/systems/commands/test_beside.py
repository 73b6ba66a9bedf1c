"""Every row of the table in the specification: status, message, audit and reply together."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from redrive.errors import UsageError
from redrive.systems.commands import (
    BusinessRuleError,
    NewCommand,
    PermanentCommandError,
    TransientCommandError,
)
from redrive.testing import drain
from tests.systems.commands.conftest import DOMAIN, START, TYPE, Bench

SLOW = TransientCommandError("TIMEOUT", "the bank is slow", {"after_ms": 300})


async def test_sent(bench: Bench) -> None:
    """A command that was sent is pending, has a visible message and one line of audit."""
    await bench.send()
    row = await bench.get()
    assert (row.status, row.attempts, row.max_attempts) == ("PENDING", 0, None)
    assert (row.queue_name, row.data, row.created_at) == ("payments__commands", {"n": 1}, START)
    assert await bench.message() == "queued for 0 s"
    assert await bench.events() == ["SENT"]
    assert await bench.replies() == []


async def test_received(bench: Bench) -> None:
    """While it runs it is in progress, counted, hidden for the timeout, on record, and nothing is replied."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(command, context):
        begun.set()
        await go_on.wait()

    bench.handlers.handler(DOMAIN, "Wait")(wait)
    await bench.bus.send(DOMAIN, "Wait", "c-1", reply_to="payments__replies")
    working = asyncio.create_task(bench.work())
    await begun.wait()
    row = await bench.get()
    assert (row.status, row.attempts) == ("IN_PROGRESS", 1)
    assert await bench.message() == "queued for 30 s"
    assert await bench.events() == ["SENT", "RECEIVED"]
    assert await bench.replies() == []
    go_on.set()
    await working


async def test_done(bench: Bench) -> None:
    """Done is completed, its message deleted, audited, and replied with the result."""
    bench.result = {"balance": 90}
    await bench.send(correlation_id="order-7")
    await bench.work()
    row = await bench.get()
    assert (row.status, row.attempts, row.lease_until) == ("COMPLETED", 1, None)
    assert await bench.message() == "deleted"
    assert await bench.events() == ["SENT", "RECEIVED", "COMPLETED"]
    [reply] = await bench.bus.take_replies("payments__replies")
    assert (reply.outcome, reply.result, reply.error) == ("SUCCESS", {"balance": 90}, None)
    assert (reply.domain, reply.command_id, reply.command_type) == (DOMAIN, "c-1", TYPE)
    assert reply.correlation_id == "order-7"


async def test_transient_with_attempts_left(bench: Bench) -> None:
    """A transient failure is pending again with its error, its message hidden for the backoff, and nothing is replied."""
    bench.raises = [SLOW]
    await bench.send()
    await bench.work()
    row = await bench.get()
    assert (row.status, row.attempts) == ("PENDING", 1)
    assert (row.last_error_type, row.last_error_code, row.last_error_msg) == (
        "TRANSIENT",
        "TIMEOUT",
        "the bank is slow",
    )
    assert await bench.message() == "queued for 60 s"
    assert await bench.events() == ["SENT", "RECEIVED", "FAILED TRANSIENT"]
    failed = (await bench.bus.audit_trail("c-1"))[-1]
    assert failed.details["details"] == {"after_ms": 300}
    assert failed.details["delay_seconds"] == 60
    assert await bench.replies() == []


async def test_transient_and_spent(bench: Bench) -> None:
    """After the last attempt a person is asked; nothing is replied yet."""
    bench.raises = [SLOW, SLOW, SLOW]
    await bench.send()
    await drain(bench.app, clock=bench.clock)
    row = await bench.get()
    assert (row.status, row.attempts, row.last_error_code) == ("IN_TROUBLESHOOTING_QUEUE", 3, "TIMEOUT")
    assert row.troubled_at == bench.clock.now()
    assert await bench.message() == "archived"
    tried = ["RECEIVED", "FAILED TRANSIENT"]
    assert await bench.events() == ["SENT", *tried * 3, "MOVED_TO_TROUBLESHOOTING_QUEUE EXHAUSTED"]
    assert await bench.replies() == []


async def test_permanent(bench: Bench) -> None:
    """A permanent failure goes before a person at once."""
    bench.raises = [PermanentCommandError("NO_ACCOUNT", "no such account")]
    await bench.send()
    await bench.work()
    row = await bench.get()
    assert (row.status, row.attempts) == ("IN_TROUBLESHOOTING_QUEUE", 1)
    assert (row.last_error_type, row.last_error_code, row.last_error_msg) == (
        "PERMANENT",
        "NO_ACCOUNT",
        "no such account",
    )
    assert await bench.message() == "archived"
    assert await bench.events() == [
        "SENT",
        "RECEIVED",
        "FAILED PERMANENT",
        "MOVED_TO_TROUBLESHOOTING_QUEUE PERMANENT",
    ]
    assert await bench.replies() == []


async def test_business_rule(bench: Bench) -> None:
    """A rule that says no ends the command, and its sender is told why."""
    bench.raises = [BusinessRuleError("LIMIT", "over the limit", {"limit": 100})]
    await bench.send()
    await bench.work()
    row = await bench.get()
    assert (row.status, row.attempts, row.last_error_type) == ("FAILED", 1, "BUSINESS_RULE")
    assert await bench.message() == "archived"
    assert await bench.events() == ["SENT", "RECEIVED", "BUSINESS_RULE_FAILED BUSINESS_RULE"]
    [reply] = await bench.bus.take_replies("payments__replies")
    assert (reply.outcome, reply.result) == ("FAILED", None)
    assert reply.error == {
        "type": "BUSINESS_RULE",
        "code": "LIMIT",
        "message": "over the limit",
        "details": {"limit": 100},
    }
    assert await bench.bus.troubleshooting.count() == 0


async def test_no_handler(bench: Bench) -> None:
    """A type that nobody handles stays pending and uncharged, and goes before a person after ten minutes."""
    await bench.bus.send(DOMAIN, "Refund", "c-1", reply_to="payments__replies")
    await bench.send("c-2")
    watch = bench.bus.unhandled(bench.bus.lane)
    await bench.work()
    assert await watch.once() == 0
    assert (await bench.get("c-2")).status == "COMPLETED"
    row = await bench.get()
    assert (row.status, row.attempts) == ("PENDING", 0)
    bench.advance(minutes=9, seconds=59)
    assert await watch.once() == 0
    assert await bench.events() == ["SENT"]
    bench.advance(seconds=1)
    assert await watch.once() == 1
    row = await bench.get()
    assert (row.status, row.attempts, row.last_error_type) == ("IN_TROUBLESHOOTING_QUEUE", 0, "NO_HANDLER")
    assert "payments/Refund" in (row.last_error_msg or "")
    assert await bench.message() == "archived"
    assert await bench.events() == ["SENT", "MOVED_TO_TROUBLESHOOTING_QUEUE NO_HANDLER"]
    assert await watch.once() == 0
    await bench.bus.troubleshooting.retry(DOMAIN, "c-1", "ada")
    assert await bench.message() == "queued for 0 s"


async def test_worker_killed(bench: Bench) -> None:
    """A worker lost while a command ran alone is noticed when its message is visible again: that try counts, with backoff."""
    await bench.send()
    [lost] = await bench.bus.ledger.claim(1, bench.bus.settings.commands_visibility_timeout, kinds=[f"{DOMAIN}/{TYPE}"])
    assert await bench.bus.ledger.run_alone(lost) is not None
    bench.advance(seconds=29)
    await bench.work()
    assert await bench.events() == ["SENT", "RECEIVED"]
    bench.advance(seconds=1)
    await bench.work()
    row = await bench.get()
    assert (row.status, row.attempts, row.last_error_type) == ("PENDING", 1, "WORKER_LOST")
    assert await bench.message() == "queued for 60 s"
    assert await bench.events() == ["SENT", "RECEIVED", "FAILED WORKER_LOST"]
    assert await bench.replies() == []
    assert bench.calls == []


async def test_worker_killed_for_the_last_time(bench: Bench) -> None:
    """A command that kills its worker every time ends before a person, with as many attempts as it has."""
    await bench.send(max_attempts=2)
    for _ in range(2):
        lease = bench.bus.settings.commands_visibility_timeout
        [lost] = await bench.bus.ledger.claim(1, lease, kinds=[f"{DOMAIN}/{TYPE}"])
        assert await bench.bus.ledger.run_alone(lost) is not None
        bench.advance(seconds=30)
        await bench.work()
        bench.advance(seconds=300)
    row = await bench.get()
    assert (row.status, row.attempts, row.last_error_type) == ("IN_TROUBLESHOOTING_QUEUE", 2, "WORKER_LOST")
    assert await bench.message() == "archived"
    assert (await bench.events())[-2:] == ["FAILED WORKER_LOST", "MOVED_TO_TROUBLESHOOTING_QUEUE EXHAUSTED"]
    assert bench.calls == []


async def test_anything_else_is_transient_with_its_class_as_code(bench: Bench) -> None:
    """An exception of nobody's making is tried again; its name is the code, and no secret is kept."""
    bench.raises = [ConnectionError("refused for postgresql://ada:hunter2@db/x")]
    await bench.send()
    await bench.work()
    row = await bench.get()
    assert (row.status, row.last_error_type, row.last_error_code) == ("PENDING", "TRANSIENT", "ConnectionError")
    assert "hunter2" not in (row.last_error_msg or "")
    assert "refused" in (row.last_error_msg or "")


async def test_a_result_that_is_not_json_goes_before_a_person(bench: Bench) -> None:
    """What was handled is not handled again because its result cannot be sent."""
    bench.result = {"when": object()}
    await bench.send()
    await bench.work()
    row = await bench.get()
    assert (row.status, row.last_error_code) == ("IN_TROUBLESHOOTING_QUEUE", "RESULT_NOT_JSON")
    assert len(bench.calls) == 1


async def test_a_drain_notices_a_lost_worker_too(bench: Bench) -> None:
    """In a test with a clock of its own a lost try is settled before the command runs again; beside others it costs nothing."""
    await bench.send()
    lease = bench.bus.settings.commands_visibility_timeout
    assert len(await bench.bus.ledger.claim(1, lease, kinds=[f"{DOMAIN}/{TYPE}"])) == 1
    drained = await drain(bench.app, clock=bench.clock)
    assert [one.outcome for one in drained.settlements] == ["lease_expired", "done"]
    assert (await bench.get()).attempts == 1
    assert await bench.events() == ["SENT", "RECEIVED", "FAILED WORKER_LOST", "RECEIVED", "COMPLETED"]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("error", [SLOW, PermanentCommandError("NO", "no"), BusinessRuleError("NO", "no"), None])
async def test_metadata_before_the_message_is_released(bench: Bench, error: Exception | None, monkeypatch) -> None:
    """A fault between the two: the row is written when the message is about to be released, and neither stays changed.

    The message is then still hidden, so nobody sees it with a row that is behind; the worker counts as lost.
    """
    seen = []
    ledger = bench.bus.ledger

    def fail(connection, settlements):
        row = connection.execute(text("SELECT status, last_error_code FROM commandbus.command")).one()
        message = connection.execute(text("SELECT vt FROM pgmq.q_payments__commands")).one()
        seen.append((row.status, row.last_error_code, (message.vt - bench.clock.now()).total_seconds()))
        raise ZeroDivisionError("between the two")

    bench.raises = [error] if error else []
    await bench.send()
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_release", fail)
        await bench.work()
    code = getattr(error, "code", None)
    status = {SLOW: "PENDING", None: "COMPLETED"}.get(error) or (
        "FAILED" if isinstance(error, BusinessRuleError) else "IN_TROUBLESHOOTING_QUEUE"
    )
    assert seen[0] == (status, code, 30), "written first, and the message still hidden as it was claimed"
    row = await bench.get()
    assert (row.status, row.last_error_code, row.attempts) == ("IN_PROGRESS", None, 1)
    assert await bench.message() == "queued for 30 s"
    assert await bench.events() == ["SENT", "RECEIVED"]
    assert await bench.replies() == []
    bench.advance(seconds=30)
    await bench.work()
    assert (await bench.events())[2] == "FAILED WORKER_LOST"


def new(command_id: str, **given) -> NewCommand:
    return NewCommand(**({"domain": DOMAIN, "command_type": TYPE, "command_id": command_id, "data": {}} | given))


async def test_a_batch_is_counted_and_complete(bench: Bench) -> None:
    """Counts by state follow every change; complete is when nothing is open and nothing waits for a person."""

    id_ = await bench.bus.create_batch(
        DOMAIN, [new(f"c-{n}") for n in range(4)], name="nightly", custom_data={"run": 7}
    )
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.status, found.total, found.pending, found.name, found.custom_data) == (
        "OPEN",
        4,
        4,
        "nightly",
        {"run": 7},
    )
    bench.raises = [
        None,
        PermanentCommandError("NO", "no"),
        BusinessRuleError("LIMIT", "no"),
        PermanentCommandError("NO"),
    ]
    await bench.work()
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.status, found.pending, found.in_progress, found.completed) == ("OPEN", 0, 0, 1)
    assert (found.failed, found.in_troubleshooting, found.completed_at) == (1, 2, None)
    troubled = [one.command_id for one in (await bench.bus.troubleshooting.list()).items]
    await bench.bus.troubleshooting.retry(DOMAIN, troubled[0], "ada")
    assert (await bench.bus.get_batch(DOMAIN, id_)).pending == 1
    await bench.work()
    bench.advance(seconds=5)
    await bench.bus.troubleshooting.cancel(DOMAIN, troubled[1], "ada", reason="no longer wanted")
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.status, found.completed, found.failed, found.canceled) == ("COMPLETED_WITH_FAILURES", 2, 1, 1)
    assert (found.in_troubleshooting, found.pending) == (0, 0)
    assert found.completed_at == found.created_at + timedelta(seconds=5)


async def test_a_batch_without_failures(bench: Bench) -> None:
    """All done is COMPLETED; while one runs the batch says so."""
    id_ = await bench.bus.create_batch(DOMAIN, [new("c-1"), new("c-2")])
    await bench.bus.ledger.claim(1, timedelta(seconds=30), kinds=[f"{DOMAIN}/{TYPE}"])
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.pending, found.in_progress) == (1, 1)
    bench.advance(seconds=30)
    await bench.work()
    bench.advance(seconds=60)
    await bench.work()
    assert (await bench.bus.get_batch(DOMAIN, id_)).status == "COMPLETED"
    with pytest.raises(UsageError, match="at least one"):
        await bench.bus.create_batch(DOMAIN, [])
    with pytest.raises(UsageError, match="cannot hold commands of shipping"):
        await bench.bus.create_batch(DOMAIN, [new("c-9", domain="shipping")])
    assert await bench.bus.get_batch("shipping", id_) is None


async def test_without_reply_to_nothing_is_replied(bench: Bench) -> None:
    """A command without a reply queue is done in silence."""
    await bench.bus.send(DOMAIN, TYPE, "c-1")
    await bench.work()
    assert (await bench.get()).status == "COMPLETED"
    if bench.store == "sqlite":
        table = bench.bus.messages.tables.reply
        assert await bench.app.database.read(lambda connection: connection.execute(select(table)).all()) == []
