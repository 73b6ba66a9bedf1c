"""What a handler gets, what it may ask of its context, and what becomes of what it returns."""

import threading
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from redrive import Snoozed, minutes
from redrive.systems.commands import (
    BusinessRuleError,
    TransientCommandError,
)
from tests.systems.commands.conftest import DOMAIN, TYPE, Bench

SLOW = TransientCommandError("TIMEOUT", "the bank is slow")


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


async def test_what_a_handler_gets(bench: Bench) -> None:
    """Everything that was sent, as it was sent."""
    data = {"lines": [1, 2.5, None, True, "ü 🎈 'quoted' \\u0000 kept"], "deep": {"er": []}}
    id_ = uuid4()
    await bench.bus.send(DOMAIN, TYPE, id_, data, uuid4(), "payments__replies", 7)
    await bench.work()
    [(command, attempt, max_attempts)] = bench.calls
    assert (command.domain, command.command_type, command.command_id) == (DOMAIN, TYPE, str(id_))
    assert (command.data, command.reply_to) == (data, "payments__replies")
    assert UUID(command.correlation_id)
    assert command.created_at == bench.clock.now()
    assert (attempt, max_attempts) == (1, 7)
