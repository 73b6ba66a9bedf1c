"""Adding tasks: what is told of each, the caller's own transaction, and kinds that nobody handles."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from redrive import Redrive, State
from redrive.errors import KeyTakenError, PayloadError, UsageError
from redrive.events import TaskAdded
from redrive.lane import make_task


def async_url(url):
    parsed = make_url(url)
    return parsed.set(drivername="sqlite+aiosqlite" if parsed.drivername == "sqlite" else "postgresql+asyncpg")


def sync_url(url):
    parsed = make_url(url)
    return parsed.set(drivername="sqlite" if parsed.drivername == "sqlite" else "postgresql+psycopg")


async def test_add_is_idempotent_on_the_key(app):
    """Adding again returns the task that is there, unchanged."""
    first = await app.add("mail", {"to": "ada"}, key="mail-7")
    again = await app.add("mail", {"to": "bob"}, key="mail-7")
    assert (first.new, again.new, first.id) == (True, False, again.id)
    assert (await app.tasks.get("mail-7")).payload == {"to": "ada"}
    assert (await app.tasks.counts())[State.WAITING] == 1


async def test_tasks_without_a_key_are_all_different(app):
    """Without a key each add makes a task of its own."""
    added = [await app.add("mail") for _ in range(3)]
    assert len({one.id for one in added}) == len({one.key for one in added}) == 3


async def test_key_of_another_kind_is_taken(app):
    """The same key for another kind is a mistake and says how to avoid it."""
    await app.add("mail", key="7")
    with pytest.raises(KeyTakenError, match="letter:7"):
        await app.add("letter", key="7")


@pytest.mark.every_store
async def test_add_many_is_all_or_nothing(app, heard):
    """One bad task among many leaves none behind; good ones are announced once each."""
    with pytest.raises(PayloadError):
        await app.add_many([make_task("mail", key="a"), make_task("mail", object(), key="b")])
    assert await app.tasks.get("a") is None
    added = await app.add_many(make_task("mail", key=key) for key in "abc")
    assert [one.key for one in added] == ["a", "b", "c"]
    assert await app.add_many([]) == []
    assert [event.key for event in heard.events if isinstance(event, TaskAdded)] == ["a", "b", "c"]


async def test_options_of_a_task_are_kept(app):
    """Delay, attempts and deadline are stored with the task."""
    await app.add("mail", key="a", delay=timedelta(hours=1), attempts=2, deadline=timedelta(days=1))
    task = await app.tasks.get("a")
    assert task.failures_max == 2
    assert task.deadline_at - task.due_at == timedelta(hours=23)
    assert await app.tasks.get_by_id(task.id) == task


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("handle", ["async connection", "async session", "connection", "session", "add_sync"])
@pytest.mark.every_store
async def test_add_within_the_callers_transaction(app, url, handle, commit):
    """The task is there if and only if the caller's own transaction commits."""
    if handle.startswith("async"):
        engine = create_async_engine(async_url(url))
        within = await engine.connect() if handle == "async connection" else AsyncSession(engine)
        await app.add("mail", key="a", within=within)
        await (within.commit() if commit else within.rollback())
        await within.close()
        await engine.dispose()
    else:
        engine = create_engine(sync_url(url))
        with engine.connect() if handle == "connection" else Session(engine) as within:
            if handle == "add_sync":
                app.add_sync("mail", key="a", within=within)
            else:
                await app.add("mail", key="a", within=within)
            within.commit() if commit else within.rollback()
        engine.dispose()
    assert (await app.tasks.get("a") is not None) is commit


@pytest.mark.every_store
async def test_within_takes_only_what_it_can_use(app):
    """Anything else is refused by its type."""
    with pytest.raises(UsageError, match="AsyncSession"):
        await app.add("mail", within="a connection")


def test_add_sync_needs_no_opening(tmp_path):
    """A program without an event loop adds to redrive's own table right away, as long as the table is there."""
    url = f"sqlite:///{tmp_path / 'test.db'}"
    asyncio.run(_migrated(url))
    app = Redrive(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        first = app.add_sync("mail", {"to": "ada"}, key="a", within=connection)
        again = app.add_sync("mail", key="a", within=connection)
    engine.dispose()
    assert (first.new, again.new) == (True, False)
    assert asyncio.run(_payload(url)) == {"to": "ada"}


async def _migrated(url):
    async with Redrive(url):
        pass


async def _payload(url):
    async with Redrive(url) as app:
        return (await app.tasks.get("a")).payload


async def test_what_nobody_can_say_of_a_task_is_refused(app):
    """A wrong word is named, with those that there are; no function that the caller does not know."""
    with pytest.raises(
        UsageError, match="a task cannot be added with due_at=: besides within= there are key=, delay=, "
    ):
        await app.add("mail", due_at=5)
    with pytest.raises(UsageError, match="cannot be added with retries="):
        app.add_sync("mail", retries=5)


async def test_a_kind_that_nobody_handles_is_warned_of_once(app, caplog):
    """A typing error in a kind would wait for ever in silence: the log names it once, and the task is stored."""
    await app.add("mial", key="a")
    assert caplog.text == ""  # a process without handlers adds for others
    app.handler("mail")(lambda task: None)
    app.handler("letter.*")(lambda task: None)
    for key in ("b", "c"):
        await app.add("mail")
        await app.add("letter.sent")
        assert (await app.add("mial", key=key)).new
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "no handler here for 'mial': its tasks wait for a worker that has one; here are mail, letter.*"
    )


async def test_a_key_with_another_payload_is_said(app):
    """Adding again says whether the payload is the one that is stored; nothing is overwritten."""
    assert (await app.add("mail", {"to": "ada"}, key="a")).same_payload
    assert (await app.add("mail", {"to": "ada"}, key="a")).same_payload
    added = await app.add("mail", {"to": "bob"}, key="a")
    assert (added.new, added.same_payload) == (False, False)
    assert (await app.tasks.get("a")).payload == {"to": "ada"}
