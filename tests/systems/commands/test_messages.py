"""Replies in their queues, and queues that are made when they are first needed."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from redrive.errors import UsageError
from redrive.systems.commands import (
    NewCommand,
)
from tests.systems.commands.conftest import DOMAIN, TYPE, Bench


def new(command_id: str, **given) -> NewCommand:
    return NewCommand(**({"domain": DOMAIN, "command_type": TYPE, "command_id": command_id, "data": {}} | given))


async def all_ids(bench: Bench) -> set[str]:
    return {one.command_id for one in (await bench.bus.query_commands()).items}


async def queued(bench: Bench) -> int:
    if bench.store == "sqlite":
        return len(await all_ids(bench))
    count = text("SELECT count(*) FROM pgmq.q_payments__commands")
    return await bench.app.database.read(lambda connection: connection.execute(count).scalar_one())


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
