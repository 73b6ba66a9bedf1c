"""Triggers as functions of AWS Lambda: `api`, `deliver` and `sweep`, each called with an event and a context.

| function | called by | does |
| --- | --- | --- |
| `api` | the HTTP API, for each request | answers as `redrive serve` does |
| `deliver` | the event source, with up to ten messages of the queue | delivers what is due of their events, by the worker of every process |
| `sweep` | a schedule, every minute | finds what was lost, forgets what may go, counts events, calls people |

A container serves many invocations, one at a time. What is opened at the first is kept: one event loop, one application, its connections.
Between invocations the container stands still, so nothing may go on then: each invocation ends what it began. With less than `CLOSING`
left nothing is begun any more, and what does not end within `GRACE` is given back.

They are an entry, as the command line is.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from redrive.app import Redrive
from redrive.core.failure import describe_error
from redrive.errors import SettingsError, needs_extra
from redrive.ledgers.aws.handed import hand_over
from redrive.observe.logs import configure_logs
from redrive.running import Service
from redrive.settings import Settings, load
from redrive.wiring import observe_with_logs

with needs_extra("redrive.functions", "aws"):
    from redrive.systems.triggers import Triggers
    from redrive.systems.triggers.aws.settings import AwsSettings
    from redrive.systems.triggers.hosting import FUNCTION

CLOSING = timedelta(seconds=20)
"""With less time than this nothing new is begun: a delivery may take 15 s, and what came of it must be written."""
GRACE = timedelta(seconds=15)

T = TypeVar("T")
Event = Mapping[str, Any]


class Invocation(Protocol):
    """What Lambda tells of an invocation, as far as it is used here."""

    def get_remaining_time_in_millis(self) -> int:
        """How long it may still take."""
        ...


class Container:
    """What is kept between invocations."""

    def __init__(self) -> None:
        self.settings = load(Settings)
        url = load(AwsSettings).store_url
        if url is None:
            raise SettingsError("EVENTS_TABLE_NAME is missing: the functions keep events in DynamoDB and nowhere else")
        configure_logs(service=self.settings.service_name, level=self.settings.log_level, format="json")
        self.loop = asyncio.new_event_loop()
        self.app = Redrive(url)
        self.triggers = Triggers(self.app, hosting=FUNCTION)
        observe_with_logs(self.app)
        self.service = Service(self.app, self.settings, working=False)
        self.web: Any = None
        self._log: Any = structlog.get_logger(system="triggers")
        try:
            self.run(self.app.open())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something to its end, then write what was counted."""
        try:
            return self.loop.run_until_complete(work)
        finally:
            self.loop.run_until_complete(self.triggers.flush())

    def answer(self, event: Event, context: Invocation) -> dict[str, Any]:
        """Answer a request."""
        asyncio.set_event_loop(self.loop)  # mangum looks for it there
        if self.web is None:
            from mangum import Mangum

            from redrive.web.app import make_web

            # Here alone: it makes the first key, and nobody else may touch keys.
            self.run(self.service.open())
            # With a lifespan the application would be opened and closed for every request.
            self.web = Mangum(make_web(self.service), lifespan="off")
        try:
            answer: dict[str, Any] = self.web(event, context)
        finally:
            self.loop.run_until_complete(self.triggers.flush())
        return answer

    async def work_off(
        self, messages: Sequence[tuple[str, str]], context: Invocation, *, sweeps: bool = False
    ) -> list[str]:
        """Work off messages, (id, body), and perhaps sweep; the ids of those that must come again."""
        lane = self.triggers.lane
        handed, queue = hand_over(await lane.ledger(), messages, is_closing=partial(is_closing, context), sweeps=sweeps)
        part = lane.with_own_handlers(handed)
        part.handlers = lane.handlers
        worker = replace(self.settings.worker(), grace=GRACE)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, (left(context) - CLOSING).total_seconds())):
                await self.app.work_off(part, worker)
        return queue.unheeded

    async def sweep(self, context: Invocation) -> None:
        """Find what was lost, and do what a service does beside its work. One chore that fails keeps no other from its turn."""
        for name, chore in (
            ("sweep", partial(self.work_off, (), context, sweeps=True)),
            ("forget", self.triggers.forget),
            ("count", self.triggers.tell_totals),
            ("house", self.service.keep_house),
        ):
            if is_closing(context):
                return
            try:
                await chore()
            except Exception as error:  # the next one comes in a minute
                self._log.error("chore_failing", chore=name, error=describe_error(error))

    def close(self) -> None:
        """Let go of everything."""
        self.loop.run_until_complete(self.service.close_all())
        self.loop.run_until_complete(self.app.close())
        self.loop.close()


def left(context: Invocation) -> timedelta:
    """How long an invocation may still take."""
    return timedelta(milliseconds=context.get_remaining_time_in_millis())


def is_closing(context: Invocation) -> bool:
    """Whether it is too late to begin with anything."""
    return left(context) < CLOSING


_kept: list[Container] = []


def container() -> Container:
    """The one of this process. If it cannot be opened, the next invocation tries again."""
    if not _kept:
        _kept.append(Container())
    return _kept[0]


def api(event: Event, context: Invocation) -> dict[str, Any]:
    """Answer a request of the HTTP API."""
    return container().answer(event, context)


def deliver(event: Event, context: Invocation) -> dict[str, Any]:
    """Deliver what is due of the events that these messages name.

    A delivery that fails is no failed message: its retry stands in the event. Only messages that cannot be read, or whose claim
    could not be written, come again.
    """
    kept = container()
    messages = [(record["messageId"], record["body"]) for record in event["Records"]]
    again = kept.run(kept.work_off(messages, context))
    return {"batchItemFailures": [{"itemIdentifier": id_} for id_ in again]}


def sweep(event: Event, context: Invocation) -> None:  # noqa: ARG001 - a schedule has nothing to say
    """Find what was lost: events whose message was lost, and claims whose worker was."""
    kept = container()
    kept.run(kept.sweep(context))
