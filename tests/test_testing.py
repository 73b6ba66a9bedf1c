"""What redrive gives its users for their tests, on both databases."""

import asyncio
import doctest
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import redrive.testing
from redrive import Fixed, LedgerTable, PermanentError, Policy, Redrive, Snoozed, State, hours, jitter, seconds
from redrive.errors import UsageError
from redrive.events import AttemptEnded, AttemptStarted
from redrive.testing import VirtualClock, assert_dead, assert_done, assert_waiting, drain, temporary_url
from tests.test_docs import ROOT, blocks

HOURLY = Policy(Fixed(hours(1)), retries=2, jitter=jitter.none)


@pytest.fixture
async def app(url, clock):
    async with Redrive(url, clock=clock, durable=False) as app:
        yield app


def failing(times, error=ValueError):
    """A handler that fails so often, then works."""
    left = [times]

    async def handle(task):
        if left[0]:
            left[0] -= 1
            raise error("odd")

    return handle


# --- clock ------------------------------------------------------------------------------------------------------------


def test_the_clock_moves_only_when_it_is_moved():
    """It stands still, moves as far as it is told, and knows its zone."""
    clock = VirtualClock(datetime(2031, 2, 3, tzinfo=UTC))
    assert clock.now() == clock.now() == datetime(2031, 2, 3, tzinfo=UTC)
    assert clock.advance(hours(1)) == clock.now() == datetime(2031, 2, 3, 1, tzinfo=UTC)
    with pytest.raises(UsageError, match="time zone"):
        VirtualClock(datetime(2031, 2, 3))


async def test_spans_are_taken_as_everywhere(app, clock):
    """A number is seconds, and text has a unit; a clock may go backwards, by a timedelta."""
    began = clock.now()
    assert clock.advance(5) == began + timedelta(seconds=5)
    assert clock.advance("2m") == began + timedelta(seconds=125)
    assert clock.advance(timedelta(seconds=-125)) == began
    app.handler("mail")(lambda task: None)
    await app.add("mail", key="a", delay="5m")
    await drain(app, clock=clock, until=60)
    assert clock.now() == began + timedelta(seconds=60)
    await assert_waiting(app, "a", due_in="4m", tolerance=1)
    with pytest.raises(UsageError, match="until must be written as seconds"):
        await drain(app, clock=clock, until="soon")


def test_temporary_urls_differ():
    """Each test has a file of its own."""
    assert temporary_url() != temporary_url()


def test_the_example_is_true():
    """The example in the module's docstring runs and gives what it says."""
    tried = doctest.testmod(redrive.testing)
    assert (tried.failed, tried.attempted > 0) == (0, True)


# --- drain ------------------------------------------------------------------------------------------------------------


async def test_drain_moves_the_clock_through_all_retries(app, clock):
    """Run, retry after its hour, done: the clock stands where the last try was, and nothing was waited for."""
    start = clock.now()
    app.handler("mail", policy=HOURLY)(failing(2))
    await app.add("mail", key="a")
    drained = await drain(app, clock=clock)
    assert drained.of("a") == ["failed", "failed", "done"]
    assert drained.outcomes == {"failed": 2, "done": 1}
    assert clock.now() - start == hours(2)
    await assert_done(app, "a")


async def test_drain_ends_dead_tasks_too(app, clock):
    """What never works ends dead after its budget."""
    app.handler("mail", policy=HOURLY)(failing(99))
    await app.add("mail", key="a")
    assert (await drain(app, clock=clock)).of("a") == ["failed"] * 3
    await assert_dead(app, "a", error="ValueError: odd", verdict="exhausted")


async def test_drain_without_a_clock_runs_what_is_due(app, clock):
    """Without a clock nothing is moved: what is due runs, the rest stays."""
    start = clock.now()
    app.handler("mail", policy=HOURLY)(failing(1))
    await app.add("mail", key="now")
    await app.add("mail", key="later", delay=seconds(1))
    assert (await drain(app)).outcomes == {"failed": 1}
    await assert_waiting(app, "now", failures=1, due_in=hours(1))
    await assert_waiting(app, "later", failures=0)
    assert clock.now() == start


