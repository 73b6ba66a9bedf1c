"""One list over many ledgers."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from redrive.core.states import State
from redrive.core.task import Task
from redrive.errors import UsageError
from redrive.operator.merged_pages import merged_page
from redrive.ports import Filter, Page

NOW = datetime(2026, 3, 15, 21, 0, tzinfo=UTC)
DEAD = Filter(state=State.DEAD)


class Listed:
    """A ledger of dead tasks that died so many minutes ago, the newest first."""

    def __init__(self, *minutes_ago: int, refuses: str | None = None) -> None:
        self.tasks = [
            Task(f"{ago}", f"{ago}", "mail", None, State.DEAD, 1, ended_at=NOW - timedelta(minutes=ago))
            for ago in sorted(minutes_ago)
        ]
        self.refuses = refuses

    async def page(
        self, asked: Filter, *, cursor: object = None, limit: int = 50, newest_first: bool = False
    ) -> Page[Task]:
        if self.refuses:
            raise UsageError(self.refuses)
        tasks: Sequence[Task] = self.tasks if newest_first else self.tasks[::-1]
        start = 0 if cursor is None else [task.id for task in tasks].index(str(cursor)) + 1
        some = list(tasks[start : start + limit])
        return Page(items=some, cursor=some[-1].id if some and start + limit < len(tasks) else None)


async def walk(ledgers: dict[str, Listed], limit: int, *, newest_first: bool) -> list[tuple[str, str]]:
    seen, cursor = list[tuple[str, str]](), None
    for _ in range(100):
        page = await merged_page(ledgers, DEAD, cursor=cursor, limit=limit, newest_first=newest_first)  # type: ignore[arg-type]
        assert len(page.items) <= limit
        seen += [(one.ledger, str(one.task.id)) for one in page.items]
        cursor = page.cursor
        if cursor is None:
            return seen
    raise AssertionError("it never ends")


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
@pytest.mark.parametrize("newest_first", [True, False])
async def test_every_task_is_there_once_in_order(limit: int, newest_first: bool) -> None:
    """Page by page all ledgers make one list in the order of the instant that matters, none left out and none twice."""
    ledgers = {"own": Listed(1, 4, 5, 9), "events": Listed(2, 3, 8), "empty": Listed()}
    seen = await walk(ledgers, limit, newest_first=newest_first)
    order = [int(id_) for _, id_ in seen]
    assert order == sorted([1, 2, 3, 4, 5, 8, 9], reverse=not newest_first)
    assert [name for name, id_ in seen if id_ in "238"] == ["events"] * 3


async def test_a_ledger_that_cannot_answer_shows_nothing() -> None:
    """A table without kinds has no tasks of a kind; where no ledger can answer, the reason is said."""
    ledgers = {"own": Listed(1), "flags": Listed(refuses="this table has no kinds")}
    page = await merged_page(ledgers, DEAD)  # type: ignore[arg-type]
    assert [one.ledger for one in page.items] == ["own"]
    with pytest.raises(UsageError, match="no kinds"):
        await merged_page({"flags": ledgers["flags"]}, DEAD)  # type: ignore[dict-item]


@pytest.mark.parametrize("cursor", ["x", "W10", "eyJhIjogMX0", "\x00", "e30"])
async def test_a_strange_cursor_is_refused(cursor: str) -> None:
    """Whatever is handed back is one of ours, or it is said that it is not."""
    with pytest.raises(UsageError, match="begin again"):
        await merged_page({"own": Listed(1)}, DEAD, cursor=cursor)  # type: ignore[dict-item]
