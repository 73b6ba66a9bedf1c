"""Pages for people: every filter gives the tasks that it should, in order, each once, on every table and database."""

import base64
import contextlib
import itertools
import json
from datetime import timedelta

import pytest

from redrive.core.durations import hours, minutes, seconds
from redrive.core.outcome import Done, Failed
from redrive.core.states import State
from redrive.core.task import TaskId
from redrive.errors import PermanentError, TooSlowError, UsageError
from redrive.operator.ports import TaskPages
from redrive.ports import Filter
from tests.breadth import WIDE
from tests.kept import census_of, figures_of, in_sql, pages_of
from tests.ledgers.homes import ADA, LEASE, PERMANENT, TRANSIENT, Home, settlement
from tests.ledgers.shapes import OWN

STORES = ("sqlite", "postgres", "aws")


async def walk(pages: TaskPages, asked: Filter, *, limit: int = 2, newest_first: bool = False) -> list[TaskId]:
    """All pages of a filter, one after the other."""
    found: list[TaskId] = []
    cursor = None
    for _ in range(100):
        page = await pages.page(asked, cursor=cursor, limit=limit, newest_first=newest_first)
        found += [task.id for task in page.items]
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the pages do not end")


async def in_every_state(home: Home) -> dict[State, list[TaskId]]:
    """Some tasks in each state, a minute between any two that ended."""
    ids = await home.put(9)
    if home.table.kind is not None:
        ids += await home.put(3, kind="print")
    claims = {claim.task.id: claim for claim in await home.ledger.claim(100, LEASE)}
    states: dict[State, list[TaskId]] = {state: [] for state in State}
    for number, id_ in enumerate(ids):
        home.clock.advance(seconds(1))
        state = (State.DONE, State.DEAD, State.WAITING)[number % 3]
        outcome = {State.DONE: Done(), State.DEAD: PERMANENT, State.WAITING: TRANSIENT}[state]
        assert await home.settle(claims[id_], outcome) == []
        states[state].append(id_)
    states[State.WAITING] += await home.put(3, delay=hours(5))
    if home.table.words.cancelled is not None:
        states[State.CANCELLED] = states[State.WAITING][:2]
        assert len(await home.ledger.cancel(states[State.CANCELLED], ADA)) == 2
        states[State.WAITING] = states[State.WAITING][2:]
    await census_of(home.ledger).take()
    return states


async def test_what_is_due_soon(home: Home) -> None:
    """The instants at which tasks that wait are due, the soonest first; not what is due already, and not what comes later."""
    await home.put(2)
    await home.put(3, delay=minutes(30))
    await home.put(2, delay=hours(5))
    pages = pages_of(home.ledger)
    now = await pages.present()
    found = await pages.due_until(now + hours(1))
    # The queue on AWS tells of nothing before it is due; on SQLite the instants of strangers are texts.
    tells = in_sql(home.table) and (home.store == "postgres" or home.table == OWN.table)
    soon = 3 if tells else 0
    assert [round((at - now) / minutes(1)) for at in found] == [30] * soon
    assert len(await pages.due_until(now + hours(1), limit=2)) == min(2, soon)


async def test_pages_of_each_state_hold_each_task_once(home: Home) -> None:
    """However small the pages, nothing is missing and nothing comes twice, in either direction."""
    states, pages = await in_every_state(home), pages_of(home.ledger)
    for state, ids in states.items():
        if not home.lists_all and state in (State.DONE, State.CANCELLED):
            with pytest.raises(UsageError, match="ask for the inbox"):
                await pages.page(Filter(state=state))
            continue
        for newest_first in (False, True):
            found = await walk(pages, Filter(state=state), newest_first=newest_first)
            assert sorted(found, key=str) == sorted(ids, key=str), state
        assert await pages.count(Filter(state=state)) == len(ids)
    listed = State if home.lists_all else (State.WAITING, State.CLAIMED, State.DEAD)
    everything = [id_ for state in listed for id_ in states[state]]
    for newest_first in (False, True):
        found = await walk(pages, Filter(), newest_first=newest_first)
        assert found == sorted(everything, reverse=newest_first)


