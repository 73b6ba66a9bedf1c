"""When a person must be called: rules over the figures, and the way to tell by mail, chat or webhook.

A rule is a name, a meaning and a function from the facts of a ledger to what is wrong there. It holds or it does not; that
each start and each end is told once is the business of `operator/alerts.py`, where it is written down.
"""

import asyncio
import logging
import threading
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from redrive.core.durations import format_duration
from redrive.core.failure import redact
from redrive.errors import MissingExtraError, SettingsError
from redrive.operator.figures import Group
from redrive.operator.operations import Operation
from redrive.operator.roster import WorkerSeen
from redrive.operator.verdict.values import Subject, Verdict, plain

EVERY = timedelta(seconds=15)
SEND_WITHIN = timedelta(seconds=20)
FAILED_SPAN = timedelta(minutes=5)
ENDED_MIN = 20
"""A share of fewer than this says nothing."""
NEW_SPAN = timedelta(minutes=15)
"""A group of dead tasks is new for so long."""
LOST_SPAN = timedelta(hours=1)
"""So long a worker that is lost is an alarm."""
FAILING_SPAN = timedelta(minutes=5)
"""Tries may fail for so long before a person is told: most of them are done with a retry."""
OWED_MAX = 20
"""Messages kept for an address that is away while others take them."""
ERROR_CHARS_MAX = 200
LINES_MAX = 20
"""Lines in one message; how many more there are is said in the last."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that is wrong as long as it is there. The name is what makes it one and the same thing."""

    name: str
    text: str
    rule: str = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From where on a rule holds. A depth of zero or a span of zero is never reached."""

    failed_share: float = 0.05
    oldest_due: timedelta = timedelta(minutes=5)
    depth: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What is known of a ledger."""

    ledger: str
    now: datetime
    done: int = 0
    failed: int = 0
    """How many have ended so lately; one that failed once and was then done has not failed."""
    things: str = "tasks"
    """What they are."""
    waiting: int = 0
    oldest_due: timedelta | None = None
    groups: Sequence[Group] = ()
    tells_deaths: bool = False
    """Whether any death is to be told, of whatever cause."""
    known: Collection[str] = ()
    """The names of alarms that have started and not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """What is looked for, and how."""

    name: str
    meaning: str
    find: Callable[[LedgerFacts, Limits], Iterable[tuple[str, str]]]
    """What is wrong: the rest of the alarm's name, and a sentence."""


def _failed_share(facts: LedgerFacts, limits: Limits) -> Iterator[tuple[str, str]]:
    ended = facts.done + facts.failed
    if ended >= ENDED_MIN and facts.failed > ended * limits.failed_share:
        share = facts.failed / ended * 100
        span = format_duration(FAILED_SPAN)
        limit = f"limit {limits.failed_share * 100:g}%"
        yield "", f"{share:.0f}% of {ended} {facts.things} that ended in {span} failed ({limit})"


def _oldest_due(facts: LedgerFacts, limits: Limits) -> Iterator[tuple[str, str]]:
    if limits.oldest_due and facts.oldest_due is not None and facts.oldest_due > limits.oldest_due:
        waits = format_duration(timedelta(seconds=round(facts.oldest_due.total_seconds())))
        yield "", f"the oldest due task has waited {waits} (limit {format_duration(limits.oldest_due)})"


def _depth(facts: LedgerFacts, limits: Limits) -> Iterator[tuple[str, str]]:
    if limits.depth and facts.waiting > limits.depth:
        yield "", f"{facts.waiting:,} tasks wait (limit {limits.depth:,})"


def _new_group(facts: LedgerFacts, _limits: Limits) -> Iterator[tuple[str, str]]:
    for group in facts.groups:
        is_new = facts.now - group.first_seen <= NEW_SPAN
        if group.amount and (is_new or alarm_name("new_group", facts.ledger, group.id) in facts.known):
            who = f"tasks of kind {group.kind}" if group.kind else "tasks"
            where = f" at {group.at}" if group.at else ""
            yield group.id, f"{who} die of a new cause: {redact(group.sample or group.text)[:ERROR_CHARS_MAX]}{where}"


def _dead(facts: LedgerFacts, _limits: Limits) -> Iterator[tuple[str, str]]:
    if facts.tells_deaths and facts.failed:
        amount = f"1 of the {facts.things}" if facts.failed == 1 else f"{facts.failed:,} {facts.things}"
        yield "", f"{amount} died in {format_duration(FAILED_SPAN)}"


RULES = (
    AlertRule(name="failed_share", meaning="too many tasks fail", find=_failed_share),
    AlertRule(name="oldest_due", meaning="due tasks are not run", find=_oldest_due),
    AlertRule(name="depth", meaning="too many tasks wait", find=_depth),
    AlertRule(name="new_group", meaning="tasks die of something new", find=_new_group),
    AlertRule(name="dead", meaning="a task died in a ledger where every death is an alert", find=_dead),
)
"""All rules over ledgers. Workers, kinds, operations and the store have rules of their own (`lost_worker`, `failing`, `operation`, `ledger_away`); what else is wrong, such as a disabled endpoint, systems say
themselves: `System.alarms`."""


def alarm_name(rule: str, ledger: str, rest: str = "") -> str:
    """The name of what a rule found."""
    return " ".join(part for part in (rule, ledger, rest) if part)


def evaluate(facts: LedgerFacts, limits: Limits) -> list[Alarm]:
    """All that is wrong in a ledger."""
    return [
        Alarm(alarm_name(rule.name, facts.ledger, rest), f"{facts.ledger}: {text}", rule.name)
        for rule in RULES
        for rest, text in rule.find(facts, limits)
    ]


