"""A dead letter, read: where it failed, why and how often, which story it belongs to, and what it was before it died.

The broker keeps a record of deaths in the header `x-death`, but a message may also have been published by hand, by a framework, or by
somebody who means harm. Whatever it holds, a `DeadLetter` comes out.
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from aiormq.abc import DeliveredMessage

from redrive.operator.words import safe_text
from redrive.systems.relay import headers as amqp
from redrive.systems.relay.message import COUNT_MAX
from redrive.systems.relay.rules import DeadLetterFacts, Rules, text_of
from redrive.systems.relay.settings import QUEUE_BYTES_MAX
from redrive.systems.relay.tables import MESSAGE_ID_CHARS_MAX

X_DEATH = "x-death"
FIRST_QUEUE = "x-first-death-queue"
_RECORD = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")
"""How headers begin that the broker adds to a dead letter."""
REASON_CHARS_MAX = 100
PUBLISHED = "published"
"""The reason of a message that died in no queue: somebody published it where dead letters go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What the broker has on record."""

    queue: str
    """The queue in which it died first: where it came from, and goes back to."""
    reason: str
    """Why it died there: rejected, expired, maxlen or delivery_limit."""
    deaths: int
    """How often it died, in all queues together."""
    is_only: bool
    """Whether it was sent to this queue by its name and to no other, each time that it died there. If not, there may be copies."""
    is_by_name: bool
    """Whether it was so once at least: the relay sends so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that failed."""

    message_id: str
    body: bytes
    retry_count: int
    trouble: DeadLetterFacts
    is_placed: bool
    """Whether it is known which queue it failed in. If not, it cannot be retried."""
    headers: dict[str, Any]
    """What it had before it died."""
    content_type: str | None
    properties: dict[str, Any]

    @property
    def error_reason(self) -> str:
        """What people read."""
        trouble = self.trouble
        return (
            safe_text(trouble.error) if trouble.error else f"{trouble.reason} in {trouble.queue}, without an error text"
        )


def read_death(headers: Mapping[str, Any]) -> Death | None:
    """What the broker has on record; None if there is nothing, or nothing that can be read."""
    entries = headers.get(X_DEATH)
    if not isinstance(entries, list | tuple):
        return None
    known = [one for one in entries if isinstance(one, Mapping) and _is_queue(one.get("queue"))]
    if not known:
        return None
    # The latest is the first in the list. Where a message went in a circle the queue that it came from is not the last, but the
    # broker notes it elsewhere too.
    first = headers.get(FIRST_QUEUE)
    there = next((one for one in known if one["queue"] == first), known[-1])
    reason = there.get("reason")
    by_name = [_is_by_name(one) for one in known if one["queue"] == there["queue"]]
    return Death(
        queue=there["queue"],
        reason=reason[:REASON_CHARS_MAX] if _is_text(reason) else "",
        deaths=sum(_count(one.get("count")) for one in known),
        is_only=all(by_name),
        is_by_name=any(by_name),
    )


def _is_by_name(entry: Mapping[str, Any]) -> bool:
    """Whether the default exchange brought it, and to this queue alone.

    The record has all keys but those of `BCC`, and a queue that was reached so has the keys of the others there, not its own.
    """
    return entry.get("exchange") == "" and entry.get("routing-keys") == [entry["queue"]]


def read_letter(message: DeliveredMessage, rules: Rules, *, consumed: str) -> DeadLetter:
    """The dead letter that was taken from the queue `consumed`."""
    given = message.header.properties
    headers: Mapping[str, Any] = given.headers or {}
    death = read_death(headers)
    place = death.queue if death is not None else _first(headers, rules.queue_headers)
    guesses = (place, message.routing_key, consumed)
    queue = next(guess for guess in guesses if _is_queue(guess))
    return DeadLetter(
        message_id=_story(headers, given.message_id, death, queue),
        body=message.body,
        retry_count=_count(headers.get(amqp.COUNT)),
        trouble=DeadLetterFacts(
            queue=queue,
            reason=PUBLISHED if death is None else death.reason,
            error=_first(headers, rules.error_headers) or "",
            deaths=0 if death is None else death.deaths,
            headers=headers,
        ),
        is_placed=queue == place,
        headers=_before(headers, rules),
        content_type=given.content_type,
        properties=amqp.properties_of(given),
    )


def _before(headers: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """The headers without what was added after the failure: they would pass for news when it fails again."""
    added = {*rules.error_headers, *rules.queue_headers, *amqp.NOTES}
    kept = amqp.sendable(amqp.kept(headers))
    return {name: value for name, value in kept.items() if not name.startswith(_RECORD) and name not in added}


def _story(headers: Mapping[str, Any], message_id: Any, death: Death | None, queue: str) -> str:
    """The id that names the message in all its rounds."""
    # What the relay sends goes to one queue by its name. Of what came another way somebody has copied our headers on.
    ours = headers.get(amqp.MESSAGE_ID) if death is None or death.is_by_name else None
    if amqp.SCHEDULER in headers and _is_id(ours):
        return ours  # it went out from the relay under this id
    named = next((one for one in (ours, message_id) if _is_id(one)), None)
    if named is None:
        # Not made from what it holds: two that hold the same are two messages, and one would pass for a copy of the other.
        return str(uuid.uuid4())
    if death is not None and death.is_only and "CC" not in headers:
        return named
    # There may be copies in several queues: each is a story of its own.
    whole = f"{queue}:{named}"
    return whole if _is_id(whole) else f"{queue}:{hashlib.sha256(named.encode()).hexdigest()}"


def _first(headers: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these headers that is there and holds a text."""
    found = (text_of(headers[name]) for name in names if headers.get(name) is not None)
    return next((text for text in found if text), None)


def _is_id(given: Any) -> TypeGuard[str]:
    return _is_text(given) and len(given) <= MESSAGE_ID_CHARS_MAX


def _is_queue(given: Any) -> TypeGuard[str]:
    return _is_text(given) and len(given.encode()) <= QUEUE_BYTES_MAX


def _is_text(given: Any) -> TypeGuard[str]:
    if not isinstance(given, str) or not given or "\0" in given:
        return False
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def _count(given: Any) -> int:
    """A number that a stranger gave, as one that can be used."""
    return min(max(given, 0), COUNT_MAX) if isinstance(given, int) and not isinstance(given, bool) else 0
