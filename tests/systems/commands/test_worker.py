"""What a worker does around the handler: metadata, messages, the order between them, contexts, and stopping."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text

from redrive import Redrive, minutes
from redrive.app import WorkerSettings
from redrive.errors import LedgerAwayError, UsageError
from redrive.systems.commands import (
    Commands,
    CommandWorker,
    Registry,
    TransientCommandError,
)
from redrive.testing import drain
from tests.systems.commands.conftest import DOMAIN, TYPE, Bench
from tests.systems.commands.waiting import run, until

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
    assert (row.last_error_type, row.last_error_code, row.last_error_msg) == (None, None, None), "it is in the audit"


async def test_an_outage_longer_than_the_timeout_runs_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handled while the store was away is written when it is back: nobody else has taken it meanwhile."""
    database, write = bench.app.database, bench.app.database.write
    away, go_on = False, asyncio.Event()
    calls: list[str] = []
    refused: list[str] = []

    async def unless_away(do, *args, **options) -> object:
        if away:
            refused.append(do.__name__)
            raise LedgerAwayError("the server restarts")
        return await write(do, *args, **options)

    async def slow(command, context) -> str:
        calls.append(command.command_id)
        await go_on.wait()
        return "paid"

    async def all_began() -> bool:
        return len(calls) == 3

    async def was_refused() -> bool:
        return "_settle" in refused

    for name in ("write", "statement"):
        monkeypatch.setattr(database, name, unless_away)
    bench.handlers.handler(DOMAIN, "Slow")(slow)
    async with run(CommandWorker(bench.bus, DOMAIN)):
        for number in range(3):
            await bench.bus.send(DOMAIN, "Slow", f"c-{number}")
        await until(all_began)
        away = True
        go_on.set()
        bench.advance(hours=1)
        await until(was_refused)
        away = False
        for number in range(3):
            await until(lambda number=number: done(bench, command_id=f"c-{number}"))
    assert sorted(calls) == ["c-0", "c-1", "c-2"]
    assert (await bench.get("c-1")).attempts == 1


async def test_a_worker_takes_its_domains_only(bench: Bench) -> None:
    """Commands of another domain are left to another worker."""
    bench.handlers.handler("shipping", "Pack")(bench.handle)
    await bench.bus.send("shipping", "Pack", "p-1")
    await bench.send()
    async with run(CommandWorker(bench.bus, DOMAIN)):
        await until(lambda: done(bench))
        other = await bench.bus.get_command("shipping", "p-1")
    assert other is not None
    assert other.status == "PENDING"
    async with run(CommandWorker(bench.bus, ["shipping", DOMAIN])):
        await until(lambda: done(bench, "shipping", "p-1"))


async def done(bench: Bench, domain: str = DOMAIN, command_id: str = "c-1") -> bool:
    row = await bench.bus.get_command(domain, command_id)
    return row is not None and row.status == "COMPLETED"


async def test_a_worker_without_handlers_says_so(bench: Bench) -> None:
    """Nothing to do for ever is a mistake, and named."""
    with pytest.raises(UsageError, match="no handlers for shipping"):
        await CommandWorker(bench.bus, "shipping").run()


async def test_a_worker_opens_the_application_itself(tmp_path: Path) -> None:
    """On a new file the tables are made before the worker or its housekeeping look into them."""
    app, handlers, begun = Redrive(f"sqlite:///{tmp_path / 'new.db'}", durable=False), Registry(), asyncio.Event()
    bus = Commands(app, handlers=handlers)

    @handlers.handler(DOMAIN, TYPE)
    async def begin(command):
        begun.set()

    async with run(CommandWorker(bus)), asyncio.timeout(60):
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
    worker = CommandWorker(bench.bus)
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
    worker = CommandWorker(bench.bus)
    running = asyncio.create_task(worker.run())
    await until(lambda: done(bench))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
