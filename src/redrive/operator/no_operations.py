"""A store without operations: there are none to be seen, and whoever wants one hears why not."""

from typing import Any, NoReturn

from redrive.errors import UsageError
from redrive.operator.operations import NO_OPERATIONS, EditedTask, Operation
from redrive.ports import Page


class NoOperations:
    """See `Operations`."""

    note: str | None = NO_OPERATIONS

    async def get(self, id: str) -> Operation | None:  # noqa: ARG002
        """See `Operations.get`."""
        return None

    async def page(self, **_: Any) -> Page[Operation]:
        """See `Operations.page`."""
        return Page(items=[])

    async def open(self) -> list[Operation]:
        """See `Operations.open`."""
        return []

    async def edits(self, **_: Any) -> list[EditedTask]:
        """See `Operations.edits`."""
        return []

    async def let_go(self, holder: str) -> None:
        """See `Operations.let_go`."""

    async def forget(self) -> int:
        """See `Operations.forget`."""
        return 0

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(NO_OPERATIONS)

    start = act = change = gather = advance = steps = moved_since = failed_again = tasks = skipped = dead_set = _refuse
