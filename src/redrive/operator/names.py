"""Which tasks somebody means: each by its id or by its key.

A number or a UUID is an id. A text may be either, and is never guessed at: where it is the id of one task and the key of
another, none of them is meant. Code that holds ids of its own says `Filter(ids=...)`, which asks for no keys.
"""

from collections.abc import Iterable
from uuid import UUID

from redrive.core.task import Task, TaskId
from redrive.errors import UsageError
from redrive.operator.ports import OperatorLedger

CHUNK = 500

Names = TaskId | Iterable[TaskId]
"""One task or several, each by id or by key."""


async def read_names(ledger: OperatorLedger, names: Names) -> tuple[list[TaskId], dict[TaskId, str]]:
    """The ids that are meant, each once; and for each name that means no task, or two, why it is refused.

    What could be an id is taken for one, even where no task has it: whoever acts on it hears that there is no such task.
    """
    given = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    for name in (
        [names] if isinstance(names, bytes | Task) else given
    ):  # what is in them would be taken for ids and keys
        if isinstance(name, Task):
            raise UsageError(f"a task is named by its id or its key, not by itself: say {name.id!r} or {name.key!r}")
        if isinstance(name, bool) or not isinstance(name, int | str | UUID):
            raise UsageError(f"a task is named by its id or its key, not by {name!r:.80}")
    meant = await find_meant(ledger, (name for name in given if isinstance(name, str)))
    found, refused = dict[TaskId, None](), dict[TaskId, str]()
    for name in dict.fromkeys(given):
        try:
            found[_only(ledger, name, meant.get(name, set()) if isinstance(name, str) else set())] = None
        except UsageError as error:
            refused[name] = str(error)
    return list(found), refused


async def find_meant(ledger: OperatorLedger, names: Iterable[str]) -> dict[str, set[TaskId]]:
    """The tasks that have each name as their id or as their key: none, one or two."""
    texts = list(dict.fromkeys(names))
    meant = dict[str, set[TaskId]]()
    for start in range(0, len(texts), CHUNK):
        meant |= await ledger.named(texts[start : start + CHUNK])
    return meant


async def find_named(ledger: OperatorLedger, name: str) -> Task | None:
    """The task with this id or key; `UsageError` where these are two tasks."""
    meant = (await find_meant(ledger, [name]))[name]
    return await ledger.get(_only(ledger, name, meant)) if meant else None


def _only(ledger: OperatorLedger, name: TaskId, meant: set[TaskId]) -> TaskId:
    if len(meant) == 1:
        return next(iter(meant))
    if meant:
        raise UsageError(f"{name!r:.80} is the id of one task and the key of another: name each by its other one")
    try:
        return ledger.read_id(str(name))
    except UsageError:
        raise UsageError(f"there is no task with the id or key {str(name)!r:.80}") from None
