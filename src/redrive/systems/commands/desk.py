"""The troubleshooting queue: the commands that need a person, and what that person can do about them.

Every act is recorded with the operator's name, and changes a command only if it is still in the queue: of two operators who
press the same button, one is told that the other was quicker.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select

from redrive import State
from redrive.errors import UsageError
from redrive.events import Act, TasksChanged
from redrive.lane import Actor, Lane, Page
from redrive.operator.acts import Acted
from redrive.queues import SqlLedger
from redrive.systems.commands.errors import CommandNotFoundError, InvalidOperationError
from redrive.systems.commands.reader import LOOK_WITHIN, Reader
from redrive.systems.commands.tables import Tables
from redrive.systems.commands.values import (
    CommandRecord,
    CommandStatus,
    can_be_stored,
    check_domain,
    json_text,
)

BULK_MAX = 1000
COUNTED_MAX = 100_000
"""How many commands of the queue are counted by domain, at most."""
TROUBLED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


class Troubleshooting:
    """The troubleshooting queue of a bus."""

    def __init__(self, reader: Reader, tables: Tables, lane: Lane, ledger: SqlLedger) -> None:
        self._reader = reader
        self._c = tables.command.c
        self._lane = lane
        self._ledger = ledger

    # --- looking ----------------------------------------------------------------------------------------------------

    async def list(
        self,
        domain: str | None = None,
        *,
        type: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CommandRecord]:
        """A page of the commands in the queue, newest first."""
        return await self._reader.query_commands(domain, TROUBLED, type, limit=limit, cursor=cursor)

    async def get(self, domain: str, command_id: str | UUID) -> CommandRecord:
        """One of them, with its data; `InvalidOperationError` if it is not in the queue."""
        found = await self._reader.get_command(domain, command_id)
        if found is None:
            raise CommandNotFoundError(domain, str(command_id))
        if found.status is not TROUBLED:
            raise InvalidOperationError(_refusal(str(command_id), found.status))
        return found

    async def count(self, domain: str | None = None) -> int:
        """How many commands are in the queue."""
        await self._lane.ledger()  # opens the application
        return await self._ledger.database.read(self._count, domain)

    def _count(self, connection: Connection, domain: str | None) -> int:
        asked = select(func.count()).where(self._c.troubled_at.is_not(None))
        return int(connection.execute(asked if domain is None else asked.where(self._c.domain == domain)).scalar_one())

    async def count_by_domain(self) -> Mapping[str, int]:
        """How many commands of each domain are in the queue, among the latest 100,000; the largest number first."""
        await self._lane.ledger()
        return await self._ledger.database.look(LOOK_WITHIN, self._count_by_domain)

    def _count_by_domain(self, connection: Connection) -> dict[str, int]:
        c = self._c
        latest = select(c.domain).where(c.troubled_at.is_not(None)).order_by(c.id.desc()).limit(COUNTED_MAX).subquery()
        counted = select(latest.c.domain, func.count()).group_by(latest.c.domain)
        rows = connection.execute(counted.order_by(func.count().desc(), latest.c.domain))
        return {row[0]: row[1] for row in rows}

    # --- acting -----------------------------------------------------------------------------------------------------

    async def retry(self, domain: str, command_id: str | UUID, operator: str, *, reason: str = "") -> None:
        """Send it again: a new message, a fresh budget, due now."""
        _single(domain, command_id, await self.retry_many(domain, [command_id], operator, reason=reason))

    async def cancel(self, domain: str, command_id: str | UUID, operator: str, *, reason: str) -> None:
        """End it as `CANCELED`, and reply that."""
        _single(domain, command_id, await self.cancel_many(domain, [command_id], operator, reason=reason))

    async def complete(
        self, domain: str, command_id: str | UUID, operator: str, *, result: Any = None, reason: str = ""
    ) -> None:
        """End it as `COMPLETED`, because somebody did it by hand, and reply `SUCCESS` with the result."""
        done = await self.complete_many(domain, [command_id], operator, result=result, reason=reason)
        _single(domain, command_id, done)

    async def retry_many(
        self, domain: str, command_ids: Iterable[str | UUID], operator: str, *, reason: str = ""
    ) -> Acted:
        """Send many again, each on its own."""
        return await self._act(Act.REDRIVE, State.WAITING, domain, command_ids, operator, reason)

    async def cancel_many(self, domain: str, command_ids: Iterable[str | UUID], operator: str, *, reason: str) -> Acted:
        """End many as `CANCELED`, each on its own."""
        if not reason.strip():
            raise UsageError("give a reason: the sender is told why its command was cancelled")
        return await self._act(Act.RESOLVE, State.CANCELLED, domain, command_ids, operator, reason)

    async def complete_many(
        self,
        domain: str,
        command_ids: Iterable[str | UUID],
        operator: str,
        *,
        result: Any = None,
        reason: str = "",
    ) -> Acted:
        """End many as `COMPLETED` with the same result, each on its own."""
        json_text(result)
        return await self._act(Act.RESOLVE, State.DONE, domain, command_ids, operator, reason, result)

    async def _act(
        self,
        act: Act,
        state: State,
        domain: str,
        command_ids: Iterable[str | UUID],
        operator: str,
        reason: str,
        note: Any = None,
    ) -> Acted:
        check_domain(domain)
        if not isinstance(operator, str) or not operator.strip():
            raise UsageError("give the operator's name: it is recorded")
        asked = list(dict.fromkeys(str(one) for one in command_ids))
        if len(asked) > BULK_MAX:
            raise UsageError(f"at most {BULK_MAX:,} commands at once, not {len(asked):,}: split them up")
        await self._lane.ledger()
        before = await self._standing(domain, asked)
        ids = [id_ for id_, status in before.values() if status == TROUBLED]
        actor = Actor(name=operator, reason=reason)
        if act is Act.REDRIVE:
            changed = set(await self._ledger.redrive(ids, actor))
        else:
            changed = set(await self._ledger.resolve(ids, state, actor, note=note))
        if changed:
            self._lane.tell([TasksChanged(self._lane.name, act, tuple(sorted(changed, key=str)), operator, reason)])
            await self._lane.count_soon()
        left = [one for one in asked if one not in before or before[one][0] not in changed]
        after = await self._standing(domain, left)
        return Acted(
            changed=[one for one in asked if one in before and before[one][0] in changed],
            refused={one: _why_not(one, act, before.get(one), after.get(one)) for one in left},
            matched=len(ids),
        )

    async def _standing(self, domain: str, command_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """By id, the rows of these commands and their status."""
        c, known = self._c, [one for one in command_ids if can_be_stored(domain, one)]
        asked = select(c.command_id, c.id, c.status).where(c.domain == domain, c.command_id.in_(known))
        rows = await self._ledger.database.read(lambda connection: connection.execute(asked).all())
        return {command_id: (id_, status) for command_id, id_, status in rows}


def _single(domain: str, command_id: str | UUID, acted: Acted) -> None:
    """Raise what was refused to the one command."""
    name = str(command_id)
    if name in acted.refused:
        if acted.refused[name] == _MISSING:
            raise CommandNotFoundError(domain, name)
        raise InvalidOperationError(acted.refused[name])


_MISSING = "there is no such command"


def _why_not(name: str, act: Act, before: tuple[int, str] | None, after: tuple[int, str] | None) -> str:
    if after is None:
        return _MISSING
    if after[1] != TROUBLED:
        return _refusal(name, after[1])
    if act is Act.REDRIVE and before == after:
        return (
            f"command {name!r} cannot be sent again: its message is no longer in PGMQ's archive; "
            "complete or cancel it, and send what it asked for as a new command"
        )
    return f"command {name!r} has only just come into the troubleshooting queue; nothing was changed: look at it, then try again"


def _refusal(name: str, status: str) -> str:
    return f"command {name!r} is {status}, not in the troubleshooting queue; nothing was changed"
