"""Commands that nobody handles: who says so, and when."""

import asyncio
from datetime import timedelta

import pytest
import structlog
from sqlalchemy import text

from redrive import Redrive
from redrive.errors import LedgerAwayError
from redrive.systems.commands import Commands, CommandSettings, Registry
from redrive.systems.commands.unhandled import UnhandledCommands
from tests.systems.commands.conftest import DOMAIN, Bench
from tests.systems.commands.waiting import until


async def other_worker(bench: Bench, bus_url: str, *types: str) -> tuple[Redrive, Commands]:
    """A bus of another program with handlers for these types."""
    handlers = Registry()
    app = Redrive(bus_url, clock=bench.clock, durable=False)
    bus = Commands(app, handlers=handlers)
    for one in types:
        handlers.handler(DOMAIN, one)(bench.handle)
    await app.open()
    return app, bus


async def test_a_worker_elsewhere_that_is_behind(bench: Bench, bus_url: str) -> None:
    """While another worker says that it handles the type, its backlog is not given up, however old it gets."""
    app, bus = await other_worker(bench, bus_url, "Refund")
    await bench.bus.send(DOMAIN, "Refund", "c-1")
    mine, theirs = bench.bus.unhandled(bench.bus.lane), bus.unhandled(bus.lane)
    for _ in range(5):
        await theirs.once()
        assert await mine.once() == 0
        bench.advance(minutes=5)
    assert (await bench.get()).status == "PENDING"
    bench.advance(minutes=5)
    assert await mine.once() == 1, "it has not been heard of for ten minutes"
    await app.close()


async def test_the_first_worker_after_an_outage_waits_too(bench: Bench) -> None:
    """The ten minutes begin when a worker begins to look, so that the one for this type has time to come back."""
    await bench.bus.send(DOMAIN, "Refund", "c-1")
    bench.advance(days=1)
    watch = bench.bus.unhandled(bench.bus.lane)
    assert await watch.once() == 0
    bench.advance(minutes=10)
    assert await watch.once() == 1


async def test_other_domains_are_not_its_business(bench: Bench) -> None:
    """A worker of one domain gives up nothing of another, whose workers may be away; one without handlers gives up nothing."""
    await bench.bus.send("shipping", "Pack", "p-1")
    watch, nobody = bench.bus.unhandled(bench.bus.lane), bench.bus.unhandled(bench.bus.lane.with_own_handlers())
    for _ in range(3):
        assert await watch.once() == await nobody.once() == 0
        bench.advance(minutes=10)


async def test_many_at_once_and_only_the_old(bench: Bench) -> None:
    """All that are old enough go in one round, the younger stay; what is handled is not touched."""
    watch = bench.bus.unhandled(bench.bus.lane)
    await watch.once()
    for number in range(30):
        await bench.bus.send(DOMAIN, "Refund", f"r-{number}")
    bench.advance(minutes=5)
    await bench.bus.send(DOMAIN, "Refund", "young")
    await bench.send("c-1")
    bench.advance(minutes=5)
    assert await watch.once() == 30
    assert await bench.bus.troubleshooting.count() == 30
    assert (await bench.get("young")).status == (await bench.get()).status == "PENDING"


async def test_the_service_keeps_house_by_itself(bench: Bench) -> None:
    """Workers of the application say what they handle as soon as they run, and stop with it."""
    workers = bench.app.workers()
    running = asyncio.create_task(workers.run())
    table = bench.bus.messages.tables.handler

    async def heard() -> bool:
        return bool(await bench.app.database.read(lambda connection: connection.execute(table.select()).all()))

    await until(heard)
    workers.stop()
    await running


async def test_unknown_types_block_nobody(bench: Bench) -> None:
    """Five hundred commands that this worker cannot handle are neither read nor hidden, and the others are handled."""
    for start in range(0, 500, 100):
        await asyncio.gather(*(bench.bus.send(DOMAIN, "Refund", f"r-{start + n}") for n in range(100)))
    await bench.send("c-1")
    await bench.work()
    assert (await bench.get()).status == "COMPLETED"
    assert (await bench.get("r-7")).attempts == 0
    assert await bench.message("r-7") == "queued for 0 s"


