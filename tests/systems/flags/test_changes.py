"""However edits, schedules, outages and retries meet, a flag ends as the newest change that came through has set it."""

import os
import random
import secrets
from datetime import datetime
from typing import Any

from sqlalchemy.exc import DBAPIError

from redrive.systems.flags import NewSchedule
from redrive.systems.flags.changes import FIELDS, read_values

from .conftest import MINUTE, Home

ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 2)
STEPS = 14


def some_updates(rng: random.Random) -> dict[str, Any]:
    both = {"enabled": rng.random() < 0.5, "rolloutPercentage": rng.randrange(101)}
    chosen = rng.choice([["enabled"], ["rolloutPercentage"], list(both)])
    return {name: both[name] for name in chosen}


async def live(home: Home, key: str, rng: random.Random) -> list[tuple[datetime, dict[str, Any]]]:
    """Some minutes of a flag: planned, edited, broken, mended. The edits that were made."""
    edits, broken = [], False
    for _ in range(STEPS):
        match rng.choice(["plan", "plan", "plan", "edit", "break", "mend", "wait"]):
            case "plan":
                at = home.now + rng.randrange(1, 5) * MINUTE
                new = NewSchedule(scheduled_at=at, updates=some_updates(rng), max_retries=10)
                await home.flags.schedule(key, new, actor="ada")
            case "edit":
                values = read_values(some_updates(rng))
                try:
                    await home.flags.put(key, actor="bob", **values)
                except DBAPIError:
                    assert broken
                else:
                    edits.append((home.now, values))
            case "break" if not broken:
                await home.break_()
                broken = True
            case "mend" if broken:
                await home.mend()
                broken = False
            case _:
                pass
        await home.drain(until=rng.randrange(1, 90) * MINUTE / 30)
    if broken:
        await home.mend()
    await home.drain()
    return edits


async def test_the_newest_change_stands(home: Home) -> None:
    """Each field has the value of the newest edit or applied schedule, by when it was meant to take effect."""
    seed = int(os.environ.get("REDRIVE_TEST_SEED") or secrets.randbits(32))
    print(f"REDRIVE_TEST_SEED={seed}")
    ended = set()
    for round_ in range(ROUNDS):
        key = f"broken-{round_}"
        await home.flags.put(key, actor="ada")
        edits = await live(home, key, random.Random(f"{seed}-{round_}"))
        flag, schedules = await home.flags.get(key), await home.flags.schedules(key)
        assert {one.status for one in schedules} <= {"applied", "cancelled"}, (
            "what is mended comes through, or gives way"
        )
        ended |= {one.status for one in schedules}
        for column in FIELDS.values():
            # An edit at the very instant of a schedule came after it.
            made: list[tuple[Any, Any]] = [
                ((at, 1, number), values[column]) for number, (at, values) in enumerate(edits) if column in values
            ]
            for one in schedules:
                values = read_values(one.updates)
                if one.status == "applied" and column in values:
                    made.append(((one.scheduled_at, 0, one.id), values[column]))
            default = False if column == "enabled" else 0
            newest = max(made, key=lambda change: change[0], default=(None, default))
            assert getattr(flag, column) == newest[1], (round_, column, made)
    assert "applied" in ended
