"""What a service does beside its work: the books are kept, people are called once, and no outage ends it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog
from sqlalchemy import select

from redrive import Redrive, Task, jitter, minutes, seconds
from redrive.alerting import Watch
from redrive.chores import repeat
from redrive.core.states import State
from redrive.errors import LedgerAwayError
from redrive.ledgers.sql import schema
from redrive.operator.alert_rules import Alarm
from redrive.operator.alerts import QUIET
from redrive.operator.bookkeeper import Bookkeeper
from redrive.operator.roster import WorkerSign
from redrive.operator.sql.alerts import SqlAlerts
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.figures import SqlFigures
from redrive.settings import Settings
from redrive.system import System
from redrive.systems.flags.tables import FLAG_SCHEDULES
from redrive.testing import VirtualClock, drain


class Said:
    """A messenger that keeps what it is told to send, or fails."""

    owing = 0

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.works = True

    def catch_up(self) -> None: ...

    async def send(self, _title: str, body: str) -> bool:
        await asyncio.sleep(0)
        if self.works:
            self.bodies.append(body)
        return self.works


class Endpoints(System):
    """A system with something to say."""

    name = "endpoints"

    def __init__(self, app: Redrive) -> None:
        super().__init__(app)
        self.wrong: Sequence[Alarm] = ()

    async def alarms(self) -> Sequence[Alarm]:
        return self.wrong


@pytest.fixture
async def app(url: str, clock: VirtualClock) -> AsyncIterator[Redrive]:
    """An application with a system of the test's own."""
    made = Redrive(url, clock=clock, durable=False)
    Endpoints(made)
    await made.open()
    yield made
    await made.close()


def watch_of(app: Redrive, **settings: Any) -> tuple[Watch, Said]:
    """A watch, and what it says."""
    watch, said = Watch(app, Settings(_env_file=None, **settings)), Said()
    watch._messenger = said  # type: ignore[assignment]
    return watch, said


async def test_an_alert_is_told_once_when_it_starts_and_once_when_it_ends(app: Redrive, clock: VirtualClock):
    """However often one looks in between; and the API shows it as long as it holds."""
    watch, said = watch_of(app, alert_depth=2, alert_oldest_due="0s")
    await watch.round()
    assert said.bodies == []
    for number in range(3):
        await app.add("mail", key=str(number))
    await SqlCensus(await app.tasks.ledger()).take()
    for _ in range(3):
        await watch.round()
        clock.advance(seconds(15))
    assert said.bodies == ["STARTED redrive_task: 3 tasks wait (limit 2)"]
    assert [alert.rule for alert in await SqlAlerts(app.database).active()] == ["depth"]
    await app.tasks.cancel(_everything(), actor="ada")
    await SqlCensus(await app.tasks.ledger()).take()
    for _ in range(3):
        await watch.round()
        clock.advance(QUIET)
    assert said.bodies[1:] == ["ENDED redrive_task: 3 tasks wait (limit 2)"]
    assert await SqlAlerts(app.database).active() == []


def _everything() -> Any:
    from redrive.ports import Filter

    return Filter()


async def test_what_wavers_is_one_alert(app: Redrive, clock: VirtualClock):
    """Over and under its limit every few seconds: told once."""
    watch, said = watch_of(app)
    system: Any = app.systems["endpoints"]
    for turn in range(8):
        system.wrong = [Alarm("endpoint 7", "endpoint 7 is disabled")] if turn % 2 == 0 else []
        await watch.round()
        clock.advance(seconds(15))
    assert said.bodies == ["STARTED endpoint 7 is disabled"]


async def test_systems_raise_alerts_of_their_own(app: Redrive, clock: VirtualClock):
    """An endpoint that was disabled, for one: as long as the system says so."""
    watch, said = watch_of(app)
    system: Any = app.systems["endpoints"]
    system.wrong = [Alarm("endpoint 7", "endpoint 7 is disabled"), Alarm("endpoint 8", "endpoint 8 is disabled")]
    await watch.round()
    system.wrong = system.wrong[:1]
    await watch.round()
    clock.advance(QUIET)
    await watch.round()
    assert said.bodies == [
        "STARTED endpoint 7 is disabled\nSTARTED endpoint 8 is disabled",
        "ENDED endpoint 8 is disabled",
    ]


@pytest.mark.every_store
async def test_many_services_tell_once(app: Redrive, url: str, clock: VirtualClock):
    """Also one that starts later: what was told is written down."""
    other = Redrive(url, clock=clock, durable=False)
    Endpoints(other)
    await other.open()
    try:
        watches = [watch_of(app), watch_of(other)]
        for one in (app, other):
            system: Any = one.systems["endpoints"]
            system.wrong = [Alarm("endpoint 7", "endpoint 7 is disabled")]
        for _ in range(3):
            await asyncio.gather(*(watch.round() for watch, _ in watches))
        assert [body for _, said in watches for body in said.bodies] == ["STARTED endpoint 7 is disabled"]
        late, said = watch_of(other)
        await late.round()
        assert said.bodies == []
    finally:
        await other.close()


