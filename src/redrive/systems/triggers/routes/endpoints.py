"""`/v1/endpoints`: where a user's events go."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from redrive.errors import TaskError
from redrive.http.errors import ApiError
from redrive.http.outgoing import Guard, TargetRefusedError, UnresolvedError
from redrive.operator.json_views import fields_json, instant_json
from redrive.systems.triggers import shapes as m
from redrive.systems.triggers.access import needs
from redrive.systems.triggers.endpoints import TooManyEndpointsError, new_secret
from redrive.systems.triggers.held import EndpointGates
from redrive.systems.triggers.ids import new_id, read_id
from redrive.systems.triggers.ports import Stores
from redrive.systems.triggers.routes.answers import attempts_json, invalid, not_found, owner_of, refusals, with_body
from redrive.systems.triggers.values import Endpoint, HeldEndpoint
from redrive.systems.triggers.work import Deliverer

EndpointId = Annotated[str, Path(description="The endpoint's id", examples=[m.ENDPOINT])]
TEST_BODY = b'{"type":"redrive.test","timestamp":"%s","data":{"message":"a test of this endpoint"}}'


def endpoint_json(endpoint: Endpoint, held: HeldEndpoint | None = None, *, secret: bool = False) -> dict[str, Any]:
    """An endpoint; its secret only where it was just made or changed."""
    shape = m.EndpointMade if secret else m.EndpointOut
    return fields_json(endpoint, shape.model_fields, endpoint_id=endpoint.id, held=held_json(held))


def held_json(held: HeldEndpoint | None) -> dict[str, Any] | None:
    """Why deliveries to an endpoint are kept back."""
    return None if held is None else fields_json(held, m.HeldOut.model_fields)


def add_endpoint_routes(
    router: APIRouter, stores: Stores, guard: Guard, deliverer: Deliverer, gates: EndpointGates
) -> None:
    """The routes of endpoints."""
    endpoints = stores.endpoints

    async def check(url: str) -> None:
        try:
            await guard.check(url)
        except (TargetRefusedError, UnresolvedError) as error:
            raise invalid(str(error), "body", "url") from None

    async def found(request: Request, endpoint_id: str) -> Endpoint:
        endpoint = await endpoints.get(owner_of(request), read_id(endpoint_id))
        if endpoint is None:
            raise not_found()
        return endpoint

    @router.post("/endpoints", status_code=201, tags=["endpoints"], response_model=m.EndpointMade,
                 responses=with_body(409))  # fmt: skip
    @needs("endpoints")
    async def create_endpoint(request: Request, given: m.EndpointIn) -> JSONResponse:
        """Subscribe a URL to events. The secret that signs them is shown now and not again."""
        await check(given.url)
        values = given.model_dump() | {"user_id": owner_of(request), "secret": given.secret or new_secret()}
        try:
            made = await endpoints.create(values)
        except TooManyEndpointsError as error:
            raise ApiError(409, "CONFLICT", str(error)) from None
        return JSONResponse(endpoint_json(made, secret=True), status_code=201)

    @router.get("/endpoints", tags=["endpoints"], response_model=m.Endpoints, responses=refusals())
    @needs("endpoints")
    async def list_endpoints(request: Request) -> JSONResponse:
        """All endpoints of the user, oldest first."""
        listed = await endpoints.of_user(owner_of(request))
        held = await gates.held([endpoint.id for endpoint in listed])
        return JSONResponse({"endpoints": [endpoint_json(endpoint, held.get(endpoint.id)) for endpoint in listed]})

    @router.get("/endpoints/{endpoint_id}", tags=["endpoints"], response_model=m.EndpointOut, responses=refusals(404))
    @needs("endpoints")
    async def get_endpoint(request: Request, endpoint_id: EndpointId) -> JSONResponse:
        """One endpoint."""
        endpoint = await found(request, endpoint_id)
        held = await gates.held([endpoint.id])
        return JSONResponse(endpoint_json(endpoint, held.get(endpoint.id)))

    @router.patch("/endpoints/{endpoint_id}", tags=["endpoints"], response_model=m.EndpointMade,
                  responses=with_body(404))  # fmt: skip
    @needs("endpoints")
    async def change_endpoint(request: Request, endpoint_id: EndpointId, given: m.EndpointChange) -> JSONResponse:
        """Change an endpoint. After a change of its secret both sign for 24 hours."""
        values = {
            name: value for name, value in given.model_dump(exclude={"rotate_secret"}).items() if value is not None
        }
        if given.rotate_secret and given.secret is None:
            values["secret"] = new_secret()
        if given.url is not None:
            await found(request, endpoint_id)  # no name is looked up for somebody else's endpoint
            await check(given.url)
        rotated = "secret" in values
        changed = await endpoints.change(owner_of(request), read_id(endpoint_id), values, rotate=rotated)
        if changed is None:
            raise not_found()
        held = await gates.held([changed.id])
        return JSONResponse(endpoint_json(changed, held.get(changed.id), secret=rotated))

    @router.delete("/endpoints/{endpoint_id}", status_code=204, tags=["endpoints"], response_class=Response,
                   responses=refusals(404))  # fmt: skip
    @needs("endpoints")
    async def delete_endpoint(request: Request, endpoint_id: EndpointId) -> Response:
        """Forget an endpoint; what waits for it is cancelled."""
        if not await endpoints.delete(owner_of(request), read_id(endpoint_id)):
            raise not_found()
        return Response(status_code=204)

    @router.post("/endpoints/{endpoint_id}/test", tags=["endpoints"], response_model=m.Tested, responses=refusals(404))
    @needs("endpoints")
    async def test_endpoint(request: Request, endpoint_id: EndpointId) -> JSONResponse:
        """Send a signed event of type `redrive.test`, once and now, and say what came back."""
        endpoint = await found(request, endpoint_id)
        started = time.monotonic()
        status, error = None, None
        now = stores.clock.now()
        body = TEST_BODY % str(instant_json(now)).encode()
        try:
            answer = await deliverer.send(new_id(now), body, endpoint, request.state.request_id)
            status = answer.status
            error = None if 200 <= status < 300 else f"the endpoint answered {status}"
        except TaskError as raised:
            error = str(raised)
        took = round(time.monotonic() - started, 6)
        return JSONResponse(
            {"delivered": error is None, "status_code": status, "error": error, "duration_seconds": took}
        )

    @router.get("/endpoints/{endpoint_id}/attempts", tags=["endpoints"], response_model=m.Attempts,
                responses=refusals(400, 404))  # fmt: skip
    @needs("endpoints")
    async def get_endpoint_attempts(
        request: Request, endpoint_id: EndpointId, limit: Annotated[int, Query(ge=1, le=100)] = 50
    ) -> JSONResponse:
        """The tries of the latest deliveries to this endpoint, newest first: of at most `limit` deliveries, `limit` tries."""
        endpoint = await found(request, endpoint_id)
        rows = await stores.inbox.attempts(owner_of(request), endpoint_id=endpoint.id, limit=limit)
        return JSONResponse({"attempts": attempts_json(rows)})

    @router.get("/notices", tags=["endpoints"], response_model=m.Notices, responses=refusals())
    @needs("endpoints")
    async def list_notices(request: Request) -> JSONResponse:
        """What the user must know, newest first: which endpoints others have switched, and why. The newest hundred are kept."""
        found = await endpoints.notices(owner_of(request))
        notices = [fields_json(one, m.NoticeOut.model_fields, timestamp=one.at) for one in found]
        return JSONResponse({"notices": notices})
