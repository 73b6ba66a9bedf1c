"""The watch that calls a person.

It joins three parts that do not know each other: the figures of the ledgers, the rules over them, and the messenger.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

from redrive.app import Redrive
from redrive.chores import WriteProof
from redrive.core.states import State
from redrive.lane import Lane
from redrive.operator.alert_rules import (
    FAILED_SPAN,
    SEND_WITHIN,
    Alarm,
    LedgerFacts,
    Limits,
    Messenger,
    evaluate,
    failing_kinds,
    halted_operations,
    lost_workers,
    message,
)
from redrive.operator.alerts import News
from redrive.operator.figures import States
from redrive.operator.verdict import gather_causes, judge
from redrive.settings import Settings

GROUPS_MAX = 200
STORE_EVERY = timedelta(seconds=5)
LEDGER_AWAY = "ledger_away"
TURN = SEND_WITHIN + timedelta(seconds=40)


class Watch:
    """Looks at the figures of an application, and tells what starts and ends to be wrong."""

    def __init__(self, app: Redrive, settings: Settings, proof: WriteProof | None = None) -> None:
        self._app = app
        self._proof = proof
        self._away = False
        self._service = settings.service_name
        self._figures = app.store.figures
        self._alerts = app.store.alerts
        self._limits = Limits(
            failed_share=settings.alert_failed_percent / 100,
            oldest_due=settings.alert_oldest_due,
            depth=settings.alert_depth,
        )
        self._tells_deaths = frozenset(settings.alert_dead.replace(",", " ").split())
        urls = settings.alert_urls.get_secret_value().split() if settings.alert_urls is not None else []
        self._messenger = Messenger(urls) if urls else None
        self._log: Any = structlog.get_logger().bind(system="alerts")

    async def round(self) -> None:
        """Look once, unless another service does; tell what is new."""
        if self._messenger is not None:
            self._messenger.catch_up()
        until = await self._app.store.turns.take("alerts", TURN)
        if until is None:
            return
        try:
            await self._look()
        finally:
            await self._app.store.turns.give_back("alerts", until)

    async def look_at_store(self) -> None:
        """Tell that the store takes no writes, and that it does again: not written down there, so each service tells it for itself."""
        wrong = None if self._proof is None else self._proof.sentence()
        if (wrong is not None) == self._away:
            return
        text = f"{self._app.store.url}: {wrong or 'writes go through again'}"
        started, ended = ([text], []) if wrong else ([], [text])
        if self._messenger is not None and not await self._messenger.send(*message(self._service, started, ended)):
            self._log.warning("alert_not_sent", started=len(started), ended=len(ended))
            return
        self._away = wrong is not None
        said = self._log.warning if wrong else self._log.info
        said("alert_started" if wrong else "alert_ended", alert=LEDGER_AWAY, rule=LEDGER_AWAY, text=text)

    async def _look(self) -> None:
        alarms, problem = await self._alarms()
        # Where something could not be asked, nothing has ended: it may be just what nobody could ask about.
        found = {alarm.name: (alarm.rule, alarm.text) for alarm in alarms}
        news = await self._alerts.note(found, complete=problem is None)
        if news.started or news.ended:
            await self._tell(news)
        if problem is not None:
            raise problem

    async def _tell(self, news: News) -> None:
        started, ended = [one.text for one in news.started], [one.text for one in news.ended]
        if self._messenger is not None and not await self._messenger.send(*message(self._service, started, ended)):
            # Not marked as told: the next round tries again.
            self._log.warning("alert_not_sent", started=len(started), ended=len(ended))
            return
        if self._messenger is not None and self._messenger.owing:
            self._log.warning("alert_address_away", addresses=self._messenger.owing)
        for alert in news.started:
            self._log.warning("alert_started", alert=alert.name, rule=alert.rule, text=alert.text)
        for alert in news.ended:
            self._log.info("alert_ended", alert=alert.name, rule=alert.rule, text=alert.text)
        await self._alerts.told([one.name for one in news.started], [one.name for one in news.ended])

    async def _alarms(self) -> tuple[list[Alarm], Exception | None]:
        """All that is wrong, and the last thing that could not be asked. One that is broken silences no other."""
        app, known = self._app, await self._alerts.known()
        now = await app.store.present()
        states = await self._figures.states()
        alarms, problem = list[Alarm](), None

        async def of_lane(lane: Lane) -> Sequence[Alarm]:
            return evaluate(await self._facts(lane, now, states.get(lane.name), known), self._limits)

        async def of_workers() -> Sequence[Alarm]:
            return lost_workers(await app.store.roster.seen(), now)

        async def of_kinds() -> Sequence[Alarm]:
            return failing_kinds(judge(await gather_causes(app.store, list(app.lanes.values()), states)))

        async def of_operations() -> Sequence[Alarm]:
            return halted_operations(await app.store.operations.open())

        asked: list[Callable[[], Awaitable[Sequence[Alarm]]]] = [partial(of_lane, lane) for lane in app.lanes.values()]
        asked += [of_workers, of_kinds, of_operations, *(system.alarms for system in app.systems.values())]
        for ask in asked:
            try:
                alarms += await ask()
            except Exception as error:
                problem = error
        return alarms, problem

    async def _facts(self, lane: Lane, now: datetime, states: States | None, known: frozenset[str]) -> LedgerFacts:
        start = (now - FAILED_SPAN).replace(second=0, microsecond=0)
        sums = await self._figures.sums([lane.counted_as], start)
        groups = await self._figures.groups([lane.name], limit=GROUPS_MAX)
        return LedgerFacts(
            ledger=lane.name,
            now=now,
            done=int(sums["done"]),
            failed=int(sums["dead"]),
            things="tasks" if lane.headcount is None else lane.headcount.things,
            waiting=0 if states is None else states.amounts[State.WAITING],
            oldest_due=await (await lane.ledger()).oldest_due(),
            groups=groups,
            tells_deaths=lane.name in self._tells_deaths,
            known=known,
        )
