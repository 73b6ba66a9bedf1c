"""Text search: everything is read, and nothing hidden is found."""

from collections.abc import AsyncIterator

import pytest

from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.operator.sql.search import SqlSearch
from redrive.ports import Filter
from tests.ledgers.homes import Home


async def found(search: SqlSearch) -> AsyncIterator[TaskId]:
    after = None
    while True:
        chunk = await search.chunk(after)
        for task in chunk.tasks:
            yield task.id
        after = chunk.last
        if after is None:
            return


@pytest.mark.homes(lambda table: table.payload is not None)
async def test_search_reads_everything_and_shows_nothing_hidden(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is found in payloads whatever its case, over many chunks; what people may not see is not found."""
    monkeypatch.setattr("redrive.operator.sql.search.CHUNK_ROWS", 2)
    await home.put(4)
    [german] = [one.id for one in await home.ledger.add([home.new(payload={"to": "Grüße an ANNA", "pin": "4711"})])]
    hide = lambda payload: {name: "…" if name == "pin" else value for name, value in payload.items()}  # noqa: E731
    for text, expected in (("grüße", [german]), ("anna", [german]), ("4711", []), ("100%", [])):
        search = SqlSearch(home.ledger, Filter(text=text), hide)
        assert [id_ async for id_ in found(search)] == expected, text
    if home.table.last_error is not None:
        await home.change(german, last_error="login failed: password=hunter2")
        for text, expected in (("login failed", [german]), ("hunter2", [])):
            assert [id_ async for id_ in found(SqlSearch(home.ledger, Filter(text=text), hide))] == expected, text
    by_state = SqlSearch(home.ledger, Filter(state=State.WAITING), hide)
    assert len([id_ async for id_ in found(by_state)]) == 5
