"""Sending: all or nothing, once per id, in the caller's own transaction or in ours."""

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from sqlalchemy import create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from redrive.errors import PayloadError, UsageError
from redrive.systems.commands import (
    BusinessRuleError,
    DuplicateBatchError,
    DuplicateCommandError,
    NewCommand,
    PermanentCommandError,
)
from redrive.systems.commands.values import json_text
from systems.commands.conftest import DOMAIN, TYPE, Bench


def new(command_id: str, **given) -> NewCommand:
    return NewCommand(**({"domain": DOMAIN, "command_type": TYPE, "command_id": command_id, "data": {}} | given))


async def all_ids(bench: Bench) -> set[str]:
    return {one.command_id for one in (await bench.bus.query_commands()).commands}


async def queued(bench: Bench) -> int:
    if bench.store == "sqlite":
        return len(await all_ids(bench))
    count = text("SELECT count(*) FROM pgmq.q_payments__commands")
    return await bench.app.database.read(lambda connection: connection.execute(count).scalar_one())


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


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_new_domain_twice_in_one_transaction(bench: Bench) -> None:
    """Both calls need queues that only this transaction knows; neither waits for the other, and a rollback is survived."""
    replies = "fresh__replies"
    for commit in (False, True):
        async with bench.app.database.transaction() as transaction, asyncio.timeout(60):
            connection = transaction.connection
            await connection.run_sync(
                lambda plain: bench.bus.send_sync("fresh", "Pack", "c-1", reply_to=replies, connection=plain)
            )
            await bench.bus.send("fresh", "Pack", "c-2", reply_to=replies, connection=connection)
            await bench.bus.create_batch("fresh", [new("c-3", domain="fresh")], connection=connection)
            await bench.bus.send("fresher", "Pack", "c-4", reply_to=replies, connection=connection)
            assert await bench.bus.take_replies(replies, connection=connection) == []
            if not commit:
                await connection.rollback()
                await connection.begin()
    assert await all_ids(bench) == {"c-1", "c-2", "c-3", "c-4"}
    await bench.bus.send("fresh", "Pack", "c-5", reply_to=replies)
    count = text("SELECT count(*) FROM pgmq.q_fresh__commands")
    assert await bench.app.database.read(lambda connection: connection.execute(count).scalar_one()) == 4


async def test_each_sender_keeps_its_own_trace(bench: Bench) -> None:
    """Sends that share a commit are not written in one another's trace."""

    async def send(number: int) -> None:
        span = SpanContext(trace_id=number + 1, span_id=1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        with use_span(NonRecordingSpan(span)):
            await bench.send(f"c-{number}")

    await asyncio.gather(*(send(number) for number in range(20)))
    c = bench.bus._tables.command.c
    rows = await bench.app.database.read(lambda connection: connection.execute(select(c.command_id, c.trace)).all())
    assert {row.command_id: row.trace for row in rows} == {f"c-{n}": f"00-{n + 1:032x}-{1:016x}-01" for n in range(20)}


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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"domain": "Payments"}, "small letters"),
        ({"domain": "p" * 38}, "1 to 37"),
        ({"domain": "a-b"}, "small letters"),
        ({"domain": ""}, "small letters"),
        ({"command_type": ""}, "command_type must be"),
        ({"command_type": "Debit*"}, "without"),
        ({"command_type": None}, "command_type must be"),
        ({"command_id": "x" * 151}, "command_id must be"),
        ({"command_id": None}, "command_id must be"),
        ({"command_id": "a\0b"}, "no database stores"),
        ({"correlation_id": ""}, "correlation_id must be"),
        ({"reply_to": "Replies; DROP"}, "name of a queue"),
        ({"reply_to": "shipping__commands"}, "one for commands"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"max_attempts": True}, "max_attempts must be"),
        ({"data": {"x": object()}}, "not JSON"),
        ({"data": "a\0b"}, "NUL"),
        ({"data": "x" * 1_100_000}, "bytes"),
    ],
)
def test_bad_commands_are_refused_before_anything_is_sent(wrong: dict, said: str) -> None:
    """The error says what is wrong and what would do."""
    with pytest.raises((UsageError, PayloadError), match=said):
        new(**({"command_id": "c-1"} | wrong))


@given(st.text(max_size=30))
def test_only_a_real_nul_is_refused(text: str) -> None:
    r"""A text that merely spells `\u0000` is data like any other."""
    spelled = text.replace("\0", "") + "\\u0000"
    assert json_text(spelled.encode("utf-8", "ignore").decode())
    with pytest.raises(PayloadError):
        json_text(text.encode("utf-8", "ignore").decode() + "\0")