@pytest.mark.homes(lambda table: table.kind is not None)
async def test_pages_of_a_kind(home: Home) -> None:
    """With and without a state; a kind that is not there has none."""
    states, pages = await in_every_state(home), pages_of(home.ledger)
    everything = [id_ for ids in states.values() for id_ in ids]
    prints = [id_ for id_ in everything if (await home.row(id_))["kind"] == "print"]
    assert len(prints) == 3
    assert sorted(await walk(pages, Filter(kind="print"), limit=1), key=str) == sorted(prints, key=str)
    for state in State:
        expected = [id_ for id_ in states[state] if id_ in prints]
        assert sorted(await walk(pages, Filter(kind="print", state=state)), key=str) == sorted(expected, key=str)
    assert await walk(pages, Filter(kind="nothing")) == []


@pytest.mark.homes(lambda table: in_sql(table))
async def test_waiting_tasks_come_in_the_order_that_they_are_due(home: Home) -> None:
    """First tries and retries in one row, the soonest first."""
    later = [(await home.put(delay=hours(number)))[0] for number in (3, 1)]
    retried = await home.put()
    await home.run(TRANSIENT)
    found = await walk(pages_of(home.ledger), Filter(state=State.WAITING), limit=1)
    assert found == [*retried, later[1], later[0]]
    backwards = await walk(pages_of(home.ledger), Filter(state=State.WAITING), limit=1, newest_first=True)
    assert backwards == found[::-1]


@pytest.mark.homes(lambda table: table is OWN.table)
async def test_ended_tasks_come_in_the_order_that_they_ended(home: Home) -> None:
    """The latest first, whatever their ids and kinds; ties by id."""
    ids = await home.put(3)
    ids += await home.put(3, kind="print")
    claims = {claim.task.id: claim for claim in await home.ledger.claim(100, LEASE)}
    order = [ids[4], ids[0], ids[5], ids[2]]
    for id_ in order:
        home.clock.advance(seconds(1))
        await home.settle(claims[id_], Done())
    together = [claims[ids[1]], claims[ids[3]]]
    home.clock.advance(seconds(1))
    await home.ledger.settle([settlement(claim) for claim in together], worker="w1")
    found = await walk(pages_of(home.ledger), Filter(state=State.DONE), limit=1)
    assert found == [*order, ids[1], ids[3]]


@pytest.mark.homes(lambda table: in_sql(table))
async def test_a_cursor_of_another_filter_is_refused(home: Home) -> None:
    """It is a mistake that is told, whatever it holds."""
    pages = pages_of(home.ledger)
    await in_every_state(home)
    by_id = (await pages.page(Filter(), limit=1)).cursor
    by_due = (await pages.page(Filter(state=State.WAITING), limit=1)).cursor
    forged = [_cursor(at, "1") for at in (True, {}, [], "x", "2030-01-01T00:00:00", 1e999, None)]
    for asked, cursors in (
        (
            Filter(state=State.WAITING),
            [by_id, _cursor("2030-01-01T00:00:00", "1"), _cursor({}, "1"), _cursor("x", "1")],
        ),
        (Filter(), [by_due, _cursor(7, "1"), _cursor(None, 7)]),
        (Filter(cause="x"), [by_id, _cursor(7.5, "1")]),
    ):
        for cursor in cursors:
            with pytest.raises(UsageError):
                await pages.page(asked, cursor=cursor)
    for cursor in forged:  # some of them may be read; none breaks anything
        with contextlib.suppress(UsageError):
            await pages.page(Filter(state=State.CLAIMED), cursor=cursor)


def _cursor(at: object, id: object) -> str:
    return base64.urlsafe_b64encode(json.dumps([at, id]).encode()).decode().rstrip("=")


