"""Delivering one event to one endpoint: load both, sign, post, and say what the answer means."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import structlog
from standardwebhooks import Webhook

from redrive import Cancelled, PermanentError, RateLimitedError, Snoozed, Task, TransientError, minutes, seconds
from redrive.errors import LedgerAwayError, SettingsError
from redrive.http.outgoing import Answer, Outgoing, TargetRefusedError, UnresolvedError
from redrive.operator.json_views import instant_json
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers.endpoints import FAILING_MAX
from redrive.systems.triggers.ports import EndpointStore, Loads, StoreClock
from redrive.systems.triggers.values import Address, DueEvent, Endpoint

TIMEOUT_SECONDS = 15
AGAIN_SOON = seconds(1)
AGAIN_LATER = minutes(1)
RETRIED_STATUSES = frozenset({408, 425, 429})


class Deliverer:
    """The handler of the lane of deliveries."""

    def __init__(
        self,
        loads: Loads,
        endpoints: EndpointStore,
        clock: StoreClock,
        outgoing: Outgoing,
        keeper: SecretKeeper,
        *,
        retry_all: bool,
        retry_after_max: timedelta,
    ) -> None:
        self._loads = loads
        self._endpoints = endpoints
        self._clock = clock
        self._keeper = keeper
        self._outgoing = outgoing
        self._retry_all = retry_all
        self._retry_after_max = retry_after_max
        self._log: Any = structlog.get_logger(system="triggers")
        self._under_way = 0
        self.idle = asyncio.Event()
        """Set while this process is delivering nothing."""
        self.idle.set()

    async def deliver(self, task: Task) -> Cancelled | Snoozed | None:
        """Post the event, or say why there is nothing to post any more."""
        self._under_way += 1
        self.idle.clear()
        try:
            return await self._deliver(task.payload)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.idle.set()

    async def _deliver(self, facts: Mapping[str, Any]) -> Cancelled | Snoozed | None:
        with structlog.contextvars.bound_contextvars(correlation_id=facts["correlation_id"]):
            try:
                event, endpoint = await self._loads.load(
                    Address(facts["event_id"], facts["user_id"], facts["endpoint_id"])
                )
            except LedgerAwayError as error:
                return Snoozed(AGAIN_SOON, str(error))  # nothing was sent, so nothing is charged
            if event is None or event.acknowledged_at is not None:
                return Cancelled("the event was acknowledged" if event is not None else "the event was deleted")
            if endpoint is None:
                return Cancelled("the endpoint was deleted")
            if not endpoint.enabled:
                raise PermanentError("the endpoint is disabled: enable it and retry the event")
            try:
                await self._post(event, endpoint)
            except (
                SettingsError
            ) as error:  # without its key nothing was signed and sent: the operator's fault, not the endpoint's
                self._log.error("secret_unreadable", endpoint_id=endpoint.id, error=str(error))
                return Snoozed(AGAIN_LATER, str(error))
        return None

    async def _post(self, event: DueEvent, endpoint: Endpoint) -> None:
        try:
            answer = await self.send(event.id, body_of(event), endpoint, event.correlation_id)
            self._judge(answer, endpoint)
        except SettingsError:
            raise
        except Exception as error:
            await self._failed(endpoint, error)
            raise
        # It was delivered: a note that cannot be written now is not worth a second delivery.
        with suppress(LedgerAwayError):
            await self._endpoints.note(endpoint, delivered=True)

    async def send(self, id: str, body: bytes, endpoint: Endpoint, correlation_id: str) -> Answer:
        """Sign and post a body. What goes wrong on the way is raised as the class of failure that it is."""
        headers = {
            "Content-Type": "application/json",
            "X-Correlation-ID": correlation_id,
            **sign(id, body, [self._keeper.open(stored) for stored in endpoint.secrets(self._clock.now())]),
        }
        limit = timedelta(seconds=endpoint.policy.get("timeout_seconds", TIMEOUT_SECONDS))
        try:
            return await self._outgoing.post(endpoint.url, body, headers, time_limit=limit)
        except TargetRefusedError as error:
            raise self._final(str(error), endpoint) from error
        except UnresolvedError as error:
            raise TransientError(str(error)) from error
        except TimeoutError as error:
            raise TransientError(f"no complete answer within {limit.total_seconds():g} s") from error
        except httpx.TimeoutException as error:
            raise TransientError(f"no answer in time ({type(error).__name__})") from error
        except httpx.TransportError as error:
            raise TransientError(f"the connection failed ({type(error).__name__}: {error})") from error

    def _judge(self, answer: Answer, endpoint: Endpoint) -> None:
        """Raise for an answer that is not a success."""
        status = answer.status
        if 200 <= status < 300:
            return
        said = f"the endpoint answered {status}"
        patience = self._bounded(retry_after(answer.headers.get("Retry-After")), endpoint)
        if status == 429:
            raise RateLimitedError(said, retry_after=patience)
        if status in RETRIED_STATUSES or status >= 500:
            raise TransientError(said, retry_after=patience)
        raise self._final(said, endpoint, gone=status == 410, patience=patience)

    def _bounded(self, patience: timedelta | None, endpoint: Endpoint) -> timedelta | None:
        """What an answer asks for, up to what its endpoint's owner lets it have; without a word of theirs, the longest wait."""
        limit = endpoint.policy.get("retry_after_max_seconds")
        most = self._retry_after_max if limit is None else timedelta(seconds=limit)
        return None if patience is None else min(patience, most)

    def _final(
        self, said: str, endpoint: Endpoint, *, gone: bool = False, patience: timedelta | None = None
    ) -> Exception:
        retry_all = endpoint.policy.get("retry_all")
        if self._retry_all if retry_all is None else retry_all:
            return TransientError(said, retry_after=patience)
        return EndpointGoneError(said) if gone else PermanentError(said)

    async def _failed(self, endpoint: Endpoint, error: Exception) -> None:
        """Keep the endpoint's health; switch it off where it is gone or has only failed for days."""
        reason = failing = None
        if isinstance(error, EndpointGoneError):
            reason = "it answered 410 Gone"
        elif endpoint.failing_since is not None and self._clock.now() - endpoint.failing_since >= FAILING_MAX:
            failing = endpoint.failing_since
            reason = f"every delivery has failed for {FAILING_MAX.days} days"
        with suppress(LedgerAwayError):
            await self._endpoints.note(endpoint, delivered=False)
            if reason is not None and await self._endpoints.disable(endpoint, reason, failing_since=failing):
                self._log.warning("endpoint_disabled", endpoint_id=endpoint.id, user_id=endpoint.user_id, reason=reason)


class EndpointGoneError(PermanentError):
    """The endpoint says that it is gone for good."""


def body_of(event: DueEvent) -> bytes:
    """The body of a delivery: the same bytes on every try."""
    head = f'{{"type":{json.dumps(event.event_type)},"timestamp":"{instant_json(event.created_at)}"'
    return f'{head},"data":{event.payload}}}'.encode()


def sign(id: str, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The headers of Standard Webhooks, with one signature for each secret and the time of this try."""
    now = datetime.now(UTC)
    text = body.decode()
    signatures = [Webhook(secret).sign(msg_id=id, timestamp=now, data=text) for secret in secrets]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def retry_after(header: str | None) -> timedelta | None:
    """The patience that an answer asks for, in seconds or as a date; None where it asks for none that can be read."""
    if header is None:
        return None
    try:
        return timedelta(seconds=max(0.0, float(header))) if header.strip().isdigit() else _until(header)
    except (OverflowError, ValueError):
        return None


def _until(date: str) -> timedelta:
    named = parsedate_to_datetime(date)
    named = named.replace(tzinfo=UTC) if named.tzinfo is None else named
    return max(named - datetime.now(UTC), timedelta(0))