async def test_a_batch_is_counted_and_complete(bench: Bench) -> None:
    """Counts by state follow every change; complete is when nothing is open and nothing waits for a person."""

    id_ = await bench.bus.create_batch(
        DOMAIN, [new(f"c-{n}") for n in range(4)], name="nightly", custom_data={"run": 7}
    )
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.status, found.total, found.pending, found.name, found.custom_data) == (
        "OPEN",
        4,
        4,
        "nightly",
        {"run": 7},
    )
    bench.raises = [
        None,
        PermanentCommandError("NO", "no"),
        BusinessRuleError("LIMIT", "no"),
        PermanentCommandError("NO"),
    ]
    await bench.work()
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.status, found.pending, found.in_progress, found.completed) == ("OPEN", 0, 0, 1)
    assert (found.failed, found.in_troubleshooting, found.completed_at) == (1, 2, None)
    troubled = [one.command_id for one in (await bench.bus.troubleshooting.list()).commands]
    await bench.bus.troubleshooting.retry(DOMAIN, troubled[0], "ada")
    assert (await bench.bus.get_batch(DOMAIN, id_)).pending == 1
    await bench.work()
    bench.advance(seconds=5)
    await bench.bus.troubleshooting.cancel(DOMAIN, troubled[1], "ada", reason="no longer wanted")
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.status, found.completed, found.failed, found.canceled) == ("COMPLETED_WITH_FAILURES", 2, 1, 1)
    assert (found.in_troubleshooting, found.pending) == (0, 0)
    assert found.completed_at == found.created_at + timedelta(seconds=5)


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


async def test_a_batch_without_failures(bench: Bench) -> None:
    """All done is COMPLETED; while one runs the batch says so."""
    id_ = await bench.bus.create_batch(DOMAIN, [new("c-1"), new("c-2")])
    await bench.bus.ledger.claim(1, timedelta(seconds=30), kinds=[f"{DOMAIN}/{TYPE}"])
    found = await bench.bus.get_batch(DOMAIN, id_)
    assert (found.pending, found.in_progress) == (1, 1)
    bench.advance(seconds=30)
    await bench.work()
    bench.advance(seconds=60)
    await bench.work()
    assert (await bench.bus.get_batch(DOMAIN, id_)).status == "COMPLETED"
    with pytest.raises(UsageError, match="at least one"):
        await bench.bus.create_batch(DOMAIN, [])
    with pytest.raises(UsageError, match="cannot hold commands of shipping"):
        await bench.bus.create_batch(DOMAIN, [new("c-9", domain="shipping")])
    assert await bench.bus.get_batch("shipping", id_) is None


async def test_a_stopping_transaction_leaves_no_reply(bench: Bench) -> None:
    """Replies that are taken in a transaction which fails stay in their queue."""
    await bench.send()
    await bench.work()
    with pytest.raises(ZeroDivisionError):
        async with bench.app.database.transaction() as transaction:
            assert len(await bench.bus.take_replies("payments__replies", connection=transaction.connection)) == 1
            raise ZeroDivisionError
    assert await bench.replies() == [("SUCCESS", None)]
    assert await bench.replies() == []


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_reply_that_another_client_has_read(bench: Bench) -> None:
    """It is that client's as long as it is hidden; the others are taken."""
    for number in range(2):
        await bench.send(f"c-{number}")
    await bench.work()
    read = text("UPDATE pgmq.q_payments__replies SET vt = :vt, read_ct = 1 WHERE message ->> 'command_id' = 'c-0'")
    hidden = {"vt": bench.clock.now() + timedelta(seconds=30)}
    await bench.app.database.write(lambda connection: connection.execute(read, hidden))
    assert [one.command_id for one in await bench.bus.take_replies("payments__replies")] == ["c-1"]
    bench.advance(seconds=30)
    assert [one.command_id for one in await bench.bus.take_replies("payments__replies")] == ["c-0"]


async def test_commands_are_not_taken_for_replies(bench: Bench) -> None:
    """A queue of commands is refused where replies are asked for: taking from it would lose commands."""
    await bench.send()
    with pytest.raises(UsageError, match="one for commands"):
        await bench.bus.take_replies("payments__commands")
    assert await queued(bench) == 1


async def test_replies_come_in_order_and_in_parts(bench: Bench) -> None:
    """Oldest first, as many as are asked for; two takers share them."""
    for n in range(6):
        await bench.send(f"c-{n}")
    await bench.work()
    first = await bench.bus.take_replies("payments__replies", limit=2)
    rest = await asyncio.gather(*(bench.bus.take_replies("payments__replies", limit=2) for _ in range(2)))
    ids = [one.command_id for one in [*first, *rest[0], *rest[1]]]
    assert len(first) == 2
    assert sorted(ids) == [f"c-{n}" for n in range(6)]
    with pytest.raises(UsageError, match="limit"):
        await bench.bus.take_replies("payments__replies", limit=0)


async def test_without_reply_to_nothing_is_replied(bench: Bench) -> None:
    """A command without a reply queue is done in silence."""
    await bench.bus.send(DOMAIN, TYPE, "c-1")
    await bench.work()
    assert (await bench.get()).status == "COMPLETED"
    if bench.store == "sqlite":
        table = bench.bus._tables.reply
        assert await bench.app.database.read(lambda connection: connection.execute(select(table)).all()) == []


async def test_only_commands_are_sent(bench: Bench) -> None:
    """A dict is no command, and ten thousand are enough at once."""
    with pytest.raises(UsageError, match="NewCommand"):
        await bench.bus.send_batch([{"domain": DOMAIN}])
    one = new("c-1")
    with pytest.raises(UsageError, match="at most"):
        await bench.bus.send_batch([one] * 10_001)
