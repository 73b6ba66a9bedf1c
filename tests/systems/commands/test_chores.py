"""Commands that nobody handles: who says so, and when."""

import asyncio

from redrive import Redrive
from redrive.systems.commands import Commands, Registry
from systems.commands.conftest import DOMAIN, Bench
from systems.commands.waiting import until


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
    mine, theirs = bench.bus.chores(bench.bus.lane), bus.chores(bus.lane)
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
    chores = bench.bus.chores(bench.bus.lane)
    assert await chores.once() == 0
    bench.advance(minutes=10)
    assert await chores.once() == 1


async def test_other_domains_are_not_its_business(bench: Bench) -> None:
    """A worker of one domain gives up nothing of another, whose workers may be away; one without handlers gives up nothing."""
    await bench.bus.send("shipping", "Pack", "p-1")
    chores, nobody = bench.bus.chores(bench.bus.lane), bench.bus.chores(bench.bus.lane.again())
    for _ in range(3):
        assert await chores.once() == await nobody.once() == 0
        bench.advance(minutes=10)


async def test_many_at_once_and_only_the_old(bench: Bench) -> None:
    """All that are old enough go in one round, the younger stay; what is handled is not touched."""
    chores = bench.bus.chores(bench.bus.lane)
    await chores.once()
    for number in range(30):
        await bench.bus.send(DOMAIN, "Refund", f"r-{number}")
    bench.advance(minutes=5)
    await bench.bus.send(DOMAIN, "Refund", "young")
    await bench.send("c-1")
    bench.advance(minutes=5)
    assert await chores.once() == 30
    assert await bench.bus.troubleshooting.count() == 30
    assert (await bench.get("young")).status == (await bench.get()).status == "PENDING"


async def test_the_service_keeps_house_by_itself(bench: Bench) -> None:
    """Workers of the application say what they handle as soon as they run, and stop with it."""
    workers = bench.app.workers()
    running = asyncio.create_task(workers.run())
    table = bench.bus._tables.handler

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
