"""What a worker does around the handler: metadata, messages, the order between them, contexts, and stopping."""

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from redrive import Redrive, Snoozed, minutes
from redrive.app import WorkerSettings
from redrive.errors import UsageError
from redrive.systems.commands import (
    BusinessRuleError,
    Commands,
    HandlerAlreadyRegisteredError,
    PermanentCommandError,
    Registry,
    TransientCommandError,
    Worker,
)
from redrive.testing import drain
from systems.commands.conftest import DOMAIN, TYPE, Bench
from systems.commands.waiting import run, until

SLOW = TransientCommandError("TIMEOUT", "the bank is slow")


async def test_transient_error_updates_metadata(bench: Bench) -> None:
    """A transient error leaves status, attempts and the last error's type, code and message in the command."""
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
    assert row.due_at is not None
    assert row.lease_until is None
    assert row.troubled_at is None


async def test_transient_error_leaves_message(bench: Bench) -> None:
    """The message is the same one as before, neither deleted, archived nor sent again, and hidden for the backoff."""
    bench.raises = [SLOW]
    await bench.send()
    before = (await bench.get()).msg_id
    await bench.work()
    assert (await bench.get()).msg_id == before
    assert await bench.message() == "queued for 60 s"
    if bench.store == "postgres":
        count = text("SELECT count(*) FROM pgmq.q_payments__commands")
        assert await bench.app.database.read(lambda connection: connection.execute(count).scalar_one()) == 1


async def test_transient_retry_flow(bench: Bench) -> None:
    """Sent, failed twice, done at the third try; each try at its time, everything on record, one reply."""
    bench.raises, bench.result = [SLOW, ConnectionError("reset")], "paid"
    await bench.send()
    started = bench.clock.now()
    await drain(bench.app, clock=bench.clock)
    row = await bench.get()
    assert (row.status, row.attempts) == ("COMPLETED", 3)
    assert (bench.clock.now() - started).total_seconds() == 360
    tried = ["RECEIVED", "FAILED TRANSIENT"]
    assert await bench.events() == ["SENT", *tried, *tried, "RECEIVED", "COMPLETED"]
    assert await bench.replies() == [("SUCCESS", "paid")]
    assert row.last_error_code == "ConnectionError", "what went wrong last stays to be read"


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
    assert (await bench.events())[-1] == "FAILED WORKER_LOST"


async def test_a_plain_function_and_a_command_alone(bench: Bench) -> None:
    """Handlers may be plain functions, and may leave the context out; plain ones run beside the loop."""
    threads = []

    def plain(command):
        threads.append(threading.current_thread() is threading.main_thread())
        return command.data["n"] + 1

    bench.handlers.handler(DOMAIN, "Plain")(plain)
    await bench.bus.send(DOMAIN, "Plain", "c-1", {"n": 1}, reply_to="payments__replies")
    await bench.work()
    assert await bench.replies() == [("SUCCESS", 2)]
    assert threads == [False]


async def test_context_extend(bench: Bench) -> None:
    """A handler may keep its command longer, from async and from plain code; the message says so."""
    seen = []

    async def long(command, context):
        seen.append(await context.extend(600))
        seen.append(await bench.message())

    def plain(command, context):
        seen.append(context.extend(900))

    bench.handlers.handler(DOMAIN, "Long")(long)
    bench.handlers.handler(DOMAIN, "Plain")(plain)
    await bench.bus.send(DOMAIN, "Long", "c-1")
    await bench.work()
    await bench.bus.send(DOMAIN, "Plain", "c-2")
    await bench.work()
    assert seen == [True, "queued for 600 s", True]


async def test_a_snoozed_command_is_not_charged(bench: Bench) -> None:
    """A handler may say not now: pending, uncharged, hidden for as long as it says."""
    bench.result = Snoozed(minutes(5))
    await bench.send()
    await bench.work()
    row = await bench.get()
    assert (row.status, row.attempts) == ("PENDING", 0)
    assert await bench.message() == "queued for 300 s"
    assert await bench.events() == ["SENT", "RECEIVED", "SNOOZED"]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("error", [None, SLOW, BusinessRuleError("NO", "no")], ids=["done", "transient", "rule"])
