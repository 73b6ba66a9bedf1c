"""What is registered and done on a lane: handlers in words, acts of people, observers that fail."""

import functools
import inspect
from datetime import timedelta

import pytest

import redrive
from redrive import Filter, Policy, Redrive, State, seconds
from redrive.errors import HandlerError, UsageError
from redrive.lane import make_task
from redrive.testing import assert_done, drain

# --- handlers ---------------------------------------------------------------------------------------------------------


async def test_handler_keeps_the_function(app):
    """Decorating does not change the function: it can be called in tests as it is."""

    @app.handler("mail")
    def send(task):
        return f"sent {task}"

    assert send("x") == "sent x"


async def test_a_handler_without_a_kind_has_its_own_name(app):
    """Without parentheses, or with empty ones, the function's name is the kind; the function stays what it was."""

    @app.handler
    async def send_mail(task):
        return task.payload

    @app.handler(retries=1)
    def send_letter(task):
        pass

    assert [handler.kind for handler in app.tasks.handlers] == ["send_mail", "send_letter"]
    assert inspect.iscoroutinefunction(send_mail)
    await app.add("send_mail", key="a")
    await drain(app)
    await assert_done(app, "a")


async def test_a_nameless_handler_must_be_given_a_kind(app):
    """A lambda or an object has no name to take; twice the same kind is refused."""
    for nameless in (lambda task: None, functools.partial(lambda task: None)):
        with pytest.raises(HandlerError, match=r"has no name to take as its kind: \.handler\('send_invoice'\)"):
            app.handler(nameless)
        with pytest.raises(HandlerError, match="has no name"):
            app.handler()(nameless)
    with pytest.raises(HandlerError, match="has no name"):
        app.handler(7)
    app.handler("mail")(lambda task: None)
    with pytest.raises(HandlerError, match="already"):
        app.handler("mail")(lambda task: None)


async def test_a_handler_says_its_policy_in_words(app):
    """The words of a policy stand on the decorator for the simple case; a whole policy and words are not said together."""

    @app.handler(
        "mail", retries=2, wait=[1, 5], jitter=redrive.jitter.none, permanent=ValueError, deadline=60, timeout=5
    )
    async def send(task):
        pass

    [handler] = app.tasks.handlers
    assert handler.policy == Policy(
        redrive.Schedule([1, 5]), retries=2, jitter=redrive.jitter.none, permanent=[ValueError], deadline=seconds(60)
    )
    assert handler.timeout == seconds(5)
    with pytest.raises(UsageError, match="say either policy= or attempts=, not both"):
        app.handler("letter", policy=Policy(), attempts=3)
    with pytest.raises(UsageError, match="retries must be a whole number"):
        app.handler("letter", retries=-1)
    assert len(app.tasks.handlers) == 1


async def test_a_pattern_behind_a_thousand_kinds_that_nobody_handles(app):
    """Whatever waits for others, a handler whose kind is a pattern gets its tasks, and so does one that is named in full."""
    ran = []

    @app.handler("z.*")
    async def pattern(task):
        ran.append(task.kind)

    @app.handler("y")
    async def named(task):
        ran.append(task.kind)

    await app.add_many([make_task(f"nobody.{number:04}") for number in range(1100)])
    await app.add("z.one")
    await app.add("y")
    await app.work_off(app.tasks)
    assert sorted(ran) == ["y", "z.one"]


# --- acting -----------------------------------------------------------------------------------------------------------


def _fail(task):
    raise ValueError("odd")


@pytest.fixture
async def dead(app):
    """A dead task's id."""
    app.handler("mail", policy=Policy(attempts=1))(_fail)
    added = await app.add("mail", key="dead")
    await drain(app)
    return added.id


async def test_redrive_find_attempts(app, dead):
    """A dead task is found by its error, redriven, and its history stays."""
    page = await app.tasks.find(Filter(state=State.DEAD, error="odd"))
    assert [task.id for task in page.items] == [dead]
    assert (await app.tasks.redrive(Filter(error="odd"), actor="ada", dry_run=True)).matched == 1
    assert (await app.tasks.redrive(Filter(error="odd"), actor="ada")).changed == (dead,)
    assert [attempt.outcome for attempt in await app.tasks.attempts(dead)] == ["failed"]


async def test_resolve_needs_a_name(app, dead):
    """A person ends a dead task by hand, under their name."""
    with pytest.raises(UsageError, match="give the actor a name"):
        await app.tasks.resolve([dead], State.DONE, actor=" ")
    resolved = await app.tasks.resolve(dead, State.CANCELLED, actor="ada", reason="refunded")
    assert resolved.changed == (dead,)
    assert (await app.tasks.get("dead")).state is State.CANCELLED


async def test_cancel_ends_what_waits(app):
    """Waiting tasks can be called off."""
    added = await app.add("mail", key="a", delay=timedelta(days=1))
    assert (await app.tasks.cancel(Filter(key="a"), actor="ada")).changed == (added.id,)
    assert (await app.tasks.get("a")).state is State.CANCELLED


async def test_an_observer_that_raises_does_not_fail_an_add(url, caplog):
    """The task is durable when observers are told: a broken one is logged, and the caller is not told to try again."""

    class Broken:
        def observe(self, events):
            raise OSError("no space left for logs")

    async with Redrive(url, observers=[Broken()], durable=False) as app:
        assert (await app.add("mail")).new
    assert "Broken failed as an observer" in caplog.text


async def test_what_is_no_key_finds_no_task(app):
    """None, where a key was missing, would ask nothing, and be answered with any task; an id is not a key either."""
    await app.add("mail", key="a")
    for wrong in (None, 7, ("a",)):
        with pytest.raises(UsageError, match=r"a key is text, not .*: get_by_id takes an id"):
            await app.tasks.get(wrong)


async def test_a_wrong_thing_is_named_with_what_is_taken(app):
    """What is passed in place of a filter, a task, a kind, a table or an option is refused in a sentence of the caller's own words."""
    app.handler("mail")(lambda task: None)
    for call, says in (
        (
            lambda: app.tasks.find("dead"),
            "tasks are found by a Filter, such as Filter.state=State.DEAD., not by 'dead'",
        ),
        (
            lambda: app.add_many([{"kind": "mail"}]),
            "add_many takes tasks that redrive.lane.make_task has made, not {'kind'",
        ),
        (lambda: app.add(None), "a kind is text, or the function that handles it, not None"),
        (
            lambda: app.tasks.redrive(7, actor="ada", limit=3),
            "no act takes limit=: besides actor= and reason= there are dry_run=",
        ),
    ):
        with pytest.raises(UsageError, match=says):
            await call()
    with pytest.raises(UsageError, match=r"adopted by a LedgerTable, such as .* not by 'emails'"):
        app.adopt("emails")
    with pytest.raises(
        UsageError, match="there is no state 'daed': choose from waiting, claimed, done, dead, cancelled"
    ):
        Filter(state="daed")
    assert type(Filter(state="dead").state) is State
    with pytest.raises(UsageError, match=r"the URL of a store is text, such as sqlite:///work.db, not None"):
        Redrive(None)