def lost_workers(seen: Iterable[WorkerSeen], now: datetime) -> list[Alarm]:
    """Who is lost, and what it held. After an hour that is no news any more: what it held is back, or told of by other rules."""
    alarms = []
    for one in seen:
        if one.is_lost(now) and now - one.seen_at < LOST_SPAN:
            kinds = sorted({kind for kinds in one.holds.values() for kind in kinds})
            tasks = "1 task" if one.held == 1 else f"{one.held:,} tasks"
            held = (
                f"it held {tasks} ({', '.join(kinds)}), which come back when their leases end"
                if one.held
                else "it held nothing then"
            )
            text = f"worker {one.name} is lost: its last sign of life was at {one.seen_at:%H:%M:%S} UTC, {held}"
            alarms.append(Alarm(alarm_name("lost_worker", one.name), text, "lost_worker"))
    return alarms


def failing_kinds(verdict: Verdict) -> list[Alarm]:
    """Kinds whose tries fail and go on failing, told before their tasks are dead. Quieter than the others: a retry mends most of it."""
    return [
        Alarm(alarm_name("failing", one.ledger or "", one.cause or ""), f"{one.ledger}: {plain(one.told)}", "failing")
        for one in verdict.troubles
        if one.subject is Subject.FAILING and verdict.at - one.since >= FAILING_SPAN
    ]


def halted_operations(operations: Iterable[Operation]) -> list[Alarm]:
    """Operations that stopped by themselves, until a person has done something about each."""
    return [
        Alarm(
            alarm_name("operation", one.id),
            f"{one.ledger}: operation {one.id} has halted with {one.tally.left:,} {'task' if one.tally.left == 1 else 'tasks'} to come: {redact(one.why)}",
            "operation",
        )
        for one in operations
        if one.halted_itself
    ]


def message(service: str, started: Sequence[str], ended: Sequence[str]) -> tuple[str, str]:
    """One message for all news of a moment: its title and its body."""
    parts = [f"{len(started)} new" if started else "", f"{len(ended)} over" if ended else ""]
    lines = [*(f"STARTED {text}" for text in started), *(f"ENDED {text}" for text in ended)]
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"and {len(lines) - LINES_MAX} more"]
    return f"{service}: {', '.join(part for part in parts if part)}", "\n".join(lines)


class Messenger:
    """Sends messages to URLs as apprise knows them: mailto://, slack://, json://, sns:// and a hundred more."""

    def __init__(self, urls: Sequence[str], *, within: timedelta = SEND_WITHIN) -> None:
        self._within = within
        # Its log lines may hold parts of URLs, and those hold secrets; what became of a message is told by us.
        logging.getLogger("apprise").addHandler(logging.NullHandler())
        logging.getLogger("apprise").propagate = False
        # It writes the path of every request at debug, and the secret of a webhook is its path.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what its plugins import
            self._addresses = [_Address(book) for book in _address_books(urls)]

    @property
    def owing(self) -> int:
        """How many addresses have not taken what others have."""
        return sum(bool(address.owed) for address in self._addresses)

    async def send(self, title: str, body: str) -> bool:
        """Whether any address took the message in time; the others are owed it.

        So one address that is away neither hides the message nor has it sent to the others again and again.
        """
        message = (title, body)
        taken = await asyncio.gather(*(address.send(message, self._within) for address in self._addresses))
        if any(taken):
            for address, took in zip(self._addresses, taken, strict=True):
                if not took:
                    address.owed.append(message)
        return any(taken)

    def catch_up(self) -> None:
        """Try again what is owed, without waiting for it."""
        for address in self._addresses:
            address.catch_up()


class _Address:
    """One address, in a thread of its own: a slow one holds nobody up but itself."""

    def __init__(self, apprise: Any) -> None:
        self._apprise = apprise
        self._thread: threading.Thread | None = None
        self._busy = False
        self.owed: deque[tuple[str, str]] = deque(maxlen=OWED_MAX)

    async def send(self, message: tuple[str, str], within: timedelta) -> bool:
        if self._busy:
            return False
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[bool] = loop.create_future()

        def deliver(outcome: bool) -> None:  # noqa: FBT001
            if not sent.done():
                sent.set_result(outcome)

        def run() -> None:
            outcome = self._post(message)
            if outcome:  # it may have come too late to be heard of, and be owed
                with suppress(ValueError):
                    self.owed.remove(message)
            self._busy = False
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, outcome)

        self._start(run)
        try:
            async with asyncio.timeout(within.total_seconds()):
                return await sent
        except TimeoutError:
            return False

    def catch_up(self) -> None:
        def run() -> None:
            while self.owed and self._post(self.owed[0]):
                self.owed.popleft()
            self._busy = False

        if self.owed and not self._busy:
            self._start(run)

    def _start(self, run: Callable[[], None]) -> None:
        # A daemon: one that hangs must not keep a stopping service alive.
        self._busy = True
        self._thread = threading.Thread(target=run, name="redrive-alerts", daemon=True)
        self._thread.start()

    def _post(self, message: tuple[str, str]) -> bool:
        try:
            return bool(self._apprise.notify(title=message[0], body=message[1]))
        except Exception:  # whatever a plugin raises, the message was not taken
            return False


def _address_books(urls: Sequence[str]) -> list[Any]:
    """One for each address: apprise tells of all that are in one only whether every one of them took a message."""
    try:
        import apprise
    except ModuleNotFoundError as error:
        raise MissingExtraError("ALERT_URLS", "service") from error
    books = []
    for number, url in enumerate(urls, 1):
        book = apprise.Apprise()
        if not book.add(url):
            raise SettingsError(
                f"ALERT_URLS cannot be used: number {number} is not an address that apprise knows, such as json://host/path; "
                "change it in the environment or in .env"
            )
        books.append(book)
    return books
