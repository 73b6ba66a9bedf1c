"""The system: flags, the schedules that change them, and the lane that applies these."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from redrive import Redrive, State, days
from redrive.app import WorkerSettings
from redrive.events import AttemptEnded, Event
from redrive.extend import System
from redrive.lane import Lane
from redrive.settings import load
from redrive.systems.flags.aftermath import Aftermath
from redrive.systems.flags.beside import FlagBeside
from redrive.systems.flags.cache import FlagCache
from redrive.systems.flags.desk import FlagDesk
from redrive.systems.flags.intake import FlagIntake
from redrive.systems.flags.logs import FlagLogs, Forgetting
from redrive.systems.flags.policy import POLICY
from redrive.systems.flags.settings import FlagSettings
from redrive.systems.flags.store import FlagStore
from redrive.systems.flags.tables import FLAG_SCHEDULES
from redrive.systems.flags.values import Processed
from redrive.systems.flags.work import Applier

CLAIM_MAX = 100
"""How many schedules are claimed at once."""
POLL_MAX = timedelta(seconds=60)
"""A schedule that nobody announced is found at the latest after this."""
RETENTION = {State.DONE: days(90), State.CANCELLED: days(30)}
"""How long schedules are kept that were applied or cancelled; those that failed stay for a person."""


class Flags(System):
    """Feature flags on an application.

        app = Redrive("sqlite:///shop.db")
        flags = Flags(app)

        await flags.put("dark-mode", enabled=True, rollout_percentage=10, actor="ada")
        if await flags.is_enabled("dark-mode", user_id="u-17"): ...

    Its lane applies schedules wherever the application's workers run; `process` does so once, for cron.
    """

    name = "flags"
    audited = ("feature_flags",)

    def __init__(self, app: Redrive, settings: FlagSettings | None = None) -> None:
        given = load(FlagSettings) if settings is None else settings
        super().__init__(app)
        self._aftermath = aftermath = Aftermath()
        beside, logs = FlagBeside(app.database, aftermath), FlagLogs(aftermath)
        self._app = app
        self._cache = cache = FlagCache(app, outage_max=given.flag_outage_max)
        self.lane: Lane = app.adopt(
            FLAG_SCHEDULES, observers=[logs, Forgetting(cache, aftermath)], tune=_tuned, beside=beside
        )
        logs.follow(self.lane)
        self._store = store = FlagStore(app, cache, self.lane, logs)
        self._intake = intake = FlagIntake(app, beside, self.lane, max_retries=given.flag_schedule_max_retries)
        self._desk = desk = FlagDesk(app, self.lane)
        self.lane.handler(policy=POLICY, transactional=True)(Applier(app.database, store, aftermath).apply)

        # All that can be asked of flags, each from the part that does it.
        self.is_enabled, self.all_enabled = cache.is_enabled, cache.all_enabled
        self.put, self.switch, self.delete = store.put, store.switch, store.delete
        self.get, self.all_flags, self.environments = store.get, store.all_flags, store.environments
        self.put_override, self.delete_override = store.put_override, store.delete_override
        self.overrides = store.overrides
        self.schedule, self.schedules, self.get_schedule = intake.schedule, desk.schedules, desk.get_schedule
        self.retries, self.foresee, self.page = desk.retries, desk.foresee, desk.page
        self.cancel, self.cancel_all = desk.cancel, desk.cancel_all
        self.retry, self.retry_all = desk.retry, desk.retry_all

    def panel(self) -> Any:
        from redrive.systems.flags.page import make_panel

        return make_panel(self._store, self._desk)

    def routes(self) -> Sequence[Any]:
        from redrive.systems.flags.routes import make_routers

        return make_routers(self._cache, self._store, self._intake, self._desk)

    def error_styles(self) -> Sequence[Any]:
        from redrive.systems.flags.routes import STYLES

        return STYLES

    async def run(self, stopped: asyncio.Event) -> None:
        """Look whether somebody has limited or paused the runner of schedules."""
        await self._intake.gates.run(stopped)

    async def close(self) -> None:
        await self._cache.close()

    async def process(self, settings: WorkerSettings | None = None) -> Processed:
        """Apply all that is due and come back: one run, for cron and the like."""
        tally, began = _Tally(self._aftermath), time.monotonic()
        self.lane.own_observers.insert(0, tally)
        try:
            await self._app.open()
            await self._app.work_off(self.lane, settings)
        finally:
            self.lane.own_observers.remove(tally)
        took = round((time.monotonic() - began) * 1000)
        return tally.processed(took)


class _Tally:
    """Counts what a run comes to."""

    def __init__(self, aftermath: Aftermath) -> None:
        self._aftermath = aftermath
        self._ended = Counter[State]()

    def observe(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, AttemptEnded) and event.settlement.outcome != "released":
                self._ended[event.settlement.state] += 1
                self._ended[State.CANCELLED] += len(self._aftermath.superseded_by(event.settlement))

    def processed(self, duration_ms: int) -> Processed:
        """What it came to."""
        ended = self._ended
        return Processed(
            processed=ended.total(), applied=ended[State.DONE], retried=ended[State.WAITING], failed=ended[State.DEAD],
            superseded=ended[State.CANCELLED], duration_ms=duration_ms,
        )  # fmt: skip


def _tuned(settings: WorkerSettings) -> WorkerSettings:
    """As many slots as one claim takes, and a poll that finds what nobody announced within a minute."""
    return replace(
        settings, batch=CLAIM_MAX, concurrency=CLAIM_MAX, poll=min(settings.poll, POLL_MAX), retention=RETENTION
    )
