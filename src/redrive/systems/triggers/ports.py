"""What triggers asks of the store that keeps its events and endpoints: promises, and values in and out.

There are two: `sql/` on SQLite and PostgreSQL, `aws/` on DynamoDB. Whatever stands above them, the routes, the deliveries and the
pages, knows this file alone. Every call may raise `LedgerAwayError`, where the store cannot be reached now.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from redrive.access.keys import ApiKey
from redrive.operator.cursors import Position
from redrive.systems.triggers.values import (
    Address,
    DeadDeliveries,
    DeliveryTry,
    DueEvent,
    Endpoint,
    EndpointState,
    FailedEvents,
    GivenUp,
    InboxPage,
    NewEvent,
    Notice,
    NotTaken,
    SeenEndpoint,
    Status,
    StoredEvent,
    Switched,
    Taken,
)


class StoreClock(Protocol):
    """The clock of the store."""

    def now(self) -> datetime:
        """The instant, in UTC."""
        ...


# --- events -------------------------------------------------------------------------------------------------------------


class Intake(Protocol):
    """Takes events in."""

    payload_bytes_max: int | None
    """How large a payload may be, where the store has a limit of its own."""

    async def take(self, events: Sequence[NewEvent]) -> Sequence[Taken | NotTaken]:
        """Store the events, each with a delivery for every enabled endpoint that wants it; when this returns they are durable.

        A user's second event with the same idempotency key is the first one. Where a store takes events one by one, some may not be
        taken; where it takes all or nothing, or if none was taken, it raises.
        """
        ...


class Inbox(Protocol):
    """Events that were taken in, as their owners see them. Another user's event is not there."""

    async def get(self, user_id: str, id: str) -> StoredEvent | None:
        """The user's event with this id."""
        ...

    async def page(
        self, user_id: str, status: str, *, event_type: str | None, after: str | None, limit: int
    ) -> InboxPage:
        """Events of a status, oldest first, from behind the event `after` on; fewer than `limit` where payloads are large."""
        ...

    async def attempts(
        self, user_id: str, *, event_id: str | None = None, endpoint_id: str | None = None, limit: int = 100
    ) -> list[DeliveryTry]:
        """Tries, newest first: the latest of an event's deliveries, or those of the latest deliveries to an endpoint."""
        ...

    async def totals(self) -> dict[str, int]:
        """How many events there are in each status, of all users."""
        ...

    async def acknowledge(self, user_id: str, id: str) -> str | None:
        """Acknowledge an event; the status that it has then, None if there is no such event."""
        ...

    async def delete(self, user_id: str, id: str) -> bool:
        """Forget an event, its deliveries and their history; whether it was there."""
        ...

    async def forget_delivered(self, before: datetime | None) -> int:
        """Delete some events that were delivered before an instant; how many there were, 0 when there are none left.

        Without an instant none is; but what somebody else has begun to delete, and left, is deleted either way.
        """
        ...

    async def waiting(self, id: str) -> list[tuple[str, datetime | None]]:
        """The deliveries of an event that wait: to which endpoint, and when each is due."""
        ...

    async def dead_deliveries(self, user_id: str, id: str) -> DeadDeliveries:
        """An event's deliveries that can be brought back."""
        ...

    async def failed(
        self,
        user_id: str,
        *,
        event_type: str | None,
        endpoint_id: str | None,
        since: datetime | None,
        until: datetime | None,
        limit: int,
    ) -> FailedEvents:
        """Failed events that can be brought back, oldest first, each with its dead deliveries."""
        ...


class Loads(Protocol):
    """Reads what is to be delivered; what many ask for at the same moment is read together."""

    async def load(self, address: Address) -> tuple[DueEvent | None, Endpoint | None]:
        """The event and the endpoint, each None if it is gone."""
        ...


# --- endpoints ----------------------------------------------------------------------------------------------------------


