"""A worker all of whose slots hang for one tenant still starts another's tasks."""

import asyncio
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.engine.reserve import Reserve
from redrive.engine.worker_settings import WorkerSettings
from tests.core.test_decide import claim_of
from tests.engine.test_gate_looks import Ticks


def held(**amounts: int) -> list[Any]:
    return [claim_of(gate="g", tenant=tenant) for tenant, amount in amounts.items() for _ in range(amount)]


def test_a_tenant_has_its_share_of_the_reserve() -> None:
    """With so many tenants running each may have one part of so many and one; no claim takes more, and who has it gets no more."""
    reserve = Reserve(100)
    assert reserve.size == 25
    assert reserve.portion(25, held(hog=100)) == (12, ["hog"])
    assert reserve.portion(13, held(hog=100, second=12)) == (8, ["hog", "second"])
    assert reserve.portion(5, held(hog=100, second=12, third=1)) == (5, ["hog", "second"])
    assert reserve.portion(25, [claim_of(), claim_of(gate="g")]) == (25, [])


def test_a_small_worker_has_a_reserve_of_one() -> None:
    """A quarter of its slots, whole ones, and never none."""
    assert [Reserve(slots).size for slots in (1, 4, 7, 8, 100)] == [1, 1, 1, 2, 25]
    assert Reserve(4).portion(1, held(hog=1)) == (1, ["hog"])
    assert Reserve(1).portion(3, []) == (1, [])


def test_the_reserve_is_looked_for_after_wake_ups_and_twice_a_second() -> None:
    """An empty look is not repeated at once, however often somebody is woken; one that gave something is."""
    clock = Ticks()
    reserve = Reserve(4, clock=clock)
    assert reserve.wait_seconds == 0
    reserve.looked([])
    assert reserve.wait_seconds == 0.5
    reserve.soon()
    assert 0 < reserve.wait_seconds <= 0.02
    clock.at += 0.02
    assert reserve.wait_seconds == 0
    reserve.looked(held(a=1))
    assert reserve.wait_seconds == 0


def test_without_tenants_there_is_no_reserve() -> None:
    """Claims behind gates whose tasks are nobody's do not make one."""
    reserve = Reserve(4)
    reserve.see([claim_of(gate="bank")])
    assert not reserve.in_use
    reserve.see(held(a=1))
    assert reserve.in_use


async def test_another_tenant_starts_while_all_slots_hang(tmp_path: Path) -> None:
    """One tenant hangs in every slot, over many gates: another's task starts all the same, and no more of the first's do."""
    app = Redrive(f"sqlite:///{tmp_path / 'work.db'}", durable=False)
    started: list[str] = []
    full, other, let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.handler("deliver")
    async def deliver(task: Any) -> None:
        started.append(task.tenant)
        if started.count("hog") == 4:
            full.set()
        if task.tenant == "small":
            other.set()
        await let_go.wait()

    async with app:
        for number in range(12):
            await app.add("deliver", key=f"h{number}", gate=f"hog-{number}", tenant="hog")
        workers = app.workers(WorkerSettings(concurrency=4))
        running = asyncio.create_task(workers.run())
        async with asyncio.timeout(150):
            await full.wait()
            await app.add("deliver", key="s", gate="small-1", tenant="small")
            await other.wait()
        assert started == ["hog"] * 4 + ["small"]
        let_go.set()
        workers.stop()
        await running
