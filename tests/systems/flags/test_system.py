"""The processor: each schedule once however many of them run, new ones not behind old failures, and nothing left lying or kept for ever."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from redrive import Redrive, State, seconds
from redrive.app import WorkerSettings
from redrive.events import AttemptEnded, Event
from redrive.systems.flags import Flags, FlagSettings, NewSchedule, tables
from redrive.systems.flags.system import _tuned

from .conftest import MINUTE, Home, MakeHome, count

PATIENCE_SECONDS = 60
PATIENT = WorkerSettings(lease=timedelta(hours=1))
"""On a busy machine many schedules take longer than half the usual lease, and what is then extended in vain is not counted."""


async def put_many(home: Home, prefix: str, amount: int, *, flags: int, **schedule: Any) -> None:
    """Many schedules that set a percentage, spread over some flags."""
    stamps = {"created_at": home.now, "updated_at": home.now}

    def write(connection: Connection) -> None:
        named = [{"flag_key": f"{prefix}-{number}", **stamps} for number in range(flags)]
        connection.execute(insert(tables.flags), named)
        t = tables.flags
        found = connection.execute(select(t.c.id, t.c.flag_key).where(t.c.flag_key.startswith(f"{prefix}-"))).all()
        rows = [
            {"flag_id": found[number % flags].id, "flag_key": found[number % flags].flag_key,
             "scheduled_at": home.now, "updates": {"rolloutPercentage": 7}, **stamps, **schedule}
            for number in range(amount)
        ]  # fmt: skip
        connection.execute(insert(tables.schedules), rows)

    await home.app.database.write(write)


@pytest.mark.long_on("postgres")
@pytest.mark.every_store
async def test_two_processors_apply_each_schedule_once(home: Home, make_home: MakeHome) -> None:
    """Two runs at the same moment on 80 due schedules: each is applied, and the audit has each exactly once."""
    other = await make_home()
    await put_many(home, "flag", 80, flags=80)
    ran = await asyncio.gather(home.flags.process(PATIENT), other.flags.process(PATIENT))
    assert sum(one.processed for one in ran) == 80
    assert all(one.processed > 0 for one in ran), "both took part"
    assert [(one.failed, one.retried) for one in ran] == [(0, 0), (0, 0)]
    applied = Counter(entry.schedule_id for entry in await home.audit(action="applied"))
    assert len(applied) == 80
    assert set(applied.values()) == {1}
    assert await count(home.app, "SELECT count(*) FROM feature_flag_schedules WHERE status = 'applied'") == 80
    assert await count(home.app, "SELECT count(*) FROM feature_flags WHERE rollout_percentage = 7") == 80


class Watch:
    """Counts tries that failed, and notes after how many a schedule was applied."""

    def __init__(self) -> None:
        self.failed = 0
        self.applied: dict[Any, int] = {}

    def observe(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, AttemptEnded):
                if event.settlement.outcome == "failed":
                    self.failed += 1
                else:
                    self.applied[event.settlement.claim.task.id] = self.failed


async def test_new_schedules_do_not_wait_behind_old_failures(home: Home) -> None:
    """With 10,000 retries due that all fail, each new schedule is applied after a few hundred tries."""
    await home.flags.put("promo", actor="ada")
    retries = {"status": "failed", "retry_count": 1, "next_retry_at": home.now, "last_error": "down"}
    await put_many(home, "broken", 10_000, flags=50, **retries)
    await home.break_()
    watch = Watch()
    home.flags.lane.own_observers.append(watch)
    workers = home.app.workers()
    working = asyncio.create_task(workers.run())
    try:
        for _ in range(3):
            new = NewSchedule(scheduled_at=home.now + seconds(1), updates={"enabled": True})
            [made] = await home.flags.schedule("promo", new, actor="ada")
            home.clock.advance(seconds(1))
            failed = watch.failed
            async with asyncio.timeout(PATIENCE_SECONDS):
                while made.id not in watch.applied:
                    await asyncio.sleep(0.002)
            assert watch.applied[made.id] - failed <= 300, "it stood behind more than a few claims"
        left = "SELECT count(*) FROM feature_flag_schedules WHERE retry_count = 1 AND status = 'failed'"
        assert await count(home.app, left) > 1000, "there was a crowd all the time"
    finally:
        workers.stop()
        await working


async def test_a_run_goes_on_until_nothing_is_due(home: Home) -> None:
    """A hundred is the size of one claim, not of a run."""
    await put_many(home, "flag", 105, flags=105)
    await home.plan("later", timedelta(hours=1))
    ran = await home.flags.process(PATIENT)
    assert (ran.processed, ran.failed, ran.retried) == (105, 0, 0)
    assert ran.duration_ms > 0
    assert await count(home.app, "SELECT count(*) FROM feature_flag_schedules WHERE status = 'pending'") == 1
    assert (await home.flags.process()).processed == 0


async def test_a_run_counts_what_it_did(home: Home) -> None:
    """Applied, tried again later, and failed for good."""
    for key, retries in (("one", 3), ("broken-a", 3), ("broken-b", 0), ("gone", 3)):
        await home.plan(key, max_retries=retries)
    await home.flags.delete("gone", actor="ada")
    await home.break_()
    home.clock.advance(MINUTE)
    ran = await home.flags.process()
    assert (ran.processed, ran.applied, ran.retried, ran.failed, ran.superseded) == (4, 1, 1, 2, 0)
    assert list(ran.as_json()) == ["processed", "applied", "retried", "failed", "superseded", "duration_ms"]


async def test_a_run_counts_what_gave_way(home: Home) -> None:
    """A retry that still waits is ended by the newer schedule that the run applies: one applied, one superseded."""
    await home.plan_broken(backoff={"first": "10m"})
    newer = NewSchedule(scheduled_at=home.now + 2 * MINUTE, updates={"enabled": False})
    await home.flags.schedule("broken", newer, actor="ada")
    home.clock.advance(MINUTE)
    assert (await home.flags.process()).retried == 1
    await home.mend()
    home.clock.advance(MINUTE)
    ran = await home.flags.process()
    assert (ran.processed, ran.applied, ran.retried, ran.failed, ran.superseded) == (2, 1, 0, 0, 1)


async def test_a_killed_run_is_made_up_for_by_the_next(home: Home) -> None:
    """What a run that was killed still held is not lost: the next run applies it, and no try is counted."""
    made = await home.plan()
    home.clock.advance(MINUTE)
    await (await home.flags.lane.ledger()).claim(1, seconds(30))
    assert (await home.flags.process()).processed == 0, "it is held"
    home.clock.advance(seconds(31))
    ran = await home.flags.process()
    assert (ran.processed, ran.retried) == (2, 1)
    applied = await home.schedule(made.id)
    assert (applied.status, applied.retry_count) == ("applied", 0)


async def test_retry_metadata_that_cannot_be_written(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the failure itself cannot be written, a run that ends leaves it to its lease. The first time is free, the others are charged."""
    made = await home.plan_broken(max_retries=1)
    ledger = await home.flags.lane.ledger()
    real, broken = ledger.settle, [True]

    async def settle(settlements: Any, *, within: Any = None, **options: Any) -> Any:
        if broken[0] and within is None and settlements[0].outcome == "failed":
            raise ValueError("this row cannot be written")
        return await real(settlements, within=within, **options)

    monkeypatch.setattr(ledger, "settle", settle)
    home.clock.advance(10 * MINUTE)
    await home.flags.process()
    held = await home.row(made.id)
    assert held["lease_until"] is not None, "it is still held"
    for _ in range(9):
        home.clock.advance(10 * MINUTE)
        await home.flags.process()
    ended = await home.schedule(made.id)
    assert (ended.status, ended.retry_count, ended.next_retry_at) == ("failed", 1, None)
    attempts = await home.flags.lane.attempts(made.id)
    assert [one.outcome for one in attempts] == ["lease_expired"] * 3
    verdicts = [one.explanation["verdict"] for one in attempts if one.explanation]
    assert verdicts == ["suspect", "retry", "worker_lost"]


