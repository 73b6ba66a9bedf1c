"""What is written beside the deliveries, in the commits that change them: the status of their events, and how many there are.

Whoever changes deliveries holds them before their event is locked, here, in the order of ids; the counters come last. So two
transactions never wait for each other in a circle. What has changed is told after the commit; a process that is killed in between
loses these lines of its log and nothing else.

A claim does not wait for an event that somebody has locked: it leaves it as it is. The status is a function of the deliveries, so
whoever settles them brings it up to date.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Integer, Select, Text, bindparam, select, update

from redrive import State
from redrive.events import Act, Claim, Settlement
from redrive.extend import Beside, Database
from redrive.lane import Actor
from redrive.operator.sql.flows import Flows
from redrive.sql import Batch, after_commit
from redrive.systems.triggers.changes import FailedTry, Who, changes_of, failures_of, flows_of, taken
from redrive.systems.triggers.logs import InOrder
from redrive.systems.triggers.sql import tables as t
from redrive.systems.triggers.status import Delivery, Failure, Standing, fold
from redrive.systems.triggers.values import Change, StatusChanged

EVENT_WIDTH = 4 + len(Standing._fields)
EVERYBODY = ""
"""Who stands for all users in the counters; nobody can be called so."""
SHARDS = 64
"""Each connection counts in rows of its own, as far as that goes: nobody waits for another's commit."""


def _failed_try(settlement: Settlement) -> FailedTry:
    claim = settlement.claim
    return FailedTry(settlement.error, None if claim.abandoned is not None else claim.claimed_at + settlement.elapsed)