@pytest.mark.parametrize(("attempts", "end"), [(None, "NO_HANDLER"), (1, "EXHAUSTED")])
async def test_a_lost_worker_whose_type_nobody_handles(bench: Bench, attempts: int | None, end: str) -> None:
    """Its try, which ran alone, is charged as ever; then the command waits and is given up, or its budget is spent."""
    claimed = {"lease": timedelta(seconds=30), "kinds": [f"{DOMAIN}/Refund"]}
    await bench.bus.send(DOMAIN, "Refund", "c-1", max_attempts=attempts)
    [claim] = await bench.bus.ledger.claim(1, **claimed)
    lost = await bench.bus.ledger.run_alone(claim)
    assert lost is not None
    watch = bench.bus.unhandled(bench.bus.lane)
    await watch.once()
    bench.advance(minutes=9)
    await watch.once()
    assert (await bench.get()).status == "IN_PROGRESS", "its worker, or another that handles it, may come back"
    bench.advance(minutes=1)
    await bench.bus.send(DOMAIN, "Refund", "young")
    assert await watch.once() == 0
    assert (await bench.get("young")).attempts == 0, "what waits is not taken"
    row = await bench.get()
    assert (row.status, row.attempts) == ("PENDING" if attempts is None else "IN_TROUBLESHOOTING_QUEUE", 1)
    assert await bench.message() == ("queued for 60 s" if attempts is None else "archived")
    assert await bench.bus.ledger.extend([lost], timedelta(seconds=30)) != [], "it is the lost worker's no longer"
    bench.advance(minutes=11)
    assert await watch.once() == (2 if attempts is None else 1)
    tried = ["SENT", "RECEIVED", "FAILED WORKER_LOST"]
    assert await bench.events() == [*tried, f"MOVED_TO_TROUBLESHOOTING_QUEUE {end}"]


async def test_what_a_worker_still_holds_is_not_lost(bench: Bench) -> None:
    """A handler that runs for an hour keeps its command, though nobody has said for ten minutes that he handles the type."""
    await bench.bus.send(DOMAIN, "Refund", "c-1")
    await bench.bus.ledger.claim(1, timedelta(hours=1), kinds=[f"{DOMAIN}/Refund"])
    watch = bench.bus.unhandled(bench.bus.lane)
    for _ in range(3):
        assert await watch.once() == 0
        bench.advance(minutes=10)
    assert await bench.events() == ["SENT", "RECEIVED"]


@pytest.mark.parametrize("error", [ZeroDivisionError("1 / 0"), LedgerAwayError("away")])
async def test_trouble_does_not_stop_it(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Whatever goes wrong, it goes on; each kind of trouble is told once while it lasts, an absent store by others."""
    settings = CommandSettings(commands_unhandled_after="1s")
    monkeypatch.setattr(bench.bus, "settings", settings)
    monkeypatch.setattr("redrive.systems.commands.unhandled.EVERY_MAX", timedelta(milliseconds=1))
    rounds, stopped = [], asyncio.Event()

    async def fail(self: UnhandledCommands) -> int:
        rounds.append(len(rounds))
        if len(rounds) == 6:
            stopped.set()
        if len(rounds) == 4:
            return 0
        raise error

    monkeypatch.setattr(UnhandledCommands, "once", fail)
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(60):
            await bench.bus.unhandled(bench.bus.lane).run(stopped)
    assert len(rounds) == 6
    told = [line["error"] for line in logs if line["log_level"] == "warning"]
    assert told == ([] if isinstance(error, LedgerAwayError) else ["ZeroDivisionError: 1 / 0"] * 2)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_queues_of_others_do_not_disturb_it(bench: Bench) -> None:
    """A queue that somebody else made, called as ours are, is neither read nor stumbled over."""
    create = text("SELECT pgmq.create(:name)")
    for name in ("Orders__commands", "theirs__commands"):
        await bench.app.database.write(lambda connection, name=name: connection.execute(create, {"name": name}))
    await bench.bus.send(DOMAIN, "Refund", "c-1")
    watch = bench.bus.unhandled(bench.bus.lane)
    await watch.once()
    bench.advance(minutes=10)
    assert await watch.once() == 1
    assert await bench.bus.ledger.open_kinds() == []
    assert (await bench.bus.lane.counts())["dead"] == 1