@pytest.mark.parametrize("kind", [timedelta, datetime])
async def test_drain_until_leaves_the_clock_there(app, clock, kind):
    """Up to the given time, and not one retry further; the clock then stands at that time."""
    start = clock.now()
    app.handler("mail", policy=HOURLY)(failing(99))
    await app.add("mail", key="a")
    until = hours(1.5) if kind is timedelta else start + hours(1.5)
    assert (await drain(app, clock=clock, until=until)).of("a") == ["failed", "failed"]
    assert clock.now() == start + hours(1.5)
    await assert_waiting(app, "a", failures=2, due_in=hours(0.5))


async def test_drain_settles_leases_that_run_out(app, clock):
    """What a lost worker held is settled as expired when its lease ends, and then tried again, uncharged."""
    app.handler("mail", policy=HOURLY)(failing(0))
    await app.add("mail", key="a")
    assert len(await (await app.tasks.ledger()).claim(1, seconds(30))) == 1
    start = clock.now()
    assert (await drain(app, clock=clock)).of("a") == ["lease_expired", "done"]
    assert clock.now() - start == seconds(30)


async def test_drain_uses_the_real_handlers(app, clock):
    """Sync and async, with context, transactional and snoozing handlers: all run as in a worker."""
    seen = []

    @app.handler("sync.*")
    def sync(task, context):
        seen.append((task.key, context.attempt))

    @app.handler("atomic", transactional=True)
    async def atomic(task, context):
        seen.append((task.key, context.connection is not None))

    snoozes = [Snoozed(seconds(5))]

    @app.handler("snooze")
    async def snooze(task):
        return snoozes.pop() if snoozes else None

    await app.add("sync.one", key="s")
    await app.add("atomic", key="t")
    await app.add("snooze", key="z")
    drained = await drain(app, clock=clock)
    assert sorted(seen) == [("s", 1), ("t", True)]
    assert drained.of("z") == ["snoozed", "done"]
    assert drained.of("t") == ["done"]


async def test_drain_runs_what_handlers_add(app, clock):
    """Work that comes out of work is run too, also of a kind that was looked at before."""

    @app.handler("b_parent")
    async def parent(task):
        await app.add("a_child", key="child", delay=seconds(3))

    app.handler("a_child")(failing(0))
    await app.add("b_parent", key="parent")
    assert (await drain(app, clock=clock)).outcomes == {"done": 2}
    await assert_done(app, "child")


async def test_drain_leaves_unknown_kinds(app, clock):
    """Tasks without a handler stay waiting, as with a worker."""
    app.handler("mail")(failing(0))
    await app.add("letter", key="a")
    assert (await drain(app, clock=clock)).outcomes == {}
    await assert_waiting(app, "a", failures=0)


async def test_drain_has_a_bound(app, clock):
    """A handler that snoozes for ever is found out, with the key and what to do."""

    @app.handler("mail")
    async def snooze(task):
        return Snoozed(seconds(1))

    await app.add("mail", key="restless")
    with pytest.raises(AssertionError, match=r"25 attempts.*'restless'"):
        await drain(app, clock=clock, tasks_max=25)


async def test_drain_tells_the_observers(url, clock):
    """Observers hear what they would hear of a worker."""
    heard = []

    class Listener:
        def observe(self, events):
            heard.extend(type(event) for event in events)

    async with Redrive(url, clock=clock, durable=False, observers=[Listener()]) as app:
        app.handler("mail", policy=HOURLY)(failing(1))
        await app.add("mail", key="a")
        await drain(app, clock=clock)
    assert heard[1:] == [AttemptStarted, AttemptEnded] * 2


async def test_drain_refuses_a_clock_that_is_not_the_apps(url, app, clock):
    """With another clock a drain would go on for ever; and an end needs a clock."""
    app.handler("mail")(failing(0))
    with pytest.raises(UsageError, match="clock=clock"):
        await drain(app, clock=VirtualClock(datetime(2040, 1, 1, tzinfo=UTC)))
    with pytest.raises(UsageError, match="pass clock="):
        await drain(app, until=hours(1))


# --- assertions -------------------------------------------------------------------------------------------------------


async def said(assertion):
    with pytest.raises(AssertionError) as raised:
        await assertion
    return str(raised.value)


async def test_assertions_tell_the_story(app, clock):
    """A wrong state fails with the state, the next due time and every attempt so far."""
    app.handler("mail", policy=HOURLY)(failing(99))
    await app.add("mail", key="a")
    await drain(app)
    text = await said(assert_done(app, "a"))
    assert text.splitlines() == [
        "task 'a' is waiting, not done",
        "  now: state waiting, failures 1, kind mail, due in 1h",
        "  attempt 1: failed, then waiting, again after 1h (retry): ValueError: odd",
    ]


