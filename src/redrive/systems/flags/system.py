"""The system: flags, the schedules that change them, and the lane that applies these."""

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from redrive import Redrive, State, days
from redrive.app import WorkerSettings
from redrive.events import AttemptEnded, Event
from redrive.extend import System
from redrive.lane import Attempt, Lane, Where
from redrive.policies import Try
from redrive.settings import load
from redrive.systems.flags.audit import Audit
from redrive.systems.flags.beside import ActsOnSchedules
from redrive.systems.flags.cache import FlagCache
from redrive.systems.flags.changes import Values, read_values
from redrive.systems.flags.desk import LOOK_WITHIN, PAGE_SIZE, Pages, SchedulePage, Section
from redrive.systems.flags.errors import InvalidStateError
from redrive.systems.flags.evaluate import is_on
from redrive.systems.flags.logs import Aftermath, FlagLogs
from redrive.systems.flags.policy import POLICY
from redrive.systems.flags.schedules import (
    LISTED_MAX,
    Acted,
    Foreseen,
    NewSchedule,
    Schedule,
    Schedules,
    check_retries,
)
from redrive.systems.flags.settings import FlagSettings
from redrive.systems.flags.store import Flag, FlagStore, Override
from redrive.systems.flags.tables import FLAG_SCHEDULES, make_tables
from redrive.systems.flags.work import Applier

