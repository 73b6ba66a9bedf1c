"""What is written beside the deliveries, in the commits that change them: the status of their events, and how many there are.

Whoever changes deliveries holds them before their event is locked, here, in the order of ids; the counters come last. So two
transactions never wait for each other in a circle. What has changed is told after the commit; a process that is killed in between
loses these lines of its log and nothing else.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Text, select, update

from redrive import State
from redrive.events import Act, Claim, Settlement
from redrive.extend import Beside, Database
from redrive.lane import Actor
from redrive.sql import Batch, after_commit
from redrive.systems.triggers import tables as t
from redrive.systems.triggers.status import Delivery, Failure, Standing, fold
from redrive.systems.triggers.values import Change, DeliveryFailed, StatusChanged

EVENT_WIDTH = 4 + len(Standing._fields)
SHARDS = 64
"""Each connection counts in rows of its own, as far as that goes: nobody waits for another's commit."""


class EventStatus(Beside):
    """Keeps events equal to their deliveries, and counts them."""

    def __init__(self, database: Database, tell: Callable[[Sequence[Change]], None]) -> None:
        self._tell = tell
        e, d = t.events, t.deliveries
        self._ids = Batch(database.dialect, {"id": Text()})
        told = [e.c[name] for name in ("id", "user_id", "correlation_id", "created_at", *Standing._fields)]
        facts = [d.c[name] for name in ("id", "updated_at", *Delivery._fields)]
        together = select(*told, *facts).join_from(e, d, d.c.event_id == e.c.id, isouter=True)
        self._lock = together.where(self._ids.match("id", e.c.id)).order_by(e.c.id, d.c.id).with_for_update(of=e)
        self._lock_soon = database.dialect.impatient(self._lock)
        self._look = select(d.c.event_id, *facts).where(self._ids.match("id", d.c.event_id)).order_by(d.c.id)
        self._events_of = select(d.c.id, d.c.event_id).where(self._ids.match("id", d.c.id))
        written = ("id", *Standing._fields, "updated_at")
        self._standings = Batch(database.dialect, {name: e.c[name].type for name in written})
        rows = self._standings.rows.c
        self._write = (
            update(e).where(self._standings.match("id", e.c.id)).values({name: rows[name] for name in written[1:]})
        )
        count = database.insert(t.counts)
        self._count = count.on_conflict_do_update(
            index_elements=["user_id", "status", "shard"], set_={"amount": t.counts.c.amount + count.excluded.amount}
        )

    # --- called by the ledger ---------------------------------------------------------------------------------------

    def claimed(self, connection: Connection, claims: Sequence[Claim]) -> None:
        self.follow(connection, {one.task.id: one.task.payload["event_id"] for one in claims})

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        failed = {one.claim.task.id: one.error for one in settlements if one.explanation is not None}
        changed = {one.claim.task.id: one.claim.task.payload["event_id"] for one in settlements}
        # An event that a stranger has locked does not hold up the deliveries of all others: they are settled one by one then.
        self.follow(connection, changed, failed=failed, impatient=True)

    def acted(
        self,
        connection: Connection,
        act: Act,  # noqa: ARG002 - whatever was done: the deliveries tell what has become of them
        state: State,  # noqa: ARG002
        ids: Sequence[Any],
        actor: Actor,  # noqa: ARG002
        note: Any,  # noqa: ARG002
    ) -> None:
        found = connection.execute(self._events_of, self._ids.parameters((id_,) for id_ in ids))
        self.follow(connection, {row.id: row.event_id for row in found})

    # --- called where the system itself changes deliveries or events --------------------------------------------------

    def follow(
        self,
        connection: Connection,
        changed: Mapping[Any, str],
        *,
        failed: Mapping[Any, str | None] | None = None,
        acknowledged: str | None = None,
        now: datetime | None = None,
        impatient: bool = False,
    ) -> None:
        """Write what deliveries come to into their events, in the transaction that changed them.

        `changed` are these deliveries with their events; `failed` are those that have just failed, with their errors.
        `acknowledged` is an event that changes though it may have no deliveries. Whoever is `impatient` does not wait long for
        an event: then nothing is written.
        """
        event_ids = {*changed.values(), *([acknowledged] if acknowledged is not None else ())}
        if not event_ids:
            return
        changes: list[Change] = []
        rows = []
        for event, deliveries in self._locked(connection, event_ids, changed, impatient=impatient):
            id_, user_id, correlation_id, created_at, *stands = event
            before = Standing(*stands)
            at = now or max(updated_at for _, updated_at, *_ in deliveries)
            failure = None
            for delivery_id, updated_at, _, attempts, due_at, *_ in deliveries:
                if failed and delivery_id in failed:
                    failure = Failure(updated_at, failed[delivery_id])
                    changes.append(DeliveryFailed(id_, user_id, correlation_id, attempts, failure.error, due_at))
            after = fold(before, [Delivery(*row[2:]) for row in deliveries], at, failure)
            if after != before:
                rows.append((id_, *after, at))
            if after.status != before.status:
                told = (after.retry_attempts, after.last_error, after.failed_at, created_at, at)
                changes.append(StatusChanged(id_, user_id, correlation_id, before.status, after.status, *told))
        if rows:
            connection.execute(self._write, self._standings.parameters(rows))
        self._changed(connection, changes)

    def _locked(
        self, connection: Connection, event_ids: Collection[str], ours: Mapping[Any, str], *, impatient: bool
    ) -> list[tuple[Any, list[Any]]]:
        """Lock events; each of them with its deliveries."""
        events: dict[str, tuple[Any, list[Any]]] = {}
        others = set()
        lock = self._lock_soon if impatient else self._lock
        for row in connection.execute(lock, self._ids.parameters((id_,) for id_ in sorted(event_ids))):
            event, delivery = row[:EVENT_WIDTH], row[EVENT_WIDTH:]
            _, deliveries = events.setdefault(event[0], (event, []))
            if delivery[0] is not None:
                deliveries.append(delivery)
                if delivery[0] not in ours:
                    others.add(event[0])
        if others:
            # Whoever held these events until now may have changed deliveries after we began to look: look again.
            for id_ in others:
                events[id_][1].clear()
            for row in connection.execute(self._look, self._ids.parameters((id_,) for id_ in sorted(others))):
                events[row[0]][1].append(row[1:])
        return list(events.values())

    def took(self, connection: Connection, events: Iterable[Mapping[str, Any]]) -> None:
        """These events were taken in."""
        self._changed(
            connection,
            [
                StatusChanged(
                    row["id"], row["user_id"], row["correlation_id"], None, "received", 0, None, None,
                    row["created_at"], row["created_at"],
                )
                for row in events
            ],
        )  # fmt: skip

    def deleted(self, connection: Connection, events: Iterable[tuple[str, str]]) -> None:
        """Events of these users in these statuses were deleted."""
        self._add_up(connection, Counter({key: -amount for key, amount in Counter(events).items()}))

    def _changed(self, connection: Connection, changes: Sequence[Change]) -> None:
        if not changes:
            return
        moved = Counter[tuple[str, str]]()
        for one in changes:
            if isinstance(one, StatusChanged):
                moved[one.user_id, one.new_status] += 1
                if one.old_status is not None:
                    moved[one.user_id, one.old_status] -= 1
        self._add_up(connection, moved)
        after_commit(connection, partial(self._tell, changes))

    def _add_up(self, connection: Connection, amounts: Mapping[tuple[str, str], int]) -> None:
        shard = connection.info.setdefault("trigger_shard", random.randrange(SHARDS))
        rows = [
            {"user_id": user_id, "status": status, "shard": shard, "amount": amount}
            for (user_id, status), amount in sorted(amounts.items())
            if amount
        ]
        if rows:
            connection.execute(self._count, rows)