async def test_other_conditions(home: Home) -> None:
    """Key, error and age hold together with the state."""
    pages = pages_of(home.ledger)
    old = await home.dead(2)
    home.clock.advance(hours(2))
    young = await home.dead(1)
    await census_of(home.ledger).take()
    key = (await home.ledger.get(old[0])).key  # type: ignore[union-attr]
    assert await walk(pages, Filter(key=key)) == [old[0]]
    assert await walk(pages, Filter(key=key, state=State.DONE)) == []
    assert await walk(pages, Filter(key="no such key")) == []
    assert len(await walk(pages, Filter(error="no such account"))) == 3
    assert await walk(pages, Filter(error="100%")) == []
    assert sorted(await walk(pages, Filter(state=State.DEAD, older_than=hours(1))), key=str) == sorted(old, key=str)
    assert young[0] in await walk(pages, Filter(state=State.DEAD, older_than=timedelta(0)))
    with pytest.raises(UsageError, match="cursor"):
        await pages.page(Filter(), cursor="nonsense")
    with pytest.raises(UsageError, match="only dead tasks"):
        await pages.page(Filter(state=State.DONE, cause="x"))


async def test_until_takes_what_was_there(home: Home) -> None:
    """What dies after the look, and what was redriven and died again, is not in it."""
    pages = pages_of(home.ledger)
    first, second = await home.dead(2)
    await census_of(home.ledger).take()
    until = await pages.present()
    home.clock.advance(minutes(1))
    await home.ledger.redrive([second], ADA)
    await home.run(PERMANENT)
    await home.dead(1)
    await census_of(home.ledger).take()
    assert await pages.count(Filter(state=State.DEAD)) == 3
    assert await walk(pages, Filter(state=State.DEAD, until=until)) == [first]
    assert await pages.count(Filter(state=State.DEAD, until=until)) == 1


async def test_until_of_waiting_tasks(home: Home) -> None:
    """What failed once more since the look is another task by now."""
    first, second = await home.put(2)
    claims = {claim.task.id: claim for claim in await home.ledger.claim(2, LEASE)}
    await home.settle(claims[first], TRANSIENT)
    until = await pages_of(home.ledger).present()
    home.clock.advance(seconds(1))
    await home.settle(claims[second], TRANSIENT)
    assert await walk(pages_of(home.ledger), Filter(state=State.WAITING, until=until)) == [first]


async def test_a_cause_is_the_group_that_was_listed(home: Home) -> None:
    """The number of a group is the number of tasks that can be acted on, also after more have died of the same."""
    pages = pages_of(home.ledger)
    await home.dead(3)
    [other] = await home.put()
    [claim] = await home.ledger.claim(1, LEASE)
    await home.settle(claim, Failed(PermanentError("something else")))
    await census_of(home.ledger).take()
    cause = await cause_of_task(home, other)
    until = await pages.present()
    assert await walk(pages, Filter(cause=cause)) == [other]
    home.clock.advance(minutes(1))
    [late] = await home.put()
    [claim] = await home.ledger.claim(1, LEASE)
    await home.settle(claim, Failed(PermanentError("something else")))
    await census_of(home.ledger).take()
    assert await pages.count(Filter(cause=cause)) == 2
    asked = Filter(cause=cause, until=until)
    assert await pages.count(asked) == len(await walk(pages, asked)) == 1
    assert await pages.count(Filter(cause=cause, error="nothing")) == 0
    assert await walk(pages, Filter(cause=cause), newest_first=True) == [late, other]


async def cause_of_task(home: Home, id: TaskId) -> str:
    from redrive.core.cause import cause_of

    task = await home.ledger.get(id)
    assert task is not None
    if not in_sql(home.ledger.table):
        return cause_of(task.last_error).id
    return cause_of((await home.ledger.attempts(id))[-1].error, kind=task.kind).id


