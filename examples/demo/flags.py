"""Traffic for flags: changes that are due in seconds and in minutes, some of which a rule in the database refuses.

Schedules wait 2 minutes and more between tries, in the demo as anywhere: a schedule that fails is seen waiting for its retry.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from examples.demo.traffic import Traffic, chance, span
from redrive import Redrive
from redrive.systems.flags import Flags, NewSchedule

STEADY = ("dark-mode", "new-checkout", "search-v2", "fast-lane")
REFUSED = "price-list"
"""Seven of eight changes to it fail: finance has put a rule into the database."""
BRIEF = "black-friday"
"""It is deleted while a change of it is planned, and that change then fails for good."""
_SAID = "finance allows no change of the price list now"
_SQLITE = f"""
CREATE TRIGGER IF NOT EXISTS demo_locked BEFORE UPDATE ON feature_flags
WHEN NEW.flag_key = '{REFUSED}' AND NEW.rollout_percentage <> OLD.rollout_percentage AND random() % 8 <> 0
BEGIN SELECT RAISE(ABORT, '{_SAID}'); END
"""
_POSTGRES = f"""
CREATE OR REPLACE FUNCTION demo_locked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.875 THEN RAISE EXCEPTION '{_SAID}'; END IF;
    RETURN NEW;
END $$
"""
_POSTGRES_TRIGGER = f"""
CREATE OR REPLACE TRIGGER demo_locked BEFORE UPDATE ON feature_flags FOR EACH ROW
WHEN (NEW.flag_key = '{REFUSED}' AND NEW.rollout_percentage <> OLD.rollout_percentage) EXECUTE FUNCTION demo_locked()
"""
ACTOR = "demo: ada"
SOON = timedelta(seconds=2)
"""A time must lie in the future when it is written, also on a busy machine."""
BEATS_MAX = 14_400
"""A day of them. The audit of flags is written for ever: nothing may take from it, and it takes 13 MB until then."""


class FlagTraffic(Traffic):
    """Four flags that do as they are told, one that resists, and one that does not live long."""

    every_seconds = 6.0

    def __init__(self, app: Redrive) -> None:
        self._flags = Flags(app)

    def prepare(self, connection: Connection) -> None:
        """See `Traffic.prepare`."""
        statements = [_SQLITE] if connection.dialect.name == "sqlite" else [_POSTGRES, _POSTGRES_TRIGGER]
        for statement in statements:
            connection.execute(text(statement))

    async def begin(self) -> None:
        """See `Traffic.begin`."""
        for key in STEADY:
            await self._flags.put(key, actor=ACTOR, enabled=True, rollout_percentage=10, description=f"Shows {key}.")
        await self._flags.put_override("dark-mode", "u-17", "include", actor=ACTOR, reason="she asked for it")

    async def beat(self, number: int) -> None:
        """One change soon; now and then one for later, one that is refused, one whose flag goes away, one taken back."""
        if number > BEATS_MAX:
            return
        await self._plan(STEADY[number % len(STEADY)], 3, rolloutPercentage=chance.randint(0, 100))
        if number % 4 == 1:
            await self._plan(REFUSED, 2, retries=(3, 1, 0)[number // 4 % 3], rolloutPercentage=number % 100 + 1)
        if number % 8 == 2:
            await self._plan(BRIEF, 4, enabled=True)
            await self._flags.delete(BRIEF, actor=ACTOR)
        if number % 6 == 3:
            later = await self._plan(STEADY[0], chance.uniform(120, 600), enabled=bool(number % 2))
            if number % 12 == 3:
                await self._flags.cancel_all([later], actor=ACTOR, reason="the campaign was moved")

    async def _plan(self, key: str, in_seconds: float, *, retries: int = 3, **updates: object) -> int:
        """Plan a change, of a flag that a visitor may have deleted."""
        if key not in await self._flags.all_enabled():
            await self._flags.put(key, actor=ACTOR, description=f"Shows {key}.")
        at = datetime.now(UTC) + max(span(in_seconds), SOON)
        [made] = await self._flags.schedule(
            key, NewSchedule(scheduled_at=at, updates=dict(updates), max_retries=retries), actor=ACTOR
        )
        return made.id
