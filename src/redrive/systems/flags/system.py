"""The system: flags, the schedules that change them, and the lane that applies these."""

import time
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
        beside = FlagBeside(app.database)
        self._app = app
        self._cache = cache = FlagCache(app)
        self.lane: Lane = app.adopt(
            FLAG_SCHEDULES, observers=[FlagLogs(app.database), Forgetting(cache)], tune=_tuned, beside=beside
        )
        self._store = store = FlagStore(app, cache, self.lane)
        self._intake = intake = FlagIntake(app, beside, max_retries=given.flag_schedule_max_retries)
        self._desk = desk = FlagDesk(app, self.lane)
        self.lane.handler(policy=POLICY, transactional=True)(Applier(app.database, store).apply)

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

    async def close(self) -> None:
        await self._cache.close()

    async def process(self, settings: WorkerSettings | None = None) -> Processed:
        """Apply all that is due and come back: one run, for cron and the like."""
        tally, began = _Tally(), time.monotonic()
        self.lane.own_observers.append(tally)
        try:
            await self._app.open()
            await self._app.work_off(self.lane, settings)
        finally:
            self.lane.own_observers.remove(tally)
        took = round((time.monotonic() - began) * 1000)
        return Processed(processed=tally.ended, failed=tally.dead, retried=tally.retried, duration_ms=took)


class _Tally:
    """Counts what a run comes to."""

    def __init__(self) -> None:
        self.ended = self.dead = self.retried = 0

    def observe(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, AttemptEnded) and event.settlement.outcome != "released":
                self.ended += 1
                self.dead += event.settlement.state is State.DEAD
                self.retried += event.settlement.explanation is not None and event.settlement.state is State.WAITING


def _tuned(settings: WorkerSettings) -> WorkerSettings:
    """As many slots as one claim takes, and a poll that finds what nobody announced within a minute."""
    return replace(
        settings, batch=CLAIM_MAX, concurrency=CLAIM_MAX, poll=min(settings.poll, POLL_MAX), retention=RETENTION
    )
