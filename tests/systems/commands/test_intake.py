"""Sending: all or nothing, once per id, in the caller's own transaction or in ours."""

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from sqlalchemy import create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive.errors import UsageError
from redrive.systems.commands import (
    DuplicateBatchError,
    DuplicateCommandError,
    NewCommand,
)
from tests.systems.commands.conftest import DOMAIN, REPLIES, TYPE, Bench


def new(command_id: str, **given) -> NewCommand:
    return NewCommand(**({"domain": DOMAIN, "command_type": TYPE, "command_id": command_id, "data": {}} | given))


async def all_ids(bench: Bench) -> set[str]:
    return {one.command_id for one in (await bench.bus.query_commands()).items}


async def queued(bench: Bench) -> int:
    if bench.store == "sqlite":
        return len(await all_ids(bench))
    count = text("SELECT count(*) FROM pgmq.q_payments__commands")
    return await bench.app.database.read(lambda connection: connection.execute(count).scalar_one())


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_transactional_handler_does_not_wait_for_itself(bench: Bench) -> None:
    """Sent beside the handler's own transaction, a command would wait for it: that is refused at once, with the remedy."""

    async def send_on(command, context) -> None:
        await bench.bus.send(DOMAIN, TYPE, "c-2")

    bench.handlers.handler(DOMAIN, "Forward", transactional=True)(send_on)
    await bench.bus.send(DOMAIN, "Forward", "c-1")
    await bench.work()
    assert "connection=" in (await bench.get()).last_error_msg
    assert await all_ids(bench) == {"c-1"}


async def test_a_second_send_is_a_duplicate(bench: Bench) -> None:
    """An id is taken once per domain, also after its command has ended, whatever the type; another domain may use it."""
    await bench.send()
    with pytest.raises(DuplicateCommandError, match="c-1"):
        await bench.send()
    await bench.work()
    with pytest.raises(DuplicateCommandError) as caught:
        await bench.bus.send(DOMAIN, "Other", "c-1")
    assert (caught.value.domain, caught.value.command_id) == (DOMAIN, "c-1")
    await bench.bus.send("shipping", TYPE, "c-1")
    assert await bench.events() == ["SENT", "RECEIVED", "COMPLETED", "SENT"]
    assert len(await bench.bus.audit_trail("c-1", DOMAIN)) == 3


async def test_a_hundred_at_once(bench: Bench) -> None:
    """Concurrent sends share commits; each id is sent once, and the others are told."""
    results = await asyncio.gather(
        *(bench.bus.send(DOMAIN, TYPE, f"c-{n % 50}") for n in range(100)), return_exceptions=True
    )
    assert sum(result is None for result in results) == 50
    assert sum(isinstance(result, DuplicateCommandError) for result in results) == 50
    assert await queued(bench) == 50


async def test_a_batch_is_all_or_nothing(bench: Bench) -> None:
    """One id that is taken, or that comes twice, and none of them is sent: no row, no message, no audit."""
    await bench.send("c-3")
    for ids in (["c-1", "c-2", "c-3"], ["c-5", "c-6", "c-5"]):
        with pytest.raises(DuplicateCommandError):
            await bench.bus.send_batch([new(one) for one in ids])
        with pytest.raises(DuplicateCommandError):
            await bench.bus.create_batch(DOMAIN, [new(one) for one in ids], batch_id="b-1")
    assert await all_ids(bench) == {"c-3"}
    assert await queued(bench) == 1
    assert await bench.events("c-1") == []
    assert await bench.bus.get_batch(DOMAIN, "b-1") is None
    await bench.bus.send_batch([])
    await bench.bus.send_batch([new("c-1"), new("c-2", domain="shipping")])
    assert await all_ids(bench) == {"c-1", "c-2", "c-3"}


async def test_a_refused_batch_leaves_the_callers_transaction_usable(bench: Bench) -> None:
    """After an id that comes twice the caller may go on and commit: neither a command nor the batch is left behind."""
    async with bench.app.database.transaction() as transaction:
        with pytest.raises(DuplicateCommandError):
            await bench.bus.create_batch(
                DOMAIN, [new("c-1"), new("c-1")], batch_id="b-1", connection=transaction.connection
            )
        await bench.bus.send_batch([new("c-2")], connection=transaction.connection)
    assert await all_ids(bench) == {"c-2"}
    assert await bench.bus.get_batch(DOMAIN, "b-1") is None


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("handle", ["connection", "session"])
async def test_in_the_callers_transaction(bench: Bench, commit: bool, handle: str) -> None:
    """The command is sent if and only if the caller's transaction commits; a worker sees it not before."""
    async with bench.app.database.transaction() as transaction:
        connection = transaction.connection
        session = AsyncSession(bind=connection)
        within = connection if handle == "connection" else session
        await bench.send(connection=within)
        await bench.bus.create_batch(DOMAIN, [new("b-1")], connection=within)
        if bench.store == "postgres":  # SQLite has one writer, which this transaction is
            await bench.work()
        if not commit:
            await connection.rollback()
            await connection.begin()
    assert bench.calls == []
    assert await all_ids(bench) == ({"c-1", "b-1"} if commit else set())
    await bench.work()
    assert len(bench.calls) == (2 if commit else 0)


