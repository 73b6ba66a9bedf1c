"""Storing what arrives, many messages in one transaction, so that they can be acknowledged together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Interval, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from redrive import Policy
from redrive.extend import Actor, Database, Return
from redrive.lane import Lane
from redrive.systems.relay.message import HINT_MAX, Arrival
from redrive.systems.relay.tables import RETRY_QUEUE, retry_queue

RELAY = Actor(name="relay", reason="it failed again and came back")
_WORDS = RETRY_QUEUE.words
_CONTENT = ("original_payload", "original_queue", "error_reason", "max_retries", "headers", "content_type")


@dataclass(slots=True)
class Stored:
    """What became of a batch: each message is in exactly one of the lists."""

    new: list[tuple[Any, Arrival, timedelta]] = field(default_factory=list)
    """Stored for the first time, with the id of its row and its wait."""
    returned: list[tuple[Any, Arrival, timedelta]] = field(default_factory=list)
    """Its row had ended and waits again."""
    known: list[Arrival] = field(default_factory=list)
    """Its row waits already: nothing has changed."""
    held: list[Arrival] = field(default_factory=list)
    """Its row is being published right now. It must not be acknowledged: what is published may be what has just failed, and
    the settlement still to come would end the row. It is stored when the claim has ended."""

    @property
    def delays(self) -> list[timedelta]:
        """How long each of the messages that wait now has to wait."""
        return [delay for _, _, delay in (*self.new, *self.returned)]


class Store:
    """The table of the relay, from the side of what arrives."""

    def __init__(self, database: Database, lane: Lane, policy: Policy) -> None:
        self._database = database
        self._lane = lane
        self._policy = policy
        make = sqlite_insert if database.dialect.name == "sqlite" else postgres_insert
        self._insert = (
            make(retry_queue)
            .values(**self._times())
            .on_conflict_do_nothing(index_elements=[retry_queue.c.message_id])
            .returning(retry_queue.c.id, retry_queue.c.message_id)
        )
        ids: Any = bindparam("message_ids", expanding=True)
        c = retry_queue.c
        self._find = select(c.id, c.message_id, c.status, c.lease_until, c.retry_count).where(c.message_id.in_(ids))
        self._refresh = (
            update(retry_queue)
            .where(c.id == bindparam("returned_id"))
            .values({name: bindparam(f"new_{name}", type_=c[name].type) for name in _CONTENT} | {"last_error": None})
        )

    def _times(self) -> dict[str, Any]:
        if not self._database.server_clock:
            return {}
        now = func.statement_timestamp()
        return {
            "next_retry_at": now + bindparam("delay", type_=Interval),
            "created_at": now,
            "updated_at": now,
        }

    async def store(self, arrivals: Sequence[Arrival]) -> Stored:
        """Store a batch in one transaction; when this returns it is durable. Of two with one id the first counts."""
        ledger = await self._lane.ledger()
        first: dict[str, Arrival] = {}
        for arrival in arrivals:
            first.setdefault(arrival.message_id, arrival)
        # In the order of their ids: two relays that store the same messages then never wait in a circle.
        distinct = [first[message_id] for message_id in sorted(first)]
        stored = await self._database.write(self._store, distinct, ledger)
        held = {arrival.message_id for arrival in stored.held}
        for arrival in arrivals:
            if first[arrival.message_id] is not arrival:
                (stored.held if arrival.message_id in held else stored.known).append(arrival)
        return stored

    def _store(self, connection: Connection, arrivals: Sequence[Arrival], ledger: Any) -> Stored:
        stored = Stored()
        if not arrivals:
            return stored
        delays = {one.message_id: self.delay(one, one.retry_count) for one in arrivals}
        rows = [self._row(one, delays[one.message_id]) for one in arrivals]
        new = {message_id: id_ for id_, message_id in connection.execute(self._insert, rows)}
        stored.new = [(new[one.message_id], one, delays[one.message_id]) for one in arrivals if one.message_id in new]
        rest = [one for one in arrivals if one.message_id not in new]
        if rest:
            self._store_again(connection, rest, ledger, stored)
        return stored

    def _store_again(self, connection: Connection, arrivals: list[Arrival], ledger: Any, stored: Stored) -> None:
        """Messages whose row is there already."""
        asked = {"message_ids": [one.message_id for one in arrivals]}
        found = {row.message_id: row for row in connection.execute(self._find, asked)}
        back: list[tuple[Any, Arrival, timedelta]] = []
        returns: list[Return] = []
        for one in arrivals:
            row = found.get(one.message_id)
            if row is None or row.lease_until is not None:  # held by a worker, or deleted a moment ago
                stored.held.append(one)
            elif row.status == _WORDS.waiting:
                stored.known.append(one)
            else:
                delay = self.delay(one, max(one.retry_count, row.retry_count))
                back.append((row.id, one, delay))
                returns.append(Return(id=row.id, failures=one.retry_count, delay=delay))
        changed = set(ledger.return_sync(returns, RELAY, within=connection))
        stored.returned = [each for each in back if each[0] in changed]
        stored.held += [one for id_, one, _ in back if id_ not in changed]  # another relay was quicker
        if stored.returned:
            # What has come back is what failed last: dropping it for what was stored before would lose it.
            refreshed = [
                {"returned_id": id_} | {f"new_{name}": value for name, value in self._content(one).items()}
                for id_, one, _ in stored.returned
            ]
            connection.execute(self._refresh, refreshed)

    def delay(self, arrival: Arrival, count: int) -> timedelta:
        """How long a message waits that was published so often: not at all if its retries are spent."""
        if count >= arrival.max_retries:
            return timedelta(0)
        delay = self._policy.delay(count + 1, arrival.message_id)
        if arrival.not_before is None:
            return delay
        return max(delay, min(arrival.not_before - self._database.now(), HINT_MAX))

    def _row(self, arrival: Arrival, delay: timedelta) -> dict[str, Any]:
        row = {"message_id": arrival.message_id, "retry_count": arrival.retry_count} | self._content(arrival)
        if self._database.server_clock:
            return row | {"delay": delay}
        now = self._database.now()
        return row | {"next_retry_at": now + delay, "created_at": now, "updated_at": now}

    @staticmethod
    def _content(arrival: Arrival) -> dict[str, Any]:
        return {
            "original_payload": arrival.payload,
            "original_queue": arrival.queue,
            "error_reason": arrival.error_reason,
            "max_retries": arrival.max_retries,
            "headers": arrival.headers,
            "content_type": arrival.content_type,
        }
