"""What is counted of kinds and causes, on both databases."""

import random
from datetime import datetime, timedelta

import pytest

from redrive.core.durations import days, minutes, seconds
from redrive.engine.tally import KindCounts, KindMinute, SeenCause
from redrive.ledgers.sql.database import Database
from redrive.operator.kinds import EPISODE_ENDS_AFTER, KindsSeen
from redrive.operator.sql.kinds import SqlKinds
from redrive.testing import VirtualClock
from tests.breadth import WIDE

LEDGER = "redrive_task"
WORKER = "app-1:7"


@pytest.fixture
def kinds(database: Database) -> SqlKinds:
    return SqlKinds(database)


def failed(kind: str, amount: int, first: datetime, last: datetime, *, cause: str = "c1", dead: int = 0) -> KindCounts:
    """So many tries of a kind that all failed of one cause, in one minute."""
    minute = first.replace(second=0, microsecond=0)
    rows = [
        KindMinute(minute, kind, of, amount, amount, amount, 0, dead, first, last, ran=[0, 0, amount, *[0] * 11]) for of in ("", cause)
    ]  # fmt: skip
    seen = SeenCause(
        id=cause, kind=kind, text="AttributeError: <text>", sample="AttributeError: 'body'", at="shop/mail.py:23 in render",
        first_seen=first, last_seen=last, budget=(6, seconds(240)),
    )  # fmt: skip
    return KindCounts(LEDGER, rows, [seen])


def done(kind: str, amount: int, first: datetime, last: datetime) -> KindCounts:
    minute = first.replace(second=0, microsecond=0)
    ran = [0, 0, 0, amount, *[0] * 10]
    return KindCounts(
        LEDGER, [KindMinute(minute, kind, "", amount, amount, 0, amount, 0, None, None, first, last, ran)], []
    )


async def write(kinds: SqlKinds, *counts: KindCounts, worker: str = WORKER, version: str = "4f2a") -> KindsSeen:
    for one in counts:
        await kinds.write([one], worker=worker, version=version)
    return await kinds.look()


async def test_what_a_worker_writes_twice_counts_once(kinds: SqlKinds, clock: VirtualClock) -> None:
    """A lost answer makes a worker write again; another worker's counts are added."""
    now = clock.now()
    counts = failed("mail", 12, now, now + seconds(1))
    await write(kinds, counts, counts)
    seen = await write(kinds, counts, worker="app-2:9")
    [kind] = seen.kinds
    assert (kind.tries, kind.failures, kind.done) == (24, 24, 0)
    assert kind.p50 is not None
    [cause] = seen.causes
    assert (cause.failures, cause.tries, cause.tries_max, cause.lasts) == (24, 24, 6, seconds(240))
    assert (cause.since, cause.last_version, cause.at) == (now, "4f2a", "shop/mail.py:23 in render")
    assert seen.settled_at == now + seconds(1)


async def test_tries_before_a_cause_began_are_not_counted_against_it(kinds: SqlKinds, clock: VirtualClock) -> None:
    """A kind that worked until half a minute ago fails in 100% of its tries since."""
    now = clock.now().replace(second=0)
    clock.advance(now + seconds(45) - clock.now())
    both = failed("mail", 12, now + seconds(40), now + seconds(44))
    whole = both.minutes[0]
    whole.tries, whole.done, whole.first_success, whole.last_success = 112, 100, now, now + seconds(39)
    [cause] = (await write(kinds, both)).causes
    assert (cause.failures, cause.tries, cause.recovered_at) == (12, 12, None)


async def test_recovered_is_the_first_success_after_the_last_failure(kinds: SqlKinds, clock: VirtualClock) -> None:
    """With the tries since; and in which versions it was seen."""
    now = clock.now().replace(second=0)
    await write(kinds, failed("mail", 50, now, now + seconds(20), dead=5), version="9c1e")
    await write(kinds, failed("mail", 50, now + seconds(60), now + seconds(80), dead=5), version="4f2a")
    clock.advance(minutes(3))
    later = now + minutes(2)
    seen = await write(kinds, done("mail", 30, later + seconds(1), later + seconds(30)), version="51bd")
    [cause] = seen.causes
    assert (cause.since, cause.last_seen) == (now, now + seconds(80))
    assert (cause.first_version, cause.last_version) == ("9c1e", "4f2a")
    assert (cause.failures, cause.died, cause.tries) == (100, 10, 130)
    assert (cause.recovered_at, cause.tries_since, cause.failures_since) == (later + seconds(1), 30, 0)
    assert [(point.start, point.failures) for point in cause.points] == [(now, 50), (now + minutes(1), 50)]


