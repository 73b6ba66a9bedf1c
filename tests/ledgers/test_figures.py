"""The numbers behind the charts: the census, the flows between two, the groups of the dead, and folding."""

from datetime import timedelta

import pytest
from ledgers.homes import ADA, LEASE, PERMANENT, START, Home, settlement

from redrive.core.cause import cause_of
from redrive.core.durations import days, hours, minutes, seconds
from redrive.core.outcome import Done, Failed
from redrive.core.states import State
from redrive.errors import PermanentError
from redrive.ledgers.browse import Browser, Filter
from redrive.ledgers.census import Census
from redrive.ledgers.figures import Figures


def amounts(**given: int) -> dict[State, int]:
    return {state: given.get(state.value, 0) for state in State}


async def dead(home: Home, *errors: str) -> None:
    """Tasks that died of these errors."""
    await home.put(len(errors))
    claims = await home.ledger.claim(len(errors), LEASE)
    ended = [settlement(claim, Failed(PermanentError(error))) for claim, error in zip(claims, errors, strict=True)]
    assert await home.ledger.settle(ended, worker="w1") == []


async def test_a_census_counts_every_state(home: Home) -> None:
    """Each task is counted once, in the state that the ledger says."""
    await dead(home, "a", "b")
    await home.put(3)
    [claim, _] = await home.ledger.claim(2, LEASE)
    await home.settle(claim, Done())
    await Census(home.ledger).take()
    figures = (await Figures(home.database).states())[home.ledger.name]
    assert figures.amounts == amounts(waiting=1, claimed=1, done=1, dead=2)
    assert figures.amounts == await home.ledger.counts()


async def test_flows_carry_a_census_on(home: Home) -> None:
    """What happens after a census is in the numbers at once, also in a later minute, and the next census agrees."""
    await home.put(5)
    await Census(home.ledger).take()
    first, second, third, *_ = await home.ledger.claim(5, LEASE)
    await home.settle(first, Done())
    home.clock.advance(minutes(1))
    await home.settle(second, Done())
    await home.settle(third, PERMANENT)
    if home.table.payload is not None:  # rows of others are found by the next census only
        await home.put(2)
    shown = (await Figures(home.database).states())[home.ledger.name].amounts
    counted = dict(await home.ledger.counts())
    for amounts_ in (shown, counted):  # which of the open ones are claimed is as the census saw it
        amounts_[State.WAITING] += amounts_.pop(State.CLAIMED)
    assert shown == counted
    await Census(home.ledger).take()
    assert (await Figures(home.database).states())[home.ledger.name].amounts == await home.ledger.counts()


async def test_rows_of_others_are_found_and_counted_as_added(home: Home) -> None:
    """A census finds rows that nobody announced: after the first they are counted as added, and only they."""
    await home.put(2)
    await Census(home.ledger).take()
    home.clock.advance(minutes(5))
    before = sum(row["added"] for row in await home.minutes())
    await home.put(3)
    await Census(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) - before == 3
    home.clock.advance(seconds(10))
    await Census(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) - before == 3


async def test_a_census_rests(home: Home) -> None:
    """It is not taken again at once, whoever asks, and later it is."""
    assert await Census(home.ledger).take_if_due()
    assert not await Census(await home.another()).take_if_due()
    home.clock.advance(hours(1))
    assert await Census(home.ledger).take_if_due()


async def test_the_dead_are_grouped_by_cause(home: Home) -> None:
    """Errors that differ in numbers and names only are one group; a redriven task leaves it."""
    await dead(home, "order 17 of 'ann' is gone", "order 4711 of 'bob' is gone", "timeout")
    await Census(home.ledger).take()
    groups = await Figures(home.database).groups([home.ledger.name])
    assert [group.amount for group in groups] == [2, 1]
    assert "order <number> of <text> is gone" in groups[0].text
    ids, _ = await Browser(home.ledger).ids(Filter(cause=groups[0].id))
    assert len(ids) == 2
    await home.ledger.redrive([ids[0]], ADA)
    await Census(home.ledger).take()
    assert [group.amount for group in await Figures(home.database).groups([home.ledger.name])] == [1, 1]


async def test_series_add_up_however_old(home: Home) -> None:
    """Folding changes the rows, not the sums."""
    figures = Figures(home.database)
    for _ in range(3):
        await home.put(2)
        for at, claim in enumerate(await home.ledger.claim(10, LEASE)):
            await home.ledger.settle([settlement(claim, Done())], worker=f"w{at}")
        home.clock.advance(minutes(7))
    before = await figures.series([home.ledger.name], START, hours(1))
    assert sum(point.sums["done"] for point in before) == 6
    rows = len(await home.minutes())
    for age in (hours(2), days(3)):
        assert await figures.fold(START + age) > 0
        assert len(await home.minutes()) < rows
        rows = len(await home.minutes())
        assert await figures.series([home.ledger.name], START, hours(1)) == before
    assert await figures.fold(START + days(3)) == 0
    assert len(await figures.series([home.ledger.name], START, minutes(5))) == 1


async def test_depths_are_sampled_once_a_minute(home: Home) -> None:
    """The last census of a minute is its sample."""
    await home.put(2)
    census = Census(home.ledger)
    await census.take()
    await home.put(1)
    await census.take()
    home.clock.advance(timedelta(minutes=2))
    await census.take()
    depths = await Figures(home.database).depths([home.ledger.name], START, minutes(1))
    assert [depth.amounts[State.WAITING] for depth in depths] == [3, 3]
    assert depths[1].oldest_due is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'a'", "KeyError: 'b'"),
        ("HTTP 503 from https://a.example/x?y=1", "HTTP 503 from https://b.example/"),
        ("no row 6f1e2c3a-0000-4000-8000-000000000001", "no row 6f1e2c3a-0000-4000-8000-000000000002"),
        ("at 2030-01-01T00:00:00Z", "at 2031-02-03 04:05:06.7+02:00"),
        ("10.0.0.1:80 refused", "10.0.0.2:443 refused"),
        ("bob@example.com unknown", "ann@shop.example unknown"),
    ],
)
def test_what_varies_is_not_the_cause(one: str, other: str) -> None:
    """Two errors of one kind have one cause."""
    assert cause_of(one) == cause_of(other)


def test_different_errors_have_different_causes() -> None:
    """The class and the words count."""
    assert len({cause_of(error).id for error in ("KeyError: x", "ValueError: x", "KeyError: y", None)}) == 4