@pytest.mark.homes(lambda table: in_sql(table))
async def test_a_rare_thing_among_many_dead_is_no_empty_page(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that was looked for long enough is a `TooSlowError`, never an end that is none."""
    monkeypatch.setattr("redrive.operator.sql.dead_list.LISTED_AT_ONCE", 2)
    monkeypatch.setattr("redrive.operator.sql.dead_list.LISTED_LOOKS_MAX", 2)
    ids = await home.dead(6)
    await census_of(home.ledger).take()
    cause = await cause_of_task(home, ids[0])
    with pytest.raises(TooSlowError):
        await pages_of(home.ledger).ids(Filter(cause=cause, error="something else"), limit=3)
    key = (await home.ledger.get(ids[0])).key  # type: ignore[union-attr]
    assert await walk(pages_of(home.ledger), Filter(cause=cause, key=key)) == ids[:1]
    assert await walk(pages_of(home.ledger), Filter(cause="another", key=key)) == []


@pytest.mark.homes(lambda table: in_sql(table))
async def test_a_look_that_takes_too_long_is_given_up(home: Home) -> None:
    """It is a `TooSlowError`, and the database can be asked again at once."""
    endless = {
        "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "postgres": "SELECT pg_sleep(60)",
    }[home.store]
    with pytest.raises(TooSlowError):
        await home.database.look(seconds(0.05), lambda connection: connection.exec_driver_sql(endless).all())
    assert await pages_of(home.ledger).page(Filter(), limit=1) is not None
    one = await home.database.look(seconds(5), lambda connection: connection.exec_driver_sql("SELECT 1").scalar_one())
    assert one == 1


@pytest.mark.homes(lambda table: in_sql(table))
@pytest.mark.homes(lambda table: table.name not in ("redrive_task", "command", "commandbus_command"))
async def test_what_others_brought_back_is_not_counted_as_dead(home: Home) -> None:
    """The list of the dead is a census behind where others write: the number before an act is that of the table."""
    [first, *_] = await home.dead(3)
    await census_of(home.ledger).take()
    pages = pages_of(home.ledger)
    assert await pages.count(Filter(state=State.DEAD)) == 3
    await home.change(first, status=home.table.words.done)
    assert await pages.count(Filter(state=State.DEAD)) == 2
    assert len((await pages.ids(Filter(state=State.DEAD))).items) == 2


LEAKED = "OperationalError: cannot log in with password=hunter2, host db1"
HIDDEN = ("hunter2", "password=hunter2", "hunter2, host", "2, host")[:: 1 if WIDE else 3]
SHOWN = ("cannot log in", "host db1", "password=[redacted]", "[redacted]")[:: 1 if WIDE else 2]


@pytest.mark.homes(lambda table: table.last_error is not None)
async def test_a_hidden_text_is_not_found_by_its_error(home: Home) -> None:
    """What an error hides from people finds nothing, by page, by count, or by the cursor of a short page; what it shows does."""
    [first, second] = sorted(await home.put(2), key=str)
    for claim in await home.ledger.claim(2, LEASE):
        assert await home.settle(claim, PERMANENT) == []
    for id_ in (first, second):  # as somebody else has written it, who does not redact
        await home.change(id_, last_error=LEAKED)
    await census_of(home.ledger).take()
    for pages, state in itertools.product(
        (pages_of(home.ledger, limited=limited) for limited in (True, False)), (None, State.DEAD)
    ):
        for hidden in HIDDEN:
            page = await pages.page(Filter(error=hidden, state=state), limit=1)
            assert (page.items, page.cursor) == ([], None), hidden
            assert await pages.count(Filter(error=hidden, state=state)) == 0
        for shown in SHOWN:
            asked = Filter(error=shown, state=state)
            assert sorted(await walk(pages, asked, limit=1), key=str) == [first, second], shown
            assert await pages.count(asked) == 2


@pytest.mark.homes(lambda table: table.last_error is not None)
@pytest.mark.homes(lambda table: in_sql(table))
async def test_a_cause_is_no_hash_of_a_hidden_text(home: Home) -> None:
    """Two errors that differ in what is hidden have one cause: its id tells nothing that could be guessed at."""
    ids = await home.put(2)
    for claim in await home.ledger.claim(2, LEASE):
        assert await home.settle(claim, PERMANENT) == []
    for id_, word in zip(ids, ("hunter", "tiger"), strict=True):
        await home.change(id_, last_error=f"cannot log in with password={word}")
    await census_of(home.ledger).take()
    [group] = await figures_of(home).groups([home.ledger.name], limit=10)
    assert (group.amount, "hunter" in group.text + group.sample) == (2, False)
