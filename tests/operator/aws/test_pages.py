"""Pages over items: with what the indexes serve, and a sentence for what they do not."""

import pytest

from redrive.core.cause import cause_of
from redrive.core.durations import minutes
from redrive.core.outcome import Failed
from redrive.core.states import State
from redrive.errors import PermanentError, UsageError
from redrive.operator.aws.pages import ItemTaskPages
from redrive.operator.aws.search import ItemSearch
from redrive.operator.names import find_named, read_names
from redrive.ports import Filter
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.homes import LEASE, TRANSIENT, settlement

STORES = ("aws",)


async def test_those_of_a_cause_come_in_the_order_in_which_they_died(
    home: ItemHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways and however small the pages; also where most that are listed do not fit, a page only being short then."""
    monkeypatch.setattr("redrive.operator.aws.pages.ROUNDS_MAX", 2)
    await home.put(7)
    claims = await home.ledger.claim(7, LEASE)
    order = [claims[place] for place in (3, 0, 6, 2, 5, 1, 4)]
    for number, claim in enumerate(order):
        home.clock.advance(minutes(1))
        error = PermanentError(f"number {number} is gone")
        assert await home.ledger.settle([settlement(claim, Failed(error))], worker="w") == []
    ids = [claim.task.id for claim in order]
    pages = ItemTaskPages(home.ledger)
    task = await home.ledger.get(ids[0])
    assert task is not None
    group = cause_of(task.last_error).id

    async def walk(asked: Filter, *, newest_first: bool) -> list[object]:
        found, cursor = [], None
        for _ in range(50):
            page = await pages.ids(asked, cursor=cursor, limit=2, newest_first=newest_first)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found
        raise AssertionError("the pages do not end")

    assert await walk(Filter(cause=group), newest_first=False) == ids
    assert await walk(Filter(cause=group), newest_first=True) == ids[::-1]
    assert await walk(Filter(cause=group, error="number 6"), newest_first=False) == ids[6:]
    assert await walk(Filter(cause="another"), newest_first=False) == []
    assert await pages.count(Filter(cause=group)) == 7
    for cursor in ("nonsense", str(ids[0])):
        with pytest.raises(UsageError, match="cursor"):
            await pages.page(Filter(cause=group), cursor=cursor)
    with pytest.raises(UsageError, match="cursor"):
        await pages.page(Filter(state=State.DEAD), cursor="nonsense")


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        (Filter(state=State.DONE), "inbox with status=delivered"),
        (Filter(state=State.CANCELLED), "inbox with status=delivered"),
        (Filter(kind="mail"), "all of its tasks have the same"),
        (Filter(state=State.DEAD, text="x"), "ask by id, state, error or cause"),
    ],
)
async def test_what_no_index_serves_is_refused_with_what_to_ask_instead(
    home: ItemHome, asked: Filter, remedy: str
) -> None:
    """By pages, by counts, and by a search, which goes through a list."""
    for ask in (ItemTaskPages(home.ledger).page, ItemTaskPages(home.ledger).count):
        with pytest.raises(UsageError, match=remedy):
            await ask(asked)
    if asked.text is None:
        with pytest.raises(UsageError, match=remedy):
            ItemSearch(home.ledger, asked, dict)


async def test_a_search_goes_through_a_list(home: ItemHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a text in what people see of a delivery: its id, its event, its endpoint, its error."""
    monkeypatch.setattr("redrive.operator.aws.search.CHUNK_TASKS", 2)
    ids = await home.put(5)
    await home.run(TRANSIENT)

    async def found(text: str, state: State = State.WAITING) -> list[object]:
        search, after, tasks = ItemSearch(home.ledger, Filter(text=text, state=state), dict), None, list[object]()
        while True:
            chunk = await search.chunk(after)
            tasks += [task.id for task in chunk.tasks]
            after = chunk.last
            if after is None:
                return tasks

    assert await found("TOO SLOW") == ids[:1]
    assert await found("ep-01") == [ids[1], ids[4]]
    assert await found("", State.DEAD) == []
    assert await found("") == ids


async def test_a_delivery_is_named_by_its_id(home: ItemHome) -> None:
    """Which is its key too; what could be none is refused, and what is not there is told by whoever acts on it."""
    [first, *_] = await home.put(3)
    task = await find_named(home.ledger, str(first))
    assert task is not None
    assert task.id == first
    ids, refused = await read_names(home.ledger, [str(first), "event-00001.09", "event-00001", "x.y"])
    assert ids == [first, "event-00001.09"]
    assert set(refused) == {"event-00001", "x.y"}
    assert await find_named(home.ledger, "event-00001.09") is None
