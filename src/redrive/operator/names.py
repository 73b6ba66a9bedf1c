"""Which tasks somebody means: each by its id or by its key.

A number or a UUID is an id. A text may be either, and is never guessed at: where it is the id of one task and the key of
another, none of them is meant. Code that holds ids of its own says `Filter(ids=...)`, which asks for no keys.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select

from redrive.core.task import Task, TaskId
from redrive.errors import UsageError
from redrive.ledgers.sql.ledger import SqlLedger

CHUNK = 500

Names = TaskId | Iterable[TaskId]
"""One task or several, each by id or by key."""


async def read_names(ledger: SqlLedger, names: Names) -> tuple[list[TaskId], dict[TaskId, str]]:
    """The ids that are meant, each once; and for each name that means no task, or two, why it is refused.

    What could be an id is taken for one, even where no task has it: whoever acts on it hears that there is no such task.
    """
    given = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    meant = await find_meant(ledger, (name for name in given if isinstance(name, str)))
    found, refused = dict[TaskId, None](), dict[TaskId, str]()
    for name in dict.fromkeys(given):
        try:
            found[_only(ledger, name, meant.get(name, set()) if isinstance(name, str) else set())] = None
        except UsageError as error:
            refused[name] = str(error)
    return list(found), refused


async def find_meant(ledger: SqlLedger, names: Iterable[str]) -> dict[str, set[TaskId]]:
    """The tasks that have each name as their id or as their key: none, one or two."""
    texts = list(dict.fromkeys(names))
    meant = dict[str, set[TaskId]]()
    for start in range(0, len(texts), CHUNK):
        meant |= await ledger.database.read(_meant, ledger, texts[start : start + CHUNK])
    return meant


async def find_named(ledger: SqlLedger, name: str) -> Task | None:
    """The task with this id or key; `UsageError` where these are two tasks."""
    meant = (await find_meant(ledger, [name]))[name]
    return await ledger.get(_only(ledger, name, meant)) if meant else None


def _only(ledger: SqlLedger, name: TaskId, meant: set[TaskId]) -> TaskId:
    if len(meant) == 1:
        return next(iter(meant))
    if meant:
        raise UsageError(f"{name!r:.80} is the id of one task and the key of another: name them by the other of both")
    try:
        return ledger.read_id(str(name))
    except UsageError:
        raise UsageError(f"there is no task with the id or key {str(name)!r:.80}") from None


def _meant(connection: Connection, ledger: SqlLedger, names: Sequence[str]) -> dict[str, set[TaskId]]:
    by_id, by_key = _by_id(connection, ledger, names), _by_key(connection, ledger, names)
    return {name: {*by_id.get(name, ()), *by_key.get(name, ())} for name in names}


def _by_id(connection: Connection, ledger: SqlLedger, names: Sequence[str]) -> dict[str, list[TaskId]]:
    read = dict[TaskId, list[str]]()
    for name in names:
        try:
            read.setdefault(ledger.read_id(name), []).append(name)
        except UsageError:
            continue  # no id of this table could look so
    id_ = ledger.predicates.column("id")
    found = connection.execute(select(id_).where(id_.in_(list(read)))).scalars()
    return {name: [one] for one in found for name in read[one]}


def _by_key(connection: Connection, ledger: SqlLedger, names: Sequence[str]) -> dict[str, list[TaskId]]:
    read = dict[object, list[str]]()
    for name in names:
        if (value := ledger.conditions.key_value(name)) is not None:
            read.setdefault(value, []).append(name)
    key, id_ = ledger.predicates.column("key"), ledger.predicates.column("id")
    found = dict[str, list[TaskId]]()
    for value, one in connection.execute(select(key, id_).where(key.in_(list(read)))):
        for name in read[value]:
            found.setdefault(name, []).append(one)
    return found