async def test_one_that_is_broken_silences_no_other(app: Redrive, clock: VirtualClock):
    """What else is wrong is told, what could not be asked has not ended, and the round says that it failed."""
    watch, said = watch_of(app, alert_depth=1, alert_oldest_due="0s")
    system: Any = app.systems["endpoints"]
    system.wrong = [Alarm("endpoint 7", "endpoint 7 is disabled")]
    await watch.round()

    async def broken() -> Sequence[Alarm]:
        raise ValueError("no such column")

    system.alarms = broken
    for number in range(2):
        await app.add("mail", key=str(number))
    await SqlCensus(await app.tasks.ledger()).take()
    for _ in range(2):
        with pytest.raises(ValueError, match="no such column"):
            await watch.round()
        clock.advance(QUIET)
    assert said.bodies == ["STARTED endpoint 7 is disabled", "STARTED redrive_task: 2 tasks wait (limit 1)"]
    assert len(await SqlAlerts(app.database).active()) == 2


async def test_what_could_not_be_sent_is_sent_later(app: Redrive, clock: VirtualClock):
    """A messenger that fails loses nothing; what is over before it was told is not told."""
    watch, said = watch_of(app)
    system: Any = app.systems["endpoints"]
    system.wrong = [Alarm("endpoint 7", "endpoint 7 is disabled"), Alarm("endpoint 8", "endpoint 8 is disabled")]
    said.works = False
    await watch.round()
    system.wrong = system.wrong[:1]
    await watch.round()
    clock.advance(QUIET)
    said.works = True
    await watch.round()
    assert said.bodies == ["STARTED endpoint 7 is disabled"]


async def test_a_new_cause_is_told_and_an_old_one_is_not(app: Redrive, clock: VirtualClock):
    """Groups that were there before anybody watched call nobody."""
    from redrive.core.decide import decide
    from redrive.core.outcome import Failed
    from redrive.core.policy import Policy
    from redrive.errors import PermanentError

    async def die(error: str) -> None:
        ledger = await app.tasks.ledger()
        await app.add("mail", key=error)
        [claim] = await ledger.claim(1, seconds(30), kinds=["mail"])
        await ledger.settle([decide(claim, Failed(PermanentError(error)), Policy())], worker="test")
        await SqlCensus(ledger).take()

    await die("old")
    clock.advance(timedelta(hours=1))
    watch, said = watch_of(app)
    await watch.round()
    assert said.bodies == []
    await die("new")
    await watch.round()
    assert len(said.bodies) == 1
    assert "new cause: PermanentError: new" in said.bodies[0]
    clock.advance(timedelta(hours=1))
    await watch.round()
    assert len(said.bodies) == 1


async def test_a_worker_that_is_lost_calls_somebody_and_one_that_stopped_does_not(app: Redrive, clock: VirtualClock):
    """Once, with what it held; it is over when the worker is heard of again."""
    watch, said = watch_of(app)
    holds = {"redrive_task": {"mail": 2, "pay": 1}}
    sign = WorkerSign(name="w1", host="h", pid=7, started_at=clock.now(), slots=9, holds=holds)
    await app.store.roster.sign(sign)
    await app.store.roster.sign(replace(sign, name="w2", stops=True))
    await watch.round()
    assert said.bodies == []
    clock.advance(seconds(36))
    await watch.round()
    await watch.round()
    [body] = said.bodies
    assert "worker w1 is lost" in body
    assert "it held 3 tasks (mail, pay), which come back when their leases end" in body
    assert "w2" not in body
    await app.store.roster.sign(sign)
    clock.advance(seconds(1))
    await watch.round()
    assert await app.store.alerts.active() == []


async def test_the_share_is_of_tasks_and_not_of_tries(app: Redrive, clock: VirtualClock):
    """Thirty of thirty are done in the end: however many of their tries failed, nobody is called."""
    watch, said = watch_of(app, alert_oldest_due="0s", alert_depth=0)
    fails = [True]

    @app.handler("mail", retries=3, wait=seconds(1), jitter=jitter.none)
    async def mail(_task: Task) -> None:
        if fails[0]:
            raise ValueError("not yet")

    for number in range(30):
        await app.add("mail", key=str(number))
    await drain(app)
    clock.advance(seconds(1))
    fails[0] = False
    await drain(app)
    await watch.round()
    assert said.bodies == []
    fails[0] = True
    for number in range(10):
        await app.add("mail", key=f"late {number}", attempts=1)
    await drain(app)
    await watch.round()
    assert "redrive_task: 25% of 40 tasks that ended in 5m failed (limit 5%)" in said.bodies[0]


