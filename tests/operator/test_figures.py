"""The numbers behind the charts: the census, the flows between two, the groups of the dead, and folding."""

from datetime import timedelta

import pytest

from redrive.core.cause import cause_of
from redrive.core.durations import days, hours, minutes, seconds
from redrive.core.outcome import Done, Failed
from redrive.core.states import State
from redrive.core.table import TASKS
from redrive.errors import PermanentError
from redrive.operator.figures import carried_on
from redrive.operator.sql.census import SqlCensus
from redrive.ports import Filter
from tests.kept import census_of, figures_of, in_sql, pages_of
from tests.ledgers.homes import ADA, LEASE, PERMANENT, START, Home, settlement

STORES = ("sqlite", "postgres", "aws")


def amounts(**given: int) -> dict[State, int]:
    return {state: given.get(state.value, 0) for state in State}


async def dead(home: Home, *errors: str) -> None:
    """Tasks that died of these errors."""
    await home.put(len(errors))
    claims = await home.ledger.claim(len(errors), LEASE)
    ended = [settlement(claim, Failed(PermanentError(error))) for claim, error in zip(claims, errors, strict=True)]
    assert await home.ledger.settle(ended, worker="w1") == []


async def insert_as_others(home: Home, amount: int) -> None:
    """Rows that nobody counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(home.ledger), "_count_flow", lambda *_: None, raising=False)
        await home.put(amount)


def test_amounts_add_up() -> None:
    """What was held when it was counted, and has ended since, is counted once: 400 tasks stay 400."""
    counted = amounts(waiting=10, claimed=43, done=347)
    changed = {"added": 0, "done": 53, "dead": 0, "cancelled": 0, "pruned": 0}
    assert carried_on(counted, changed) == amounts(done=400)
    assert sum(carried_on(counted, {**changed, "added": 7, "done": 30, "dead": 5}).values()) == 407


async def test_a_census_counts_every_state(home: Home) -> None:
    """Each task is counted once, in the state that the ledger says."""
    await dead(home, "a", "b")
    await home.put(3)
    [claim, _] = await home.ledger.claim(2, LEASE)
    await home.settle(claim, Done())
    await census_of(home.ledger).take()
    figures = (await figures_of(home).states())[home.ledger.name]
    assert figures.amounts == amounts(waiting=1, claimed=1, done=1, dead=2)
    assert figures.amounts == await home.ledger.counts()


async def test_flows_carry_a_census_on(home: Home) -> None:
    """What happens after a census is in the numbers at once, also in a later minute, and the next census agrees."""
    await home.put(5)
    await census_of(home.ledger).take()
    first, second, third, *_ = await home.ledger.claim(5, LEASE)
    await home.settle(first, Done())
    home.clock.advance(minutes(1))
    await home.settle(second, Done())
    await home.settle(third, PERMANENT)
    if home.table.payload is not None:  # rows of others are found by the next census only
        await home.put(2)
    shown = (await figures_of(home).states())[home.ledger.name].amounts
    counted = dict(await home.ledger.counts())
    for amounts_ in (shown, counted):  # which of the open ones are claimed is as the census saw it
        amounts_[State.WAITING] += amounts_.pop(State.CLAIMED)
    assert shown == counted
    await census_of(home.ledger).take()
    assert (await figures_of(home).states())[home.ledger.name].amounts == await home.ledger.counts()


async def test_rows_of_others_are_found_and_counted_as_added(home: Home) -> None:
    """A census finds rows that nobody announced: after the first they are counted as added, and only they."""
    await home.put(2)
    await census_of(home.ledger).take()
    home.clock.advance(minutes(5))
    before = sum(row["added"] for row in await home.minutes())
    await home.put(3)
    await census_of(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) - before == 3
    home.clock.advance(seconds(10))
    await census_of(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) - before == 3


async def test_rows_of_others_are_in_the_numbers_once(home: Home) -> None:
    """A census that found rows of others shows each once, at once and after the next one, and misses none in between."""
    await home.put(2)
    await census_of(home.ledger).take()
    for amount in (3, 4):
        before = sum(row["added"] for row in await home.minutes())
        await insert_as_others(home, amount)
        home.clock.advance(seconds(2))
        await census_of(home.ledger).take()
        assert (await figures_of(home).states())[home.ledger.name].amounts == await home.ledger.counts()
        assert sum(row["added"] for row in await home.minutes()) - before == amount


@pytest.mark.homes(lambda table: table.payload is not None)
async def test_what_is_committed_late_is_no_row_of_others(home: Home) -> None:
    """Tasks that were added in a minute, by a transaction that ended after a census in a later one, are counted once."""
    await home.put(1)
    census = SqlCensus(home.ledger)
    await census.take()
    last = await home.database.read(census._last)
    async with home.database.transaction() as transaction:
        await home.ledger.add([home.new(), home.new()], within=transaction.connection)
        home.clock.advance(minutes(3))
        counted = await home.database.scan(census._count, last.at)
    assert await home.database.write(census._store, last, counted, 0.1, None)
    before = sum(row["added"] for row in await home.minutes())
    shown = (await figures_of(home).states())[home.ledger.name].amounts
    assert shown == await home.ledger.counts()
    await census_of(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) == before


@pytest.mark.homes(lambda table: table.words.cancelled is not None)
async def test_what_people_and_systems_end_is_counted(home: Home) -> None:
    """Tasks that were cancelled, or given up by the system that owns them, are in the numbers and in the minute at once."""
    ids = await home.put(4)
    await census_of(home.ledger).take()
    assert len(await home.ledger.cancel(ids[:2], ADA)) == 2
    assert len(await home.ledger.bury(ids[2:3], ADA)) == 1
    assert await home.ledger.cancel(ids[:2], ADA) == []
    figures = (await figures_of(home).states())[home.ledger.name]
    assert figures.amounts == amounts(waiting=1, cancelled=2, dead=1) == await home.ledger.counts()
    sums = await figures_of(home).sums([home.ledger.name], START)
    assert (sums["cancelled"], sums["dead"]) == (2, 1)


@pytest.mark.homes(lambda table: table.payload is not None)
async def test_neither_a_clock_that_is_set_back_nor_folding_adds_anything(home: Home) -> None:
    """Nothing that was counted as added already is taken for rows of others."""
    await census_of(home.ledger).take()
    home.clock.advance(-hours(5))
    await home.put(2)
    await census_of(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) == 2
    home.clock.advance(minutes(30))
    await census_of(home.ledger).take()
    await home.put(1)
    home.clock.advance(days(4))
    await figures_of(home).fold(home.clock.now())
    await census_of(home.ledger).take()
    assert sum(row["added"] for row in await home.minutes()) == 3


async def test_a_census_rests(home: Home) -> None:
    """It is not taken again at once, whoever asks, and later it is."""
    assert await census_of(home.ledger).take_if_due()
    assert not await census_of(await home.another()).take_if_due()
    home.clock.advance(hours(1))
    assert await census_of(home.ledger).take_if_due()


@pytest.mark.homes(lambda table: table is TASKS)
async def test_a_census_that_took_long_rests_longer_but_not_for_ever(home: Home) -> None:
    """Unless somebody has acted and wants to see it."""
    census = SqlCensus(home.ledger)
    assert await census.take_if_due()
    at = (await home.database.read(census._last)).at
    await home.database.write(census._took, at, 1000.0)
    home.clock.advance(minutes(4))
    assert not await census.take_if_due()
    home.clock.advance(minutes(2))
    assert await census.take_if_due()
    at = (await home.database.read(census._last)).at
    await home.database.write(census._took, at, 1000.0)
    home.clock.advance(seconds(3))
    assert not await census.take_if_due()
    await census.hurry()
    assert await census.take_if_due()


async def test_the_dead_are_grouped_by_cause(home: Home) -> None:
    """Errors that differ in numbers and names only are one group; a redriven task leaves it."""
    await dead(home, "order 17 of 'ann' is gone", "order 4711 of 'bob' is gone", "timeout")
    await census_of(home.ledger).take()
    groups = await figures_of(home).groups([home.ledger.name])
    assert [group.amount for group in groups] == [2, 1]
    assert "order <number> of <text> is gone" in groups[0].text
    ids = (await pages_of(home.ledger).ids(Filter(cause=groups[0].id))).items
    assert len(ids) == 2
    await home.ledger.redrive([ids[0]], ADA)
    await census_of(home.ledger).take()
    assert [group.amount for group in await figures_of(home).groups([home.ledger.name])] == [1, 1]


async def test_series_add_up_however_old(home: Home) -> None:
    """Folding changes the rows, not the sums, whether minutes or hours are asked for."""
    figures = figures_of(home)
    for _ in range(3):
        await home.put(2)
        for at, claim in enumerate(await home.ledger.claim(10, LEASE)):
            await home.ledger.settle([settlement(claim, Done())], worker=f"w{at}")
        home.clock.advance(minutes(7))
    before = await figures.series([home.ledger.name], START, hours(1))
    by_minute = await figures.series([home.ledger.name], START, minutes(5))
    assert sum(point.sums["done"] for point in before) == 6
    assert len(by_minute) == 3
    sums = await figures.sums([home.ledger.name], START)
    for late, age in enumerate((hours(2), days(3))):
        home.clock.advance(START + age - home.clock.now())
        rows = len(await home.minutes())
        folded = await figures.fold(START + age)
        if not late or in_sql(home.table):  # items are folded into minutes and hours at once
            assert folded > 0
            assert len(await home.minutes()) < rows
        assert await figures.series([home.ledger.name], START, hours(1)) == before
        assert await figures.series([home.ledger.name], START, minutes(5)) == (before if late else by_minute)
        assert await figures.sums([home.ledger.name], START) == sums
        assert home.ledger.name in await figures.ledgers()
    assert await figures.fold(START + days(3)) == 0


async def test_depths_are_sampled_once_a_minute(home: Home) -> None:
    """The last census of a minute is its sample."""
    await home.put(2)
    census = census_of(home.ledger)
    await census.take()
    await home.put(1)
    await census.take()
    home.clock.advance(timedelta(minutes=2))
    await census.take()
    depths = await figures_of(home).depths([home.ledger.name], START, minutes(1))
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


@pytest.mark.homes(lambda table: in_sql(table))
async def test_a_line_of_code_is_the_cause(home: Home) -> None:
    """One line that fails with different messages is one cause, and two lines that fail with one message are two."""
    [tried, *_] = [await home.ledger.get(added) for added in await home.put(4)]
    assert tried is not None

    def failed(number: int, *, elsewhere: bool = False) -> Failed:
        try:
            if elsewhere:
                raise PermanentError("odd")
            raise PermanentError(f"word {chr(97 + number) * 3}")
        except PermanentError as error:
            return Failed(error)

    for outcome in (failed(1), failed(2), failed(3, elsewhere=True), Failed(PermanentError("odd"))):
        await home.settle(await home.claim_one(), outcome)
    await census_of(home.ledger).take()
    groups = await figures_of(home).groups([home.ledger.name])
    assert sorted(group.amount for group in groups) == [1, 1, 2]
    lines = {group.at for group in groups}
    assert len(lines) == 3
    assert sum(line is not None and line.startswith("tests/operator/test_figures.py:") for line in lines) == 2
    assert {group.kind for group in groups} == {tried.kind}


def test_kinds_have_causes_of_their_own() -> None:
    """The same error of two kinds is two causes: redriving one leaves the other alone."""
    causes = {cause_of("KeyError: 'x'", kind=kind, at=at).id for kind in ("mail", "invoice") for at in (None, "a.py:1")}
    assert len(causes) == 4


def test_different_errors_have_different_causes() -> None:
    """The class and the words count."""
    assert len({cause_of(error).id for error in ("KeyError: x", "ValueError: x", "KeyError: y", None)}) == 4