async def test_a_cause_that_comes_back_much_later_begins_anew(kinds: SqlKinds, clock: VirtualClock) -> None:
    """After a long quiet time it is another trouble, though the cause was seen before."""
    first = clock.now()
    await write(kinds, failed("mail", 10, first, first))
    clock.advance(EPISODE_ENDS_AFTER + seconds(1))
    again = clock.now()
    [cause] = (await write(kinds, failed("mail", 3, again, again))).causes
    assert (cause.since, cause.first_seen, cause.failures) == (again, first, 3)


async def test_folding_changes_no_sum(kinds: SqlKinds, clock: VirtualClock) -> None:
    """Workers of a minute become one row, minutes of an hour one, and what is a month old goes; in between nothing is lost."""
    now = clock.now().replace(minute=10, second=0)
    clock.advance(now + seconds(30) - clock.now())
    for number in range(3):
        await write(kinds, failed("mail", 10, now, now + seconds(number)), worker=f"w{number}")
        await write(kinds, failed("mail", 10, now + minutes(1), now + minutes(1)), worker=f"w{number}")
    clock.advance(minutes(10))
    before = await kinds.look()
    assert await kinds.fold(clock.now()) == 6 * 2
    assert await kinds.look() == before
    assert before.kinds[0].points[0].failures == 30
    clock.advance(days(3))
    assert await kinds.fold(clock.now()) == 2 * 2
    [cause] = (await kinds.look()).causes
    assert cause.failures == 60
    assert await kinds.fold(clock.now()) == 0
    clock.advance(timedelta(days=31))
    assert await kinds.fold(clock.now()) == 3
    assert await kinds.look() == KindsSeen(kinds=[], causes=[])


async def test_tries_by_version(kinds: SqlKinds, clock: VirtualClock) -> None:
    """Each version with its own tries, how many of them failed of the cause, and the latest first; another kind is not in it."""
    old = clock.now()
    await write(kinds, done("mail", 30, old, old + seconds(5)), failed("other", 9, old, old), version="9c1e")
    clock.advance(minutes(10))
    new = clock.now()
    await write(kinds, failed("mail", 12, new, new + seconds(3), dead=2), version="4f2a")
    [second, first] = await kinds.versions(LEDGER, "mail", cause="c1")
    assert (second.version, second.tries, second.failures, second.dead) == ("4f2a", 12, 12, 2)
    assert (second.last_failure, second.last_success) == (new + seconds(3), None)
    assert (first.version, first.tries, first.failures, first.last_success) == ("9c1e", 30, 0, old + seconds(5))
    assert first.first_tried == old.replace(second=0, microsecond=0)
    [before] = await kinds.versions(LEDGER, "mail", cause="c1", until=new - minutes(5))
    assert before == first


@pytest.mark.parametrize("seed", range(3 if WIDE else 1))
async def test_what_is_kept_of_older_minutes_is_what_was_counted(
    kinds: SqlKinds, database: Database, clock: VirtualClock, seed: int
) -> None:
    """Whoever has looked all the time sees what somebody sees who looks for the first time: while causes begin, go on, end and come back."""
    chance = random.Random(seed)
    began: dict[tuple[datetime, str], tuple[int, datetime]] = {}
    fails = {"mail": True, "pay": False}
    for _ in range(60):
        clock.advance(seconds(chance.choice((3, 20, 45, 130))))
        if chance.random() < 0.1:
            clock.advance(chance.choice((minutes(8), EPISODE_ENDS_AFTER)))
        now = clock.now()
        for kind in fails:
            fails[kind] ^= chance.random() < 0.15
            place = (now.replace(second=0, microsecond=0), f"{kind} {fails[kind]}")
            amount, first = began.get(place, (0, now))
            began[place] = (amount + chance.randint(1, 9), first)
            told = (kind, began[place][0], first, now)
            count = failed(*told, cause=f"of {kind}") if fails[kind] else done(*told)
            await kinds.write([count], worker="bad" if fails[kind] else "good", version="4f2a")
        assert await kinds.look() == await SqlKinds(database).look()


async def test_what_is_counted_late_is_seen_a_minute_later(kinds: SqlKinds, clock: VirtualClock) -> None:
    """A worker that could not write for a while tells of minutes that have been read; nobody waits for longer than the running one lasts."""
    clock.advance(minutes(1) - seconds(clock.now().second))
    now = clock.now()
    await write(kinds, done("mail", 5, now, now))
    late = now - minutes(3)
    [before] = (await write(kinds, done("mail", 7, late, late), worker="late")).kinds
    assert sum(point.tries for point in before.points) == 5
    clock.advance(minutes(1))
    [after] = (await kinds.look()).kinds
    assert [point.tries for point in after.points] == [7, 5]
