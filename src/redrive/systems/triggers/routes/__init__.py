"""The routes of triggers: `/v1` for users with a key, `/api/triggers` for operators."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Security
from fastapi.security import APIKeyHeader

from redrive.access.ports import Keys
from redrive.http.outgoing import Guard
from redrive.lane import Lane
from redrive.systems.triggers.access import PREFIX, Entrance, route_class
from redrive.systems.triggers.cursor import Cursors
from redrive.systems.triggers.desk import EndpointDesk
from redrive.systems.triggers.held import EndpointGates
from redrive.systems.triggers.hosting import Hosting
from redrive.systems.triggers.limits import Limiter, Quota
from redrive.systems.triggers.ports import Stores
from redrive.systems.triggers.routes.desk import make_desk_routes
from redrive.systems.triggers.routes.endpoints import add_endpoint_routes
from redrive.systems.triggers.routes.events import Ingest, add_event_routes, status_route
from redrive.systems.triggers.routes.keys import add_key_routes
from redrive.systems.triggers.work import Deliverer

_header = APIKeyHeader(
    name="X-API-Key", auto_error=False, description="A key of a user: `redrive keys create --user NAME --scope …`"
)


def make_routes(
    *, stores: Stores, keys: Keys, deliverer: Deliverer, guard: Guard, lane: Lane, desk: EndpointDesk, gates: EndpointGates,
    rate_limit_per_minute: int, deliveries_per_minute: int, queried: Callable[[], None], hosting: Hosting,
) -> list[Any]:  # fmt: skip
    """All routes, over the parts that they need; `queried` is called for each look at a status."""
    clock = stores.clock
    gate = Entrance(stores.looks, clock, Limiter(stores.limits, clock, rate_limit_per_minute, hosting))
    cursors = Cursors(stores.cursor_secret)
    router = APIRouter(prefix=PREFIX, route_class=route_class(gate), dependencies=[Security(_header)])
    quota = Quota(stores.limits, clock, deliveries_per_minute, hosting)
    ingest = Ingest(gate, stores.intake, quota)
    add_event_routes(router, ingest, stores.inbox, cursors, lane, gates, hosting)
    add_endpoint_routes(router, stores, guard, deliverer, gates)
    add_key_routes(router, keys, clock, cursors)
    return [status_route(gate, gates, queried), ingest.route(), router, make_desk_routes(desk)]
