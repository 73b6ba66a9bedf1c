"""The troubleshooting queue: what a person must look at, and what that person may do.

Every act is recorded with the operator's name, and is done only where the command still waits there: of two operators who
press the same button one is told that the other was quicker.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from redrive import State
from redrive.errors import UsageError
from redrive.events import TasksChanged
from redrive.extend import Act, Actor, SqlLedger
from redrive.lane import Lane
from redrive.systems.commands.errors import CommandNotFoundError, InvalidOperationError
from redrive.systems.commands.values import Bulk, CommandPage, CommandRecord, CommandStatus, check_domain, json_text

BULK_MAX = 1000
TROUBLED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


class Looks(Protocol):
    """How the bus looks commands up."""

    async def get_command(self, domain: str, command_id: str | UUID) -> CommandRecord | None:
        """One command with its data."""
        ...

    async def query_commands(
        self,
        domain: str | None = None,
        status: CommandStatus | None = None,
        type: str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> CommandPage:
        """A page of commands."""
        ...

    async def ids_of(self, domain: str, command_ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """The rows of commands and where they stand."""
        ...

    async def count_troubled(self, domain: str | None) -> int:
        """How many wait for a person."""
        ...

    async def count_troubled_by_domain(self) -> Mapping[str, int]:
        """How many of each domain do."""
        ...


class Troubleshooting:
    """The troubleshooting queue of a bus."""

    def __init__(self, looks: Looks, lane: Lane, ledger: SqlLedger) -> None:
        self._looks = looks
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
    ) -> CommandPage:
        """A page of the commands that wait for a person, newest first."""
        return await self._looks.query_commands(domain, TROUBLED, type, limit=limit, cursor=cursor)

    async def count(self, domain: str | None = None) -> int:
        """How many commands wait for a person."""
        return await self._looks.count_troubled(domain)

    async def count_by_domain(self) -> Mapping[str, int]:
        """How many commands of each domain wait for a person, among the latest 100,000 that do; the most first."""
        return await self._looks.count_troubled_by_domain()

    async def get(self, domain: str, command_id: str | UUID) -> CommandRecord:
        """One of them, with its data; `InvalidOperationError` if it does not wait for a person."""
        found = await self._looks.get_command(domain, command_id)
        if found is None:
            raise CommandNotFoundError(domain, str(command_id))
        if found.status is not TROUBLED:
            raise InvalidOperationError(_refusal(str(command_id), found.status))
        return found

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
        """End it as `COMPLETED`, because somebody has done it by hand, and reply `SUCCESS` with the result."""
        done = await self.complete_many(domain, [command_id], operator, result=result, reason=reason)
        _single(domain, command_id, done)

    async def retry_many(
        self, domain: str, command_ids: Iterable[str | UUID], operator: str, *, reason: str = ""
    ) -> Bulk:
        """Send many again; each for itself."""
        return await self._act(Act.REDRIVE, State.WAITING, domain, command_ids, operator, reason)

    async def cancel_many(self, domain: str, command_ids: Iterable[str | UUID], operator: str, *, reason: str) -> Bulk:
        """End many as `CANCELED`; each for itself."""
        if not reason.strip():
            raise UsageError("a command is cancelled for a reason, which its sender is told: give one")
        return await self._act(Act.RESOLVE, State.CANCELLED, domain, command_ids, operator, reason)

    async def complete_many(
        self,
        domain: str,
        command_ids: Iterable[str | UUID],
        operator: str,
        *,
        result: Any = None,
        reason: str = "",
    ) -> Bulk:
        """End many as `COMPLETED` with the same result; each for itself."""
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
    ) -> Bulk:
        check_domain(domain)
        if not isinstance(operator, str) or not operator.strip():
            raise UsageError("who does it is recorded: give the operator's name")
        asked = list(dict.fromkeys(str(one) for one in command_ids))
        if len(asked) > BULK_MAX:
            raise UsageError(f"at most {BULK_MAX:,} commands at once, not {len(asked):,}: take them in parts")
        await self._lane.ledger()  # opens the application
        before = await self._looks.ids_of(domain, asked)
        ids = [id_ for id_, status in before.values() if status == TROUBLED]
        actor = Actor(name=operator, reason=reason)
        if act is Act.REDRIVE:
            changed = set(await self._ledger.redrive(ids, actor))
        else:
            changed = set(await self._ledger.resolve(ids, state, actor, note=note))
        if changed:
            self._lane.tell([TasksChanged(self._lane.name, act, tuple(sorted(changed, key=str)), operator, reason)])
            await self._lane.count_soon()
        done = [one for one in asked if one in before and before[one][0] in changed]
        after = await self._looks.ids_of(domain, [one for one in asked if one not in done])
        refused = {one: _why_not(one, act, before.get(one), after.get(one)) for one in asked if one not in done}
        return Bulk(changed=done, refused=refused)


def _single(domain: str, command_id: str | UUID, bulk: Bulk) -> None:
    """What happened to the one that was asked for."""
    name = str(command_id)
    if name in bulk.refused:
        if bulk.refused[name] == _MISSING:
            raise CommandNotFoundError(domain, name)
        raise InvalidOperationError(bulk.refused[name])


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
    return (
        f"command {name!r} has just come into the troubleshooting queue; nothing was changed: look at it and ask again"
    )


def _refusal(name: str, status: str) -> str:
    return f"command {name!r} is {status}, not in the troubleshooting queue; nothing was changed"
