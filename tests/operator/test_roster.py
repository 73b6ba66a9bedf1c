"""Who works: signs of life, on every store."""

from datetime import timedelta

from redrive.core.durations import days, seconds
from redrive.operator.json_views import worker_json
from redrive.operator.roster import KEPT, LOST_AFTER, WorkerSign, drift_words
from tests.kept import Kept
from tests.kept import kept as kept
from tests.kept import kept_in_items as kept_in_items
from tests.kept import store as store


def sign(kept: Kept, name: str = "w1", **said: object) -> WorkerSign:
    """What a worker says of itself."""
    given = {
        "name": name,
        "host": "h",
        "pid": 7,
        "started_at": kept.clock.now(),
        "version": "4f2a",
        "slots": 100,
        **said,
    }
    return WorkerSign(**given)  # type: ignore[arg-type]


async def test_a_worker_is_there_from_its_first_sign_on(kept: Kept) -> None:
    """It is shown with what it last said; since when it works does not change with its signs."""
    began = kept.clock.now()
    await kept.roster.sign(sign(kept, holds={"redrive_task": {"mail": 3}}))
    kept.clock.advance(seconds(10))
    await kept.roster.sign(sign(kept, started_at=began, holds={"redrive_task": {"mail": 1, "pay": 2}}))
    [seen] = await kept.roster.seen()
    assert (seen.started_at, seen.seen_at, seen.stopped_at) == (began, kept.clock.now(), None)
    assert seen.holds == {"redrive_task": {"mail": 1, "pay": 2}}
    assert (seen.held, seen.slots, seen.version, seen.pid, seen.host) == (3, 100, "4f2a", 7, "h")
    assert worker_json(seen, kept.clock.now())["state"] == "working"


async def test_who_gives_no_sign_is_lost_and_who_says_goodbye_is_not(kept: Kept) -> None:
    """Three signs are missing: it is lost, with what it held. One that stopped is stopped, however long ago."""
    await kept.roster.sign(sign(kept, "killed", holds={"redrive_task": {"mail": 3}}))
    await kept.roster.sign(sign(kept, "stopped", stops=True))
    now = kept.clock.now()
    assert not any(one.is_lost(now + LOST_AFTER) for one in await kept.roster.seen())
    kept.clock.advance(LOST_AFTER + timedelta(microseconds=1))
    states = {one.name: worker_json(one, kept.clock.now()) for one in await kept.roster.seen()}
    assert {name: one["state"] for name, one in states.items()} == {"killed": "lost", "stopped": "stopped"}
    assert states["killed"]["held"] == 3


async def test_what_it_does_and_how_long_it_holds(kept: Kept) -> None:
    """As of its last sign, also when it is lost later; a worker that said nothing of it has none. A store without a clock knows no drift."""
    began = kept.clock.now()
    kept.clock.advance(seconds(3))
    await kept.roster.sign(sign(kept, "busy", tries_a_minute=94, held_since=began))
    await kept.roster.sign(sign(kept, "older"))
    kept.clock.advance(LOST_AFTER * 2)
    said = {one.name: worker_json(one, kept.clock.now()) for one in await kept.roster.seen()}
    asked = ("state", "tries_a_minute", "oldest_held_seconds", "clock_drift_ms")
    assert [said["busy"][name] for name in asked] == ["lost", 94, 3.0, None]
    assert [said["older"][name] for name in asked] == ["lost", None, None, None]


def test_a_drift_as_people_read_it() -> None:
    """With its sign; where nobody knows it a dash."""
    assert [drift_words(one) for one in (2.4, -1.2, 0.3, -0.4, 61_000, None)] == [
        "+2 ms", "−1 ms", "0 ms", "0 ms", "+61,000 ms", "–",
    ]  # fmt: skip


async def test_the_last_seen_come_first_and_the_rest_is_left_out(kept: Kept) -> None:
    """However many have been there, a page is bounded."""
    for number in range(5):
        await kept.roster.sign(sign(kept, f"w{number}"))
        kept.clock.advance(seconds(1))
    assert [one.name for one in await kept.roster.seen(limit=3)] == ["w4", "w3", "w2"]


async def test_those_who_are_long_gone_are_struck_out(kept: Kept) -> None:
    """A week later nobody asks for them. Items of DynamoDB go by themselves."""
    await kept.roster.sign(sign(kept, "old"))
    kept.clock.advance(KEPT + days(1))
    await kept.roster.sign(sign(kept, "new"))
    if kept.dynamo is None:
        assert await kept.roster.forget() == 1
        assert [one.name for one in await kept.roster.seen()] == ["new"]
