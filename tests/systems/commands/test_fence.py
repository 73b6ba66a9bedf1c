"""A worker stalled past its visibility timeout, once another has its command: its delete, archive, release and extension change nothing."""

import os
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, text

from redrive.core.decide import decide
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Released
from redrive.core.task import ClaimLost
from redrive.systems.commands import PermanentCommandError, TransientCommandError
from tests.breadth import WIDE
from tests.systems.commands.conftest import DOMAIN, TYPE, Bench

STALLS = max(200 if WIDE else 80, int(os.environ.get("REDRIVE_TEST_ROUNDS") or 0))
LEASE = timedelta(seconds=30)
KINDS = [f"{DOMAIN}/{TYPE}"]
LATE = (
    Done(),
    Failed(PermanentCommandError("NO", "no")),
    Failed(TransientCommandError("SLOW", "slow")),
    Cancelled("no"),
    Released(),
)
"""What the late worker would do: delete, archive, hide again, archive as failed, give back."""


async def everything(bench: Bench) -> list[Any]:
    """All rows of the bus, its queues and the engine's history."""
    tables = ["redrive_attempt", "redrive_minute"]
    if bench.store == "postgres":
        tables += ["commandbus.command", "commandbus.audit", "pgmq.q_payments__commands", "pgmq.a_payments__commands"]
        tables += ["pgmq.q_payments__replies"]
    else:
        tables += ["commandbus_command", "commandbus_audit", "commandbus_reply"]

    def look(connection: Connection) -> list[Any]:
        return [sorted(map(str, connection.execute(text(f"SELECT * FROM {table}")))) for table in tables]

    return await bench.app.database.read(look)


async def test_a_stalled_worker_changes_nothing(bench: Bench) -> None:
    """Again and again, wherever the others are by then: it is being buried, it runs again, it has ended."""
    ledger, policy = bench.bus.ledger, bench.bus.retry_policy.policy
    stages = ("found", "buried", "runs again", "done")
    if (
        bench.store == "sqlite"
    ):  # a table lets the late one in until another has settled it, which is as good as in time
        stages = stages[1:]
    for number in range(0, STALLS, 20):
        stage = stages[number // 20 % len(stages)]
        ids = [f"{number}-{one}" for one in range(20)]
        for one in ids:
            await bench.send(one)
        late = await ledger.claim(20, LEASE, kinds=KINDS)
        assert len(late) == 20
        bench.advance(seconds=30)
        found = await (ledger.claim if bench.store == "postgres" else ledger.reclaim)(20, LEASE, kinds=KINDS)
        assert all(claim.abandoned is not None for claim in found)
        if stage != "found":
            buried = [decide(claim, LeaseExpired(), policy) for claim in found]
            assert await ledger.settle(buried, worker="other") == []
        bench.advance(seconds=60 if stage in ("runs again", "done") else 0)
        if stage in ("runs again", "done"):
            again = await ledger.claim(20, LEASE, kinds=KINDS)
            assert len(again) == 20
            if stage == "done":
                assert await ledger.settle([decide(one, Done(), policy) for one in again], worker="other") == []
        before = await everything(bench)
        for position, claim in enumerate(late):
            outcome = LATE[position % len(LATE)]
            assert await ledger.settle([decide(claim, outcome, policy)], worker="late") == [ClaimLost(claim)], stage
            assert await ledger.extend([claim], timedelta(hours=1)) == [ClaimLost(claim)], stage
        assert await everything(bench) == before, stage
        bench.advance(days=1)
        await bench.work()  # clears the way for the next round
        bench.advance(days=1)
        await bench.work()


async def test_a_stalled_worker_does_not_spoil_its_batch(bench: Bench) -> None:
    """In one settlement of many, those that are lost are told and the others are written."""
    for number in range(4):
        await bench.send(f"c-{number}")
    ledger, policy = bench.bus.ledger, bench.bus.retry_policy.policy
    late = await ledger.claim(2, LEASE, kinds=KINDS)
    bench.advance(seconds=30)
    found = [*await ledger.reclaim(9, LEASE, kinds=KINDS), *await ledger.claim(9, LEASE, kinds=KINDS)]
    lost = [claim for claim in found if claim.abandoned is not None]
    fresh = [claim for claim in found if claim.abandoned is None]
    assert await ledger.settle([decide(claim, LeaseExpired(), policy) for claim in lost], worker="other") == []
    settled = [decide(claim, Done(), policy) for claim in (*late, *fresh)]
    assert await ledger.settle(settled, worker="w") == [ClaimLost(one) for one in sorted(late, key=lambda c: c.task.id)]
    assert {one.status for one in (await bench.bus.query_commands()).items} == {"PENDING", "COMPLETED"}


async def test_queues_are_not_mixed_up(bench: Bench) -> None:
    """Messages of two domains have the same numbers; that one of them is still held does not let the other's late worker in."""
    ledger, policy = bench.bus.ledger, bench.bus.retry_policy.policy
    bench.handlers.handler("shipping", "Pack")(bench.handle)
    await bench.send("c-1")
    [late] = await ledger.claim(1, LEASE, kinds=KINDS)
    bench.advance(seconds=30)
    [lost] = [*await ledger.reclaim(9, LEASE, kinds=KINDS), *await ledger.claim(9, LEASE, kinds=KINDS)]
    assert await ledger.settle([decide(lost, LeaseExpired(), policy)], worker="other") == []
    await bench.bus.send("shipping", "Pack", "p-1")
    [held] = await ledger.claim(1, LEASE, kinds=["shipping/Pack"])
    if bench.store == "postgres":
        assert (held.task.payload["msg_id"], held.task.payload["read_ct"]) == (
            late.task.payload["msg_id"],
            late.task.payload["read_ct"],
        )
    assert await ledger.extend([late, held], LEASE) == [ClaimLost(late)]
    settled = [decide(late, Done(), policy), decide(held, Done(), policy)]
    assert await ledger.settle(settled, worker="w") == [ClaimLost(late)]
    assert (await bench.get()).status == "PENDING"


async def test_one_claim_over_several_domains(bench: Bench) -> None:
    """A worker of two domains gets commands of both, up to its limit, and settles them together."""
    bench.handlers.handler("shipping", "Pack")(bench.handle)
    for number in range(3):
        await bench.send(f"c-{number}")
        await bench.bus.send("shipping", "Pack", f"p-{number}")
    claims = await bench.bus.ledger.claim(5, LEASE, kinds=[*KINDS, "shipping/Pack", "nowhere/Nothing"])
    assert len(claims) == 5
    policy = bench.bus.retry_policy.policy
    assert await bench.bus.ledger.settle([decide(one, Done(), policy) for one in claims], worker="w") == []
    await bench.work()
    assert {one.status for one in (await bench.bus.query_commands()).items} == {"COMPLETED"}