@pytest.mark.every_store
async def test_woken_for_what_is_planned_meanwhile(url: str) -> None:
    """A worker that sleeps until its safety poll is woken for a schedule that is made meanwhile, in real time."""
    app = Redrive(url, durable=False)
    flags = Flags(app, FlagSettings(_env_file=None))
    async with app:
        await flags.put("promo", actor="ada")
        workers = app.workers(WorkerSettings(poll=timedelta(hours=1)))
        working = asyncio.create_task(workers.run())
        try:
            await workers.ready.wait()
            at = datetime.now().astimezone() + seconds(0.5)
            [made] = await flags.schedule("promo", NewSchedule(scheduled_at=at, updates={"enabled": True}), actor="ada")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await flags.schedules("promo"))[0].status != "applied":
                    await asyncio.sleep(0.02)
            [done] = await flags.schedules("promo")
            assert done.applied_at is not None
            assert seconds(0) <= done.applied_at - made.scheduled_at < seconds(5)
        finally:
            workers.stop()
            await working


def test_how_the_worker_is_tuned() -> None:
    """A hundred per claim, at least once a minute; the service's own settings for the rest."""
    tuned = _tuned(WorkerSettings(poll=timedelta(hours=1), lease=seconds(7), batch=500))
    assert (tuned.batch, tuned.poll, tuned.lease) == (100, timedelta(seconds=60), seconds(7))
    assert _tuned(WorkerSettings(poll=seconds(1))).poll == seconds(1)


async def test_retention_keeps_what_is_not_over(home: Home) -> None:
    """Applied go after 90 days, cancelled after 30, dead never; what waits for a retry is never touched."""
    applied, cancelled = await home.plan("one"), await home.plan("two")
    await home.flags.cancel("two", cancelled.id, actor="bob")
    dead = await home.plan("broken", max_retries=0)
    mid_retry = await home.plan_broken("broken-too", max_retries=10)
    await home.drain(until=2 * MINUTE)
    future = await home.plan("one", timedelta(days=300))

    async def there() -> set[int]:
        found = set()
        for key in ("one", "two", "broken", "broken-too"):
            found |= {one.id for one in await home.flags.schedules(key)}
        return found

    async def keep() -> None:
        from redrive.engine.keeper import Keeper
        from redrive.engine.patience import Patience
        from redrive.engine.settler import Settler
        from redrive.systems.flags.system import RETENTION

        lane, ledger = home.flags.lane, await home.flags.lane.ledger()
        patience = Patience(ledger.name, lane.tell)
        settler = Settler(ledger, "keeper", patience, lane.tell, batch=1)
        await Keeper(ledger, lane.handlers, settler, patience, lane.tell, retention=RETENTION).prune()

    everything = {applied.id, cancelled.id, dead.id, mid_retry.id, future.id}
    home.clock.advance(timedelta(days=29))
    await keep()
    assert await there() == everything
    home.clock.advance(timedelta(days=2))
    await keep()
    assert await there() == everything - {cancelled.id}
    home.clock.advance(timedelta(days=58))
    await keep()
    assert await there() == everything - {cancelled.id}
    home.clock.advance(timedelta(days=300))
    await keep()
    assert await there() == {dead.id, mid_retry.id, future.id}
    counts = await home.flags.lane.counts()
    assert (counts[State.DEAD], counts[State.WAITING]) == (1, 2)