async def test_the_books_are_kept(app: Redrive, clock: VirtualClock):
    """A round counts what is due; folding runs once a minute, by whoever takes the turn."""
    ledger = await app.tasks.ledger()

    async def ledgers() -> list[Any]:
        return [(ledger, None)]

    keeper = Bookkeeper(app.store, ledgers)
    await app.add("mail")
    assert await keeper.round() == 1
    assert await keeper.round() == 0
    assert (await SqlFigures(app.database).states())["redrive_task"].amounts[State.WAITING] == 1
    clock.advance(timedelta(hours=3))
    await keeper.round()
    workers = await app.database.read(
        lambda connection: list(connection.execute(select(schema.minute.c.worker)).scalars())
    )
    assert workers == [""]


async def test_the_audit_is_linked_and_pruned_once_a_day(app: Redrive, clock: VirtualClock):
    """By whichever service takes the turn; what is young enough stays, and a line says what went."""

    async def ledgers() -> list[Any]:
        return []

    keepers = [Bookkeeper(app.store, ledgers, audit_kept=timedelta(days=10)) for _ in range(2)]
    await app.store.keys.create("old", ["viewer"])
    await keepers[0].round()
    assert (await app.store.chain.head()).number == 1
    clock.advance(timedelta(days=11))
    await app.store.keys.create("young", ["viewer"])
    for keeper in keepers:
        await keeper.round()
    found = await app.store.chain.verify()
    assert (found.lines, found.begins.number, found.unlinked, found.findings) == (2, 1, 0, [])
    acts = [(one.act, one.actor, one.reason) for one in (await app.store.audit.page("redrive_audit")).items]
    assert acts == [("pruned", "keeper", "older than 10d")]


@pytest.mark.every_store
async def test_services_side_by_side_count_once(url: str, clock: VirtualClock):
    """Eight bookkeepers on one database: rows that others inserted are counted as added once."""
    apps = [Redrive(url, clock=clock, durable=False) for _ in range(8)]
    try:
        ledgers = [await (await app.open()).tasks.ledger() for app in apps]
        await SqlCensus(ledgers[0]).take()
        clock.advance(minutes(10))
        insert = (
            "INSERT INTO redrive_task (key, kind, payload, created_at, updated_at)"
            " VALUES ('{}', 'mail', '{{}}', {}, {})"
        )
        instant = "0" if apps[0].database.dialect.name == "sqlite" else "now()"
        for number in range(5):
            row = insert.format(number, instant, instant)
            await apps[0].database.write(lambda connection, row=row: connection.exec_driver_sql(row))
        for _ in range(3):
            await asyncio.gather(*(SqlCensus(ledger).take() for ledger in ledgers))
            await asyncio.gather(*(SqlCensus(ledger).take_if_due() for ledger in ledgers))
            clock.advance(minutes(1))
        sums = await SqlFigures(apps[0].database).sums(["redrive_task"], clock.now() - timedelta(days=1))
        assert sums["added"] == 5
    finally:
        for app in apps:
            await app.close()


async def test_an_outage_is_one_line_and_no_crash():
    """One when it begins, one when it is over, however long it takes."""
    outcomes = [None, LedgerAwayError("postgresql://a:hunter2@db is away"), ValueError("x"), OSError("y"), None, None]
    ended = asyncio.Event()

    async def chore() -> None:
        if not outcomes:
            ended.set()
            await asyncio.sleep(60)
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(repeat("books", timedelta(milliseconds=1), chore))
        await asyncio.wait_for(ended.wait(), 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [line["event"] for line in lines] == ["chore_failing", "chore_works_again"]
    assert "hunter2" not in str(lines)


async def test_a_store_that_takes_no_writes_is_told_once_and_when_it_is_over(app: Redrive):
    """Nothing can be written down there: the service itself remembers what it has told."""

    class Proof:
        wrong: str | None = "no write has gone through for 45 s"

        def sentence(self) -> str | None:
            return self.wrong

    watch, said = watch_of(app)
    watch._proof = proof = Proof()  # type: ignore[assignment]
    said.works = False
    await watch.look_at_store()
    said.works = True
    for _ in range(3):
        await watch.look_at_store()
    [body] = said.bodies
    assert body.startswith("STARTED ")
    assert body.endswith("no write has gone through for 45 s")
    proof.wrong = None
    for _ in range(3):
        await watch.look_at_store()
    assert said.bodies[1:] == [f"ENDED {app.store.url}: writes go through again"]


async def test_any_death_is_told_in_a_ledger_that_asks_for_it(app: Redrive, clock: VirtualClock):
    """Also of a cause that is known for long; flags ask for it by default."""

    @app.handler("mail", attempts=1)
    async def mail(task: Task) -> None:
        raise ValueError("as ever")

    assert Settings(_env_file=None).alert_dead == FLAG_SCHEDULES.name
    quiet, heard = watch_of(app), watch_of(app, alert_dead="redrive_task")
    await app.add("mail", key="1")
    await drain(app, clock=clock)
    await heard[0].round()
    assert heard[1].bodies == ["STARTED redrive_task: 1 of the tasks died in 5m"]
    await quiet[0].round()
    assert "died in" not in "".join(quiet[1].bodies)
