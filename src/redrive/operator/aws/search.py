"""Text search through the deliveries that are on a list: those that wait, are held, or are dead. Nothing here scans."""

from dataclasses import replace
from typing import Any

from redrive.core.task import TaskId
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.operator.found import Chunk, holds_text
from redrive.ports import Filter

CHUNK_TASKS = 500


class ItemSearch:
    """Goes through one list for what a filter asks; see `Search`. `shown` makes of a payload what people may see."""

    def __init__(self, ledger: DynamoLedger, asked: Filter, shown: Any) -> None:
        self._ledger = ledger
        self._listed = replace(asked, text=None)
        self._text = (asked.text or "").lower()
        self._shown = shown
        ledger.check(self._listed)

    async def chunk(self, after: TaskId | None) -> Chunk:
        """See `Search.chunk`."""
        page = await self._ledger.find(self._listed, cursor=after, limit=CHUNK_TASKS)
        tasks = [task for task in page.items if holds_text(task, self._text, self._shown)]
        return Chunk(tasks=tasks, looked_at=len(page.items), last=page.cursor)