PRODUCTION = "production"
CLAIM_MAX = 100
"""How many schedules are claimed at once."""
POLL_MAX = timedelta(seconds=60)
"""A schedule that nobody announced is found at the latest after this."""
RETENTION = {State.DONE: days(90), State.CANCELLED: days(30)}
"""How long schedules are kept that were applied or cancelled; those that failed stay for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The tries of a schedule: those that were, and the exact times of those to come if each of them fails."""

    schedule: Schedule
    attempts: list[Attempt]
    upcoming: list[Try]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """What one run of the processor did."""

    processed: int
    """How many tries ended, in whatever way."""
    failed: int
    """How many schedules failed for good."""
    retried: int
    """How many failed and are tried again later."""
    duration_ms: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


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
        database = app.database
        tables = make_tables(database.dialect.name)
        self._app = app
        self._database = database
        self.audit = Audit(database, tables)
        self.cache = FlagCache(database, tables)
        acts = ActsOnSchedules(database, tables, self.audit)
        self.lane: Lane = app.adopt(
            FLAG_SCHEDULES, observers=[FlagLogs(database), Aftermath(database, self.audit, self.cache)], tune=_tuned,
            beside=acts,
        )  # fmt: skip
        self._schedules = Schedules(
            database, tables, self.lane, self.audit, max_retries=check_retries(given.flag_schedule_max_retries)
        )
        self._flags = FlagStore(database, tables, self.cache, self._schedules)
        self._pages = Pages(database, tables)
        applier = Applier(database, tables, self._flags, self._schedules, acts, self.audit)
        self.lane.handler(policy=POLICY, transactional=True)(applier.apply)

    def panel(self) -> Any:
        """See `System`."""
        from redrive.systems.flags.page import PANEL

        return PANEL

    def routes(self) -> Sequence[Any]:
        """See `System.routes`."""
        from redrive.systems.flags.routes import make_router
        from redrive.systems.flags.routes_operator import make_operator_router

        return [make_router(self), make_operator_router(self)]

    async def close(self) -> None:
        """See `System.close`."""
        await self.audit.flush()
        await self.cache.close()

    # --- evaluating -------------------------------------------------------------------------------------------------

    async def is_enabled(self, key: str, *, user_id: str | None = None, environment: str = PRODUCTION) -> bool:
        """Whether a flag is on, for a user if one is named. An unknown flag is off."""
        await self._app.open()
        flag = (await self.cache.flags()).get((environment, key))
        override = None
        if flag is not None and flag.enabled and user_id is not None:
            override = (await self.cache.overrides(user_id)).get(flag.id)
        return is_on(flag, override, user_id)

    async def all_enabled(self, *, user_id: str | None = None, environment: str = PRODUCTION) -> dict[str, bool]:
        """Every flag of an environment by its key, and whether it is on."""
        await self._app.open()
        flags = await self.cache.flags()
        overrides = {} if user_id is None else await self.cache.overrides(user_id)
        return {
            key: is_on(flag, overrides.get(flag.id), user_id)
            for (where, key), flag in flags.items()
            if where == environment
        }

    # --- flags ------------------------------------------------------------------------------------------------------

    async def put(
        self,
        key: str,
        *,
        actor: str,
        environment: str = PRODUCTION,
        enabled: bool | None = None,
        rollout_percentage: int | None = None,
        description: str | None = None,
    ) -> tuple[Flag, bool]:
        """Create a flag or change one; whether it is new. What is not given stays as it is."""
        await self._app.open()
        given = {"enabled": enabled, "rollout_percentage": rollout_percentage}
        values: Values = {column: value for column, value in given.items() if value is not None}
        if values:
            read_values(values)
        described = {} if description is None else {"description": description}
        put = await self._database.write(self._flags.put, key, environment, values, described, actor)
        self.cache.forget()
        return put

    async def switch(self, ids: Collection[int], *, enabled: bool, actor: str, reason: str) -> Acted:
        """Turn flags on or off, by their ids; those that are so already, or are gone, stay as they are."""
        await self._app.open()
        acted = await self._database.write(self._flags.switch, ids, enabled=enabled, actor=actor, reason=reason)
        self.cache.forget()
        return acted

    async def delete(self, key: str, *, actor: str, environment: str = PRODUCTION) -> None:
        """Delete a flag and its overrides. Its schedules stay, and fail for good when they are due."""
        await self._app.open()
        await self._database.write(self._flags.delete, key, environment, actor)
        self.cache.forget()

    async def get(self, key: str, *, environment: str = PRODUCTION) -> Flag:
        """A flag as it stands in the database."""
        await self._app.open()
        return await self._database.read(self._flags.get, key, environment)

    async def all_flags(
        self, *, environment: str = PRODUCTION, limit: int = LISTED_MAX, offset: int = 0, after: str | None = None
    ) -> list[Flag]:
        """The flags of an environment by their keys; those behind the key `after`, if it is given."""
        await self._app.open()
        return await self._database.read(self._flags.listed, environment, limit=limit, offset=offset, after=after)

    async def environments(self) -> list[str]:
        """Where there are flags, by name."""
        await self._app.open()
        return await self._database.read(self._flags.environments)

    async def put_override(
        self,
        key: str,
        user_id: str,
        override_type: str,
        *,
        actor: str,
        reason: str | None = None,
        environment: str = PRODUCTION,
    ) -> Override:
        """Let a flag be on (`include`) or off (`exclude`) for one user."""
        await self._app.open()
        put = await self._database.write(
            self._flags.put_override, key, environment, user_id, override_type, reason, actor
        )
        self.cache.forget()
        return put

    async def delete_override(self, key: str, user_id: str, *, actor: str, environment: str = PRODUCTION) -> bool:
        """Let the percentage speak for a user again; whether there was an override."""
        await self._app.open()
        removed = await self._database.write(self._flags.delete_override, key, environment, user_id, actor)
        self.cache.forget()
        return removed

    async def overrides(
        self, key: str, *, environment: str = PRODUCTION, limit: int = LISTED_MAX, offset: int = 0
    ) -> Sequence[Override]:
        """The overrides of a flag."""
        await self._app.open()
        return await self._database.read(self._flags.listed_overrides, key, environment, limit=limit, offset=offset)

    # --- schedules --------------------------------------------------------------------------------------------------

    async def schedule(self, key: str, *new: NewSchedule, actor: str, environment: str = PRODUCTION) -> list[Schedule]:
        """Plan changes of a flag, all or none."""
        await self._app.open()
        made = await self._database.write(self._schedules.create, key, environment, new, actor)
        self._database.wake(FLAG_SCHEDULES.name)
        return made

    async def schedules(
        self, key: str, *, environment: str = PRODUCTION, limit: int = LISTED_MAX, offset: int = 0
    ) -> list[Schedule]:
        """All schedules of a flag by their time."""
        await self._app.open()
        return await self._database.read(self._schedules.listed, key, environment, limit=limit, offset=offset)

    async def cancel(self, key: str, id: int, *, actor: str, environment: str = PRODUCTION) -> Schedule:
        """End a schedule that waits, for its time or for a retry; `InvalidStateError` for any other."""
        await self.get_schedule(key, id, environment=environment)
        acted = await self.cancel_all([id], actor=actor)
        return await self._after(acted, key, id, environment)

    async def cancel_all(self, ids: Collection[int], *, actor: str, reason: str = "cancelled by hand") -> Acted:
        """End schedules that wait, of whatever flag, all in one commit; those that do not wait stay as they are."""
        await self._app.open()
        acted = await self._database.write(self._schedules.cancel, ids, actor, reason)
        if acted.changed:
            await self.lane.count_soon()
        return acted

    async def get_schedule(self, key: str, id: int, *, environment: str = PRODUCTION) -> Schedule:
        """One schedule of a flag."""
        await self._app.open()
        return await self._database.read(self._schedules.get, key, environment, id)

    async def page(
        self,
        section: Section,
        *,
        environment: str = PRODUCTION,
        key: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> SchedulePage:
        """Schedules of an environment, across its flags: those ahead by when they are due, those over by their end, last first."""
        await self._app.open()
        return await self._database.look(
            LOOK_WITHIN, self._pages.page, section, environment=environment, key=key, cursor=cursor, limit=limit
        )

    async def retries(self, key: str, id: int, *, environment: str = PRODUCTION) -> Retries:
        """The tries of a schedule so far, and the times of those to come."""
        schedule = await self.get_schedule(key, id, environment=environment)
        return Retries(schedule=schedule, attempts=await self.lane.attempts(id), upcoming=schedule.upcoming())

    async def foresee(self, key: str, at: datetime, *, environment: str = PRODUCTION) -> Foreseen:
        """The state of a flag at a time to come, if every schedule until then succeeds at its next try."""
        await self._app.open()
        return await self._database.read(self._schedules.foresee, key, environment, at)

    async def retry(self, key: str, id: int, *, actor: str, environment: str = PRODUCTION) -> Schedule:
        """Bring a schedule back that has failed for good, due now and with all its retries."""
        await self.get_schedule(key, id, environment=environment)
        acted = await self.retry_all([id], actor=actor)
        return await self._after(acted, key, id, environment)

    async def retry_all(self, ids: Collection[int], *, actor: str, reason: str = "retried by hand") -> Acted:
        """Bring back schedules that have failed for good, of whatever flag; the others stay as they are."""
        await self._app.open()
        dead, refused = await self._database.read(self._schedules.to_retry, ids)
        changed = set[object]()
        if dead:
            changed |= {*(await self.lane.redrive(Where(ids=[*dead]), actor=actor, reason=reason)).changed}
        if changed:
            await self.lane.count_soon()
        for id_ in dead.keys() - changed:
            refused[id_] = f"schedule {id_} was brought back by somebody else just now"
        return Acted(changed=sorted(id_ for id_ in dead if id_ in changed), refused=refused)

    async def _after(self, acted: Acted, key: str, id: int, environment: str) -> Schedule:
        """The one schedule that was acted on, as it stands; `InvalidStateError` if it was left alone."""
        if acted.refused:
            raise InvalidStateError(acted.refused[id])
        return await self.get_schedule(key, id, environment=environment)

    # --- processing -------------------------------------------------------------------------------------------------

    async def process(self, settings: WorkerSettings | None = None) -> Processed:
        """Apply all that is due and come back: one run, for cron and the like."""
        tally, began = _Tally(), time.monotonic()
        self.lane.own_observers.append(tally)
        try:
            await self._app.open()
            await self._app.work_off(self.lane, settings)
        finally:
            self.lane.own_observers.remove(tally)
        await self.audit.flush()
        took = round((time.monotonic() - began) * 1000)
        return Processed(processed=tally.ended, failed=tally.dead, retried=tally.retried, duration_ms=took)


class _Tally:
    """Counts what a run comes to."""

    def __init__(self) -> None:
        self.ended = self.dead = self.retried = 0

    def observe(self, events: Sequence[Event]) -> None:
        """See `Observer.observe`."""
        for event in events:
            if isinstance(event, AttemptEnded) and event.settlement.outcome != "released":
                self.ended += 1
                self.dead += event.settlement.state is State.DEAD
                self.retried += event.settlement.explanation is not None and event.settlement.state is State.WAITING


def _tuned(settings: WorkerSettings) -> WorkerSettings:
    """As many slots as one claim takes, and a poll that finds what nobody announced within a minute."""
    return replace(
        settings,
        batch=CLAIM_MAX,
        concurrency=CLAIM_MAX,
        poll=min(settings.poll, POLL_MAX),
        retention=RETENTION,
    )
