"""Engines that are broken on purpose, each in one place: a model that finds nothing wrong with them proves nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from proof.simulator.world import SimulatedLedger
from redrive.core.policy import Policy
from redrive.engine import keeper, run, worker
from redrive.engine.keeper import Keeper
from redrive.ledgers.sql.gate_reading import ReadingGateClaim
from redrive.ledgers.sql.ledger import SqlLedger

decide = keeper.decide


@contextmanager
def unfenced_settle() -> Iterator[None]:
    """A settlement is written whoever holds the task now."""
    settle = SimulatedLedger.settle

    async def blind(self: SimulatedLedger, settlements: Any, **how: Any) -> Any:
        rows = self.database.driver.execute("SELECT id, claim_id FROM redrive_task")  # type: ignore[attr-defined]
        fences = {id_: fence for id_, fence in rows if fence is not None}
        given = [
            one._replace(claim=one.claim._replace(claim_id=_uuid(fences.get(one.claim.task.id), one.claim.claim_id)))
            for one in settlements
        ]
        return await settle(self, given, **how)

    with patch.object(SimulatedLedger, "settle", blind):
        yield


def _uuid(text: str | None, otherwise: Any) -> Any:
    return otherwise if text is None else type(otherwise)(text)


@contextmanager
def forgetful_keeper() -> Iterator[None]:
    """Nobody settles what was lost with its worker."""

    async def nothing(self: Keeper) -> int:  # noqa: ARG001
        return 0

    with patch.object(Keeper, "settle_expired", nothing):
        yield


@contextmanager
def hasty_keeper() -> Iterator[None]:
    """A claim passes for lost before its lease has run out."""
    reclaim = SqlLedger.reclaim

    async def early(self: Any, *args: Any, **how: Any) -> Any:
        database = self.database
        now = database.now
        database.now = lambda: now() + timedelta(seconds=0.5)
        try:
            return await reclaim(self, *args, **how)
        finally:
            database.now = now

    with patch.object(SqlLedger, "reclaim", early):
        yield


@contextmanager
def endless_budget() -> Iterator[None]:
    """A task that fails is tried again for ever."""
    generous = Policy(retries=1000)

    def more(claim: Any, outcome: Any, policy: Policy, **how: Any) -> Any:  # noqa: ARG001
        return decide(claim, outcome, generous, **how)

    with patch.object(worker, "decide", more), patch.object(keeper, "decide", more), patch.object(run, "decide", more):
        yield


@contextmanager
def open_gates() -> Iterator[None]:
    """Limits are kept, and nobody heeds them."""
    ask = ReadingGateClaim.ask

    def generous(self: Any, connection: Any, asked: Any) -> Any:
        connection.exec_driver_sql("UPDATE redrive_gate SET held = 0")
        return ask(self, connection, asked)

    with patch.object(ReadingGateClaim, "ask", generous):
        yield


@contextmanager
def swallowed_adds() -> Iterator[None]:
    """An add is acknowledged before it is durable, and the process dies."""

    async def promised(self: Any, tasks: Any, **how: Any) -> Any:  # noqa: ARG001
        return []

    with patch.object(SqlLedger, "add", promised):
        yield


@contextmanager
def failing_housekeeping() -> Iterator[None]:
    """A statement that no database understands, in a loop that takes every error for an outage."""

    def wrong(self: Any, connection: Any, limit: int) -> Any:  # noqa: ARG001
        return connection.exec_driver_sql("SELECT nothing FROM nowhere")

    with patch.object(SqlLedger, "_overdue_behind_gates", wrong):
        yield


BROKEN: list[Callable[[], Any]] = [
    unfenced_settle, forgetful_keeper, hasty_keeper, endless_budget, open_gates, swallowed_adds,
    failing_housekeeping,
]  # fmt: skip
