"""What people see of webhooks and do to them, without reading payloads that may be large: one webhook alone shows its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, func, literal_column, or_, select

from redrive import Filter, State
from redrive.events import Act, TasksChanged
from redrive.extend import Database, OnDatabase, looks, reads
from redrive.lane import Acted, Actor, Lane, Page
from redrive.queues import Return
from redrive.systems.webhooks.handled import HandledTypes
from redrive.systems.webhooks.tables import WORDS, events

LOOK_WITHIN = timedelta(seconds=5)
ACT_WITHIN = timedelta(seconds=8)
"""An act on all of a type stops after this between two pages, and says that it is not complete."""
BACK_AT_ONCE = 500
_c = events.c
_SHOWN = tuple(column for column in events.c if column.name not in ("payload", "lease_until", "claim_id"))
_IS_CANCELLED = _c.status == literal_column(f"'{WORDS.cancelled}'")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhandledType:
    """A type that no worker handles: how many webhooks of it wait, and since when."""

    event_type: str
    waiting: int
    oldest: datetime | None


class WebhookDesk(OnDatabase):
    """The webhooks of one inbox, for people."""

    def __init__(self, database: Database, lane: Lane, handled: HandledTypes) -> None:
        super().__init__(database, open=lane.ledger)
        self._lane = lane
        self._handled = handled

    # --- looking ----------------------------------------------------------------------------------------------------

    @reads
    def get(self, connection: Connection, *, id: str | None = None, key: str | None = None) -> Row[Any] | None:
        """One webhook, by its id or by its key."""
        which = _c.id == id if key is None else _c.idempotency_key == key
        return connection.execute(select(*_SHOWN).where(which)).first()

    @reads
    def page(
        self,
        connection: Connection,
        *,
        status: str | None = None,
        event_type: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Row[Any]]:
        """Webhooks in the order of arrival."""
        found = select(*_SHOWN).order_by(_c.id).limit(limit + 1)
        if status is not None:
            assert status in WORDS.all(), "one of the table's own words"
            # As a literal: bound, it hides the partial indexes.
            found = found.where(_c.status == literal_column(f"'{status}'"))
        if event_type is not None:
            found = found.where(_c.event_type == event_type)
        if after is not None:
            found = found.where(_c.id > after)
        rows = list(connection.execute(found).all())
        return Page(items=rows[:limit], cursor=rows[limit - 1].id if len(rows) > limit else None)

    @looks(LOOK_WITHIN)
    def unhandled(self, connection: Connection) -> list[UnhandledType]:
        """The types that wait for a handler, the largest first."""
        is_pending = _c.status == literal_column(f"'{WORDS.waiting}'")
        grouped = select(_c.event_type, func.count(), func.min(_c.created_at, type_=_c.created_at.type))
        waiting = connection.execute(grouped.where(is_pending).group_by(_c.event_type)).all()
        handled = self._handled.among(connection, (event_type for event_type, _, _ in waiting))
        found = [
            UnhandledType(event_type=event_type, waiting=amount, oldest=oldest)
            for event_type, amount, oldest in waiting
            if event_type not in handled
        ]
        return sorted(found, key=lambda one: (-one.waiting, one.event_type))

    # --- acting -----------------------------------------------------------------------------------------------------

    async def cancel(self, which: Sequence[str] | Filter, actor: Actor) -> Acted:
        """End webhooks that wait; by ids or keys, or all that match."""
        return await self._act(Act.CANCEL, State.CANCELLED, which, actor)

    async def redrive(self, which: Sequence[str] | Filter, actor: Actor) -> Acted:
        """Have webhooks processed again that failed, with all their tries, or that were cancelled, with those that were left."""
        back = await self._bring_back(which, actor)
        names = which if isinstance(which, Filter) else [name for name in which if name not in back]
        acted = await self._act(Act.REDRIVE, State.WAITING, names, actor) if names else Acted()
        ids = list(dict.fromkeys(back.values()))
        return Acted(
            changed=[*ids, *acted.changed], refused=acted.refused, matched=len(ids) + acted.matched,
            complete=acted.complete,
        )  # fmt: skip

    async def _act(self, act: Act, end: State, which: Sequence[str] | Filter, actor: Actor) -> Acted:
        acted = await (await self._lane.acts()).act(act, end, which, actor, within=ACT_WITHIN)
        if acted.changed:
            await self._lane.count_soon()
        return acted

    async def _bring_back(self, which: Sequence[str] | Filter, actor: Actor) -> dict[str, str]:
        """Bring back those that were cancelled: the names that they were asked for by, and their ids."""
        ledger = await self._lane.ledger()
        brought: dict[str, str] = {}
        while named := await self._cancelled(which):
            returns = [Return(id=id_, failures=0, delay=timedelta(0)) for id_ in dict.fromkeys(named.values())]
            changed = set(await ledger.return_(returns, actor))
            if not changed:  # somebody else was quicker
                break
            self._lane.tell([TasksChanged(self._lane.name, Act.RETURN, tuple(changed), actor.name, actor.reason)])
            brought |= {name: id_ for name, id_ in named.items() if id_ in changed}
        if brought:
            await self._lane.count_soon()
        return brought

    @reads
    def _cancelled(self, connection: Connection, which: Sequence[str] | Filter) -> dict[str, str]:
        found = select(_c.id, _c.idempotency_key).where(_IS_CANCELLED).limit(BACK_AT_ONCE)
        if isinstance(which, Filter):
            rows = connection.execute(found.where(_c.event_type == which.kind)).all()
            return {row.id: row.id for row in rows}
        rows = connection.execute(found.where(or_(_c.id.in_(which), _c.idempotency_key.in_(which)))).all()
        asked = set(which)
        return {name: row.id for row in rows for name in (row.id, row.idempotency_key) if name in asked}