class EventStatus(Beside):
    """Keeps events equal to their deliveries, and counts them."""

    def __init__(self, database: Database, tell: Callable[[Sequence[Change]], None]) -> None:
        self.order = InOrder(tell)
        e, d = t.events, t.deliveries
        self._ids = Batch(database.dialect, {"id": Text()})
        told = [e.c[name] for name in ("id", "user_id", "correlation_id", "created_at", *Standing._fields)]
        facts = [d.c[name] for name in ("id", "updated_at", *Delivery._fields)]
        together = select(*told, *facts).join_from(e, d, d.c.event_id == e.c.id, isouter=True)
        asked = together.where(self._ids.match("id", e.c.id)).order_by(e.c.id, d.c.id)
        self._lock = asked.with_for_update(of=e)
        self._lock_soon = database.dialect.impatient(self._lock)
        self._lock_free = asked.with_for_update(of=e, skip_locked=True)
        self._look = select(d.c.event_id, *facts).where(self._ids.match("id", d.c.event_id)).order_by(d.c.id)
        self._events_of = select(d.c.id, d.c.event_id).where(self._ids.match("id", d.c.id))
        written = ("id", *Standing._fields, "updated_at")
        self._standings = Batch(database.dialect, {name: e.c[name].type for name in written})
        rows = self._standings.rows.c
        self._write = (
            update(e).where(self._standings.match("id", e.c.id)).values({name: rows[name] for name in written[1:]})
        )
        self._amounts = Batch(
            database.dialect, {name: t.counts.c[name].type for name in ("user_id", "status", "amount")}
        )
        counted, shard = self._amounts.rows.c, bindparam("of_shard", type_=Integer)
        row = select(counted.user_id, counted.status, shard, counted.amount).where(counted.amount != 0)
        count = database.insert(t.counts).from_select(["user_id", "status", "shard", "amount"], row)
        self._count = count.on_conflict_do_update(
            index_elements=["user_id", "status", "shard"], set_={"amount": t.counts.c.amount + count.excluded.amount}
        )
        self._flows = Flows(database, t.events.name, self._count)

    # --- called by the ledger ---------------------------------------------------------------------------------------

    def claimed(self, connection: Connection, claims: Sequence[Claim]) -> None:
        # What was claimed cannot be left out of its own transaction: an event that a stranger has locked is.
        self._follow(connection, self._lock_free, {one.task.id: one.task.payload["event_id"] for one in claims})

    def settled(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        failed = {one.claim.task.id: _failed_try(one) for one in settlements if one.explanation is not None}
        changed = {one.claim.task.id: one.claim.task.payload["event_id"] for one in settlements}
        # An event that a stranger has locked does not hold up the deliveries of all others: they are settled one by one then.
        self._follow(connection, self._lock_soon, changed, failed=failed)

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
        acknowledged: str | None = None,
        now: datetime | None = None,
    ) -> None:
        """Write what deliveries come to into their events, in the transaction that changed them.

        `changed` are these deliveries with their events. `acknowledged` is an event that changes though it may have no deliveries.
        """
        self._follow(connection, self._lock, changed, acknowledged=acknowledged, now=now)

    def park(self, connection: Connection, event_ids: Iterable[str], now: datetime) -> None:
        """A gate keeps deliveries of these events back that were never tried: such an event is `queued`.

        One that somebody has locked is left out: who changes its deliveries brings it up to date.
        """
        # None of its deliveries was changed here, so all of them are read once more when the event is locked.
        self._follow(connection, self._lock_free, {id_: id_ for id_ in event_ids}, now=now, parked=True)

    def _follow(
        self,
        connection: Connection,
        lock: Select[Any],
        changed: Mapping[Any, str],
        *,
        failed: Mapping[Any, FailedTry] | None = None,
        acknowledged: str | None = None,
        now: datetime | None = None,
        parked: bool = False,
    ) -> None:
        """As `follow`, with the statement that locks the events; `failed` are the deliveries that have just failed."""
        event_ids = {*changed.values(), *([acknowledged] if acknowledged is not None else ())}
        if not event_ids:
            return
        changes: list[Change] = []
        rows = []
        for event, deliveries in self._locked(connection, lock, event_ids, changed):
            id_, user_id, correlation_id, created_at, *stands = event
            who = Who(id_, user_id, correlation_id)
            before = Standing(*stands)
            at = now or max(updated_at for _, updated_at, *_ in deliveries)
            failures = failures_of(who, deliveries, failed) if failed else []
            failure = Failure(failures[-1].at, failures[-1].error) if failures else None
            after = fold(before, [Delivery(*row[2:]) for row in deliveries], at, failure, parked=parked)
            if after != before:
                rows.append((id_, *after, at))
            changes += changes_of(who, before, after, deliveries, failures, created_at, at)
        if rows:
            connection.execute(self._write, self._standings.parameters(rows))
        self._changed(connection, changes)

    def _locked(
        self, connection: Connection, lock: Select[Any], event_ids: Collection[str], ours: Mapping[Any, str]
    ) -> list[tuple[Any, list[Any]]]:
        """Lock events; each of them with its deliveries."""
        events: dict[str, tuple[Any, list[Any]]] = {}
        others = set()
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
            [taken(Who(row["id"], row["user_id"], row["correlation_id"]), row["created_at"]) for row in events],
        )

    def deleted(self, connection: Connection, events: Iterable[tuple[str, str]]) -> None:
        """Events of these users in these statuses were deleted."""
        self._add_up(connection, Counter({key: -amount for key, amount in Counter(events).items()}))

    def _changed(self, connection: Connection, changes: Sequence[Change]) -> None:
        if not changes:
            return
        moved, flows = Counter[tuple[str, str]](), Counter[str]()
        for one in changes:
            if isinstance(one, StatusChanged):
                moved[one.user_id, one.new_status] += 1
                if one.old_status is not None:
                    moved[one.user_id, one.old_status] -= 1
                flows.update(flows_of(one))
        self._add_up(connection, moved, flows, changes[-1].at)
        after_commit(connection, partial(self.order.tell, changes))

    def _add_up(
        self,
        connection: Connection,
        amounts: Mapping[tuple[str, str], int],
        flows: Mapping[str, int] | None = None,
        at: datetime | None = None,
    ) -> None:
        """Count what users have in which status, and all of them together; with what has come and ended in this minute."""
        totals = Counter[str]()
        for (_, status), amount in amounts.items():
            totals[status] += amount
        rows = [(EVERYBODY, status, amount) for status, amount in totals.items() if amount]
        rows += [(user_id, status, amount) for (user_id, status), amount in amounts.items() if amount]
        if not rows and not flows:
            return
        rows = rows or [(EVERYBODY, "received", 0)]  # as many came as went
        shard = connection.info.setdefault("trigger_shard", random.randrange(SHARDS))
        counted = self._amounts.parameters(sorted(rows)) | {"of_shard": shard}
        if flows and at is not None:
            self._flows.add(connection, flows, at, f"shard {shard}", counted)
        else:
            connection.execute(self._count, counted)