async def test_a_refused_send_leaves_the_callers_transaction_usable(bench: Bench) -> None:
    """After a duplicate the caller may go on; what was refused has left nothing behind."""
    await bench.send("c-1")
    async with bench.app.database.transaction() as transaction:
        with pytest.raises(DuplicateCommandError):
            await bench.bus.send_batch([new("c-2"), new("c-1")], connection=transaction.connection)
        await bench.bus.send_batch([new("c-3")], connection=transaction.connection)
    assert await all_ids(bench) == {"c-1", "c-3"}
    assert await queued(bench) == 2


async def test_from_code_without_an_event_loop(bench: Bench, bus_url: str) -> None:
    """A plain session of the caller's own engine sends too, on PostgreSQL by another driver."""
    engine = create_engine(bus_url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        bench.bus.send_sync(DOMAIN, TYPE, "c-1", {"n": 1}, connection=session)
        session.commit()
        bench.bus.send_sync(DOMAIN, TYPE, "c-2", connection=session)
        session.rollback()
    engine.dispose()
    await bench.work()
    assert [command.command_id for command, _, _ in bench.calls] == ["c-1"]


async def test_each_sender_keeps_its_own_trace(bench: Bench) -> None:
    """Sends that share a commit are not written in one another's trace."""

    async def send(number: int) -> None:
        span = SpanContext(trace_id=number + 1, span_id=1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        with use_span(NonRecordingSpan(span)):
            await bench.send(f"c-{number}")

    await asyncio.gather(*(send(number) for number in range(20)))
    c = bench.bus.messages.tables.command.c
    rows = await bench.app.database.read(lambda connection: connection.execute(select(c.command_id, c.trace)).all())
    assert {row.command_id: row.trace for row in rows} == {f"c-{n}": f"00-{n + 1:032x}-{1:016x}-01" for n in range(20)}


@pytest.mark.parametrize("within", [False, True])
async def test_a_batch_id_is_taken_once(bench: Bench, within: bool) -> None:
    """A second batch of the same id in the domain is refused, nothing of it is sent, and the caller may go on."""
    await bench.bus.create_batch(DOMAIN, [new("c-1")], batch_id="b-1", name="first")

    async def again(connection=None) -> None:
        with pytest.raises(DuplicateBatchError, match="has a batch 'b-1' already") as caught:
            await bench.bus.create_batch(DOMAIN, [new("c-2")], batch_id="b-1", connection=connection)
        assert (caught.value.domain, caught.value.batch_id) == (DOMAIN, "b-1")
        other = [new("c-3", domain="shipping")]
        await bench.bus.create_batch("shipping", other, batch_id="b-1", connection=connection)

    if within:
        async with bench.app.database.transaction() as transaction:
            await again(transaction.connection)
    else:
        await again()
    assert await all_ids(bench) == {"c-1", "c-3"}
    found = await bench.bus.get_batch(DOMAIN, "b-1")
    assert (found.name, found.total) == ("first", 1)
    assert await queued(bench) == (1 if bench.store == "postgres" else 2)


async def test_only_commands_are_sent(bench: Bench) -> None:
    """A dict is no command, and ten thousand are enough at once."""
    with pytest.raises(UsageError, match="NewCommand"):
        await bench.bus.send_batch([{"domain": DOMAIN}])
    one = new("c-1")
    with pytest.raises(UsageError, match="at most"):
        await bench.bus.send_batch([one] * 10_001)


@pytest.mark.parametrize("data", [1.0, 12345678901234567890123, "1.0", "null", True, None, [1.0], {"n": 1.5}], ids=repr)
async def test_data_comes_back_as_it_went_in(bench: Bench, data: Any) -> None:
    """Whatever JSON it is: SQLite would take a column that is declared JSON for a number where it can."""
    bench.result = data
    await bench.bus.send(DOMAIN, TYPE, "c-1", data, reply_to=REPLIES)
    await bench.work()
    [(command, *_)] = bench.calls
    assert (repr(command.data), repr((await bench.replies())[0][1])) == (repr(data), repr(data))
