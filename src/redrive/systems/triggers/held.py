"""What the gates of endpoints say: which of them are held, since when, and when the next delivery goes out.

Where the store has no gates, nothing is held.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from redrive.lane import Lane
from redrive.systems.triggers.ports import Stores
from redrive.systems.triggers.values import HeldEndpoint


class EndpointGates:
    """The gates of endpoints, read when somebody asks."""

    def __init__(self, lane: Lane, stores: Stores) -> None:
        self._lane = lane
        self._inbox = stores.inbox
        self._parked = stores.parked
        self._now = stores.clock.now

    async def held(self, ids: Sequence[str]) -> dict[str, HeldEndpoint]:
        """Those of the endpoints whose deliveries are kept back, by their ids."""
        now = self._now()
        seen = {gate.name: _held(gate, now) for gate in await self._gates(ids)}
        held = {name: one for name, one in seen.items() if one is not None}
        amounts = await self._parked(list(held)) if held else {}
        return {name: one._replace(waiting=amounts.get(name)) for name, one in held.items()}

    async def next_try(self, event_id: str, status: str, next_retry_at: datetime | None) -> datetime | None:
        """When an event is tried next: what is due by now may wait for a gate, and only then are gates asked."""
        if status != "queued" or next_retry_at is None or next_retry_at > self._now():
            return next_retry_at
        waiting = await self._inbox.waiting(event_id)
        gates = {gate.name: gate for gate in await self._gates([endpoint_id for endpoint_id, _ in waiting])}
        times = []
        for endpoint_id, due_at in waiting:
            gate, due = gates.get(endpoint_id), due_at or next_retry_at
            times.append(due if gate is None or gate.wake_at is None else max(due, gate.wake_at))
        return min(times, default=next_retry_at)

    async def _gates(self, ids: Sequence[str]) -> list[Any]:
        ledger: Any = await self._lane.ledger()
        if not ids or not ledger.has_gates:
            return []
        return [gate for gate, _ in await ledger.gates(list(ids))]


def _held(gate: Any, now: datetime) -> HeldEndpoint | None:
    if gate.is_paused(now):
        return HeldEndpoint("paused", gate.paused_at, gate.paused_until, gate.reason)
    if gate.state == "tripped":
        return HeldEndpoint("holding", gate.since, max(now, gate.probe_at or now), "its deliveries failed")
    if gate.opens_at is not None and gate.opens_at > now:
        return HeldEndpoint("holding", None, gate.opens_at, "it asked for it with Retry-After")
    return (
        HeldEndpoint("returning", gate.since, gate.wake_at, "it answers again") if gate.state == "returning" else None
    )