class EndpointStore(Protocol):
    """Where users' events go. Secrets are stored sealed, and come back so, but for one that was just given."""

    async def create(self, values: Mapping[str, Any]) -> Endpoint:
        """Store a new endpoint; `TooManyEndpointsError` beyond `ENDPOINTS_PER_USER_MAX`."""
        ...

    async def some_secret(self) -> str | None:
        """One of the secrets, as it is stored; None where there is none."""
        ...

    async def of_user(self, user_id: str) -> list[Endpoint]:
        """The user's endpoints, oldest first."""
        ...

    async def get(self, user_id: str, id: str) -> Endpoint | None:
        """The user's endpoint with this id."""
        ...

    async def change(self, user_id: str, id: str, values: Mapping[str, Any], *, rotate: bool) -> Endpoint | None:
        """Change an endpoint. With `rotate` its secret so far goes on signing for a while."""
        ...

    async def delete(self, user_id: str, id: str) -> bool:
        """Forget an endpoint and cancel what waits for it; whether it was there.

        What a crash leaves waiting is cancelled when it is due.
        """
        ...

    async def note(self, endpoint: Endpoint, *, delivered: bool) -> None:
        """Keep since when an endpoint has only failed; written only when that changes."""
        ...

    async def disable(self, endpoint: Endpoint, reason: str, *, failing_since: datetime | None = None) -> bool:
        """Switch an endpoint off and leave its owner a notice; False if it is off already.

        With `failing_since` only if it has failed ever since then: what was read before a delivery may be old by now.
        """
        ...

    async def notices(self, user_id: str) -> list[Notice]:
        """What the user must be told, newest first, at most `NOTICES_PER_USER_MAX`."""
        ...


class EndpointBook(Protocol):
    """The endpoints of all users, for operators. Secrets are not even read here."""

    async def seen(
        self, *, user: str | None, state: EndpointState | None, after: Position | None, limit: int
    ) -> tuple[list[SeenEndpoint], bool]:
        """EndpointStore, newest first, those of `disabled` and `failing` by since when; and whether there are more."""
        ...

    async def given_up(self, limit: int) -> tuple[list[GivenUp], int]:
        """EndpointStore that their failures have disabled, and not anybody, the oldest first; and how many more there are."""
        ...

    async def amount_given_up(self) -> int:
        """How many there are of those."""
        ...

    async def switch(self, ids: Sequence[str], *, enabled: bool, actor: str, reason: str) -> Switched:
        """Switch endpoints on or off, tell their owners, and write down who did it.

        Those that their failures have disabled are switched off all the same: a person has dealt with them then.
        """
        ...

    async def states(self, ids: Sequence[str]) -> dict[str, bool]:
        """Whether these endpoints are enabled; those that are not there are left out."""
        ...

    async def dead(self, endpoint_id: str, after: str, limit: int) -> list[str]:
        """Deliveries to an endpoint that have failed for good, in the order of their ids, from behind `after` on."""
        ...


# --- requests -----------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a request needs to be let in: its key, valid or not, and the event that it asks for, with its owner."""

    key: ApiKey | None
    event: tuple[str, Status] | None


class Looks(Protocol):
    """Reads keys, anew for each request; what many ask at the same moment is read together."""

    async def look(self, hashed: str, event_id: str | None) -> Found:
        """The key with this hash, and the status of an event, if one is asked for."""
        ...


class RateLimits(Protocol):
    """How many requests of each key's minute were given out to processes."""

    async def add(self, key_id: str, minute: int, amount: int) -> int:
        """Add to a key's minute; what it comes to then. Minutes that are long over are forgotten."""
        ...


class CursorSecret(Protocol):
    """What signs cursors, the same for all processes."""

    async def read(self) -> str:
        """The secret, in hexadecimal digits."""
        ...


# --- together -----------------------------------------------------------------------------------------------------------


async def _nothing_is_left() -> None:
    """All is written in the commits."""


async def _nobody_counts(_: Sequence[str]) -> Mapping[str, int]:
    """Where that would be to read all of it."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """All that triggers keeps, over one store."""

    clock: StoreClock
    intake: Intake
    inbox: Inbox
    loads: Loads
    endpoints: EndpointStore
    book: EndpointBook
    looks: Looks
    limits: RateLimits
    cursor_secret: CursorSecret
    flushed: Callable[[], Awaitable[None]] = _nothing_is_left
    """Comes back when all is written that is written after the commits: points of charts."""
    queue_parked: Callable[[], Awaitable[None]] = _nothing_is_left
    """Write `queued` where a gate keeps an event back that was received before, and never tried."""
    parked: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]] = _nobody_counts
    """How many due deliveries wait for endpoints that are held, counted up to `COUNTED_MAX`."""