async def test_a_transactional_handler(bench: Bench, plain: bool, error: Exception | None) -> None:
    """Its writes commit with the end of the command, and are gone where it fails, also where a rule says no."""
    note = text("INSERT INTO noted (n) VALUES (1)")
    await bench.app.database.write(lambda connection: connection.execute(text("CREATE TABLE noted (n integer)")))

    async def write(command, context):
        await context.connection.execute(note)
        assert await context.extend(60)
        if error:
            raise error

    def write_plain(command, context):
        context.connection.execute(note)
        assert context.extend(60)
        if error:
            raise error

    bench.handlers.handler(DOMAIN, "Note", transactional=True)(write_plain if plain else write)
    await bench.bus.send(DOMAIN, "Note", "c-1", reply_to="payments__replies")
    await bench.work()
    count = text("SELECT count(*) FROM noted")
    noted = await bench.app.database.read(lambda connection: connection.execute(count).scalar_one())
    status = {None: "COMPLETED", SLOW: "PENDING"}.get(error, "FAILED")
    assert (noted, (await bench.get()).status) == (1 if error is None else 0, status)
    assert await bench.message() == {None: "deleted", SLOW: "queued for 60 s"}.get(error, "archived")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_result_that_takes_everything_back(bench: Bench, plain: bool) -> None:
    """A result that is no JSON: what a transactional handler wrote is gone, and the message says so; others were handled."""
    await bench.app.database.write(lambda connection: connection.execute(text("CREATE TABLE noted (n integer)")))

    async def write(command, context):
        await context.connection.execute(text("INSERT INTO noted (n) VALUES (1)"))
        return object()

    def write_plain(command, context):
        context.connection.execute(text("INSERT INTO noted (n) VALUES (1)"))
        return object()

    bench.handlers.handler(DOMAIN, "Note", transactional=True)(write_plain if plain else write)
    await bench.bus.send(DOMAIN, "Note", "c-1")
    bench.result = object()
    await bench.send("c-2")
    await bench.work()
    count = text("SELECT count(*) FROM noted")
    assert await bench.app.database.read(lambda connection: connection.execute(count).scalar_one()) == 0
    taken_back, handled = await bench.get("c-1"), await bench.get("c-2")
    assert taken_back.status == handled.status == "IN_TROUBLESHOOTING_QUEUE"
    assert taken_back.last_error_code == handled.last_error_code == "RESULT_NOT_JSON"
    assert "so what it wrote was taken back" in taken_back.last_error_msg
    assert "it was handled" in handled.last_error_msg


async def test_a_worker_takes_its_domains_only(bench: Bench) -> None:
    """Commands of another domain are left to another worker."""
    bench.handlers.handler("shipping", "Pack")(bench.handle)
    await bench.bus.send("shipping", "Pack", "p-1")
    await bench.send()
    async with run(Worker(bench.bus, DOMAIN)):
        await until(lambda: done(bench))
        other = await bench.bus.get_command("shipping", "p-1")
    assert other is not None
    assert other.status == "PENDING"
    async with run(Worker(bench.bus, ["shipping", DOMAIN])):
        await until(lambda: done(bench, "shipping", "p-1"))


async def done(bench: Bench, domain: str = DOMAIN, command_id: str = "c-1") -> bool:
    row = await bench.bus.get_command(domain, command_id)
    return row is not None and row.status == "COMPLETED"


async def test_a_worker_without_handlers_says_so(bench: Bench) -> None:
    """Nothing to do for ever is a mistake, and named."""
    with pytest.raises(UsageError, match="no handlers for shipping"):
        await Worker(bench.bus, "shipping").run()


async def test_a_worker_opens_the_application_itself(tmp_path: Path) -> None:
    """On a new file the tables are made before the worker or its housekeeping look into them."""
    app, handlers, begun = Redrive(f"sqlite:///{tmp_path / 'new.db'}", durable=False), Registry(), asyncio.Event()
    bus = Commands(app, handlers=handlers)

    @handlers.handler(DOMAIN, TYPE)
    async def begin(command):
        begun.set()

    async with run(Worker(bus)), asyncio.timeout(60):
        await bus.send(DOMAIN, TYPE, "c-1")
        await begun.wait()
    await app.close()


async def test_a_waiting_worker_is_woken(bench: Bench, bus_url: str) -> None:
    """A worker that waits is told of commands that another program sends; by itself it would look in ten minutes."""
    workers = bench.app.workers(WorkerSettings(poll=minutes(10)), lanes=[bench.bus.lane])
    running = asyncio.create_task(workers.run())
    await workers.ready.wait()
    app = Redrive(bus_url, clock=bench.clock, durable=False)
    other = Commands(app, handlers=Registry())
    async with app:
        for number in range(3):
            await other.send(DOMAIN, TYPE, f"c-{number}")
            await until(lambda number=number: done(bench, DOMAIN, f"c-{number}"))
    workers.stop()
    await running


async def test_a_stopping_worker_gives_back_what_it_has_not_finished(bench: Bench) -> None:
    """Told to stop, it lets handlers end within the grace and releases the others: pending, uncharged, due at once."""
    begun = asyncio.Event()

    async def hang(command, context):
        begun.set()
        await asyncio.sleep(60)

    bench.handlers.handler(DOMAIN, "Hang")(hang)
    await bench.bus.send(DOMAIN, "Hang", "c-1")
    worker = Worker(bench.bus)
    running = asyncio.create_task(worker.run(grace=minutes(0)))
    await begun.wait()
    worker.stop()
    await running
    row = await bench.get()
    assert (row.status, row.attempts) == ("PENDING", 0)
    assert await bench.message() == "queued for 0 s"
    assert await bench.events() == ["SENT", "RECEIVED", "RELEASED"]


async def test_a_cancelled_worker_stops_gracefully_too(bench: Bench) -> None:
    """Cancelling the task that runs it is the same as `stop`."""
    await bench.send()
    worker = Worker(bench.bus)
    running = asyncio.create_task(worker.run())
    await until(lambda: done(bench))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_two_handlers_for_one_type(bench: Bench) -> None:
    """The second registration of a pair is refused and named."""
    with pytest.raises(HandlerAlreadyRegisteredError, match="payments/DebitAccount"):
        bench.handlers.handler(DOMAIN, TYPE)(bench.handle)