async def test_assert_waiting_compares_count_and_time(app):
    """Failures and due time are compared, and the message names both numbers."""
    app.handler("mail", policy=HOURLY)(failing(99))
    await app.add("mail", key="a")
    await drain(app)
    assert (await assert_waiting(app, "a", failures=1, due_in=hours(1))).key == "a"
    assert "has failed 1 times, not 2" in await said(assert_waiting(app, "a", failures=2))
    assert "is due in 1h, not in 59m" in await said(assert_waiting(app, "a", due_in=hours(59 / 60)))
    await assert_waiting(app, "a", due_in=hours(59 / 60), tolerance=hours(0.1))


async def test_assert_dead_compares_error_and_verdict(app):
    """A task that died of something else than expected fails the assertion."""
    app.handler("mail", policy=HOURLY)(failing(1, PermanentError))
    await app.add("mail", key="a")
    await drain(app)
    task = await assert_dead(app, "a", error="odd", verdict="permanent")
    assert task.state is State.DEAD
    assert "does not hold 'even'" in await said(assert_dead(app, "a", error="even"))
    assert "'permanent', not 'exhausted'" in await said(assert_dead(app, "a", verdict="exhausted"))
    assert "is dead, not waiting" in await said(assert_waiting(app, "a"))


async def test_a_missing_key_names_those_that_are_there(app):
    """A typo in a key is seen at once."""
    assert "no tasks at all" in await said(assert_done(app, "invoice-7"))
    await app.add("mail", key="invoice-17")
    assert "'invoice-17'" in await said(assert_done(app, "invoice-7"))


async def test_a_task_that_never_ran_says_so(app):
    """Without history the message says that there is none."""
    await app.add("mail", key="a")
    assert "it has never been run" in await said(assert_done(app, "a"))


@pytest.mark.parametrize("store", ["sqlite"])
async def test_assertions_work_on_lanes(app, clock):
    """An adopted lane is drained and asserted on like the application."""
    from sqlalchemy import text

    from redrive.errors import TableError

    def create(connection):
        connection.execute(
            text(
                "CREATE TABLE jobs (id integer PRIMARY KEY, status text DEFAULT 'waiting', failures integer DEFAULT 0, "
                "due_at text, lease_until text, claim_id text)"
            )
        )

    await app.database.write(create)
    jobs = app.adopt(LedgerTable("jobs"))
    with pytest.raises(TableError) as refused:
        await jobs.ledger()

    def mend(connection):
        for statement in [*refused.value.migration, "INSERT INTO jobs (id) VALUES (1)"]:
            connection.execute(text(statement))

    await app.database.write(mend)
    jobs.handler(policy=HOURLY)(failing(1))
    assert (await drain(app)).of("1") == ["failed"]
    await assert_waiting(jobs, "1", failures=1, due_in=hours(1))
    await drain(app, clock=clock)
    await assert_done(jobs, "1")


async def test_drain_keeps_the_loop_alive(app):
    """A plain handler runs beside the loop while it is drained."""
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.005)

    import time

    app.handler("mail")(lambda task: time.sleep(0.1))
    await app.add("mail")
    ticking = asyncio.create_task(tick())
    await drain(app)
    ticking.cancel()
    assert len(ticks) > 3


async def test_drain_leaves_paused_kinds_alone(app):
    """As workers do; after the resume they run."""
    app.handler("mail")(failing(0))
    await app.add("mail", key="m")
    await app.tasks.pause_gate("kind:mail", actor="ada", reason="wrong template")
    assert (await drain(app)).of("m") == []
    await assert_waiting(app, "m")
    await app.tasks.resume_gate("kind:mail", actor="ada", reason="mended")
    assert (await drain(app)).of("m") == ["done"]


def test_the_guide_works_as_written(tmp_path: Path) -> None:
    """`docs/guides/testing.md` in an empty folder: its file, and its command in a pytest that knows nothing of ours."""
    [code] = blocks(ROOT / "docs" / "guides" / "testing.md", "python")
    (tmp_path / "test_invoices.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "--asyncio-mode=auto", "-p", "no:cacheprovider", "-q"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in ran.stdout, ran.stdout
