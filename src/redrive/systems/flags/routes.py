"""The flags over HTTP: whether they are on, open to all, and everything else with a key of scope `operator`.

Names, limits and forms are in `bodies`. Here a request that does not fit is a 400 with the code `VALIDATION_ERROR`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator

from redrive.http.errors import ApiError, ErrorAnswer
from redrive.http.guard import require
from redrive.systems.flags.errors import (
    FlagNotFoundError,
    FlagsError,
    InvalidChangeError,
    InvalidStateError,
    ScheduleNotFoundError,
)
from redrive.systems.flags.shapes import (
    KEY,
    BulkRequest,
    Evaluated,
    FlagBody,
    FlagChange,
    FlagList,
    Given,
    OverrideBody,
    OverrideList,
    OverrideRemoved,
    PreviewBody,
    RetriesBody,
    ScheduleBody,
    ScheduleList,
    ScheduleRequest,
    UserOverride,
    storable,
)
from redrive.systems.flags.system import Flags
from redrive.systems.flags.values import LISTED_MAX, PRODUCTION

BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0
STATUS: dict[type[FlagsError], tuple[int, str]] = {
    FlagNotFoundError: (404, "FLAG_NOT_FOUND"),
    ScheduleNotFoundError: (404, "SCHEDULE_NOT_FOUND"),
    InvalidChangeError: (400, "VALIDATION_ERROR"),
    InvalidStateError: (400, "INVALID_STATE"),
}

_operator = require("operator")
Operator = Annotated[Any, Depends(_operator)]
"""The caller's key; who it belongs to is recorded."""
NewKey = Annotated[str, Path(max_length=100, pattern=KEY, description="The flag's key")]
Key = Annotated[str, Path(max_length=100, description="The flag's key"), AfterValidator(storable)]
Environment = Annotated[str, Query(min_length=1, max_length=100), AfterValidator(storable)]
UserId = Annotated[str, Query(min_length=1, max_length=200, description="Whom to ask for"), AfterValidator(storable)]
ScheduleId = Annotated[int, Path(ge=1, lt=2**63, description="The schedule's id")]
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX, description="How many are shown at most")]
Offset = Annotated[int, Query(ge=0, le=1_000_000, description="How many are passed over")]


class _Bounded(Request):
    """A request whose body is read within limits, before anybody looks at it."""

    async def read(self) -> None:
        pieces, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                async for piece in self.stream():
                    size += len(piece)
                    if size > BODY_BYTES_MAX:
                        raise ApiError(413, "BODY_TOO_LARGE", f"send at most {BODY_BYTES_MAX:,} bytes")
                    pieces.append(piece)
        except TimeoutError:
            raise ApiError(408, "BODY_TOO_SLOW", f"send the body within {BODY_SECONDS_MAX:.0f} s") from None
        self._body = b"".join(pieces)


class FlagsRoute(APIRoute):
    """A route of the flags: bodies are bounded, and what is refused has the codes of the flags."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            bounded = _Bounded(request.scope, request.receive)
            await bounded.read()
            try:
                return await handle(bounded)
            except RequestValidationError as error:
                raise _misfit(error) from None
            except HTTPException as error:  # a body that cannot even be taken apart
                raise ApiError(error.status_code, "VALIDATION_ERROR", error.detail, headers=error.headers) from None
            except FlagsError as error:
                status, code = STATUS[type(error)]
                raise ApiError(status, code, str(error)) from None

        return answer


class AdminRoute(FlagsRoute):
    """A route for operators: whoever has no key is refused before a byte of the body is read."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """See `APIRoute.get_route_handler`."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            await _operator(request, request.headers.get("X-API-Key"))
            return await handle(request)

        return answer


def _misfit(error: RequestValidationError) -> ApiError:
    """What does not fit, without the input: that may be large. The names of fields may hold what UTF-8 cannot."""
    details = [
        {
            "where": [str(part).encode("utf-8", "replace").decode() for part in one["loc"]],
            "problem": str(one["msg"]).removeprefix("Value error, "),
        }
        for one in error.errors()
    ]
    where, problem = ".".join(details[0]["where"][1:])[:200], details[0]["problem"]
    return ApiError(400, "VALIDATION_ERROR", f"{where}: {problem}" if where else str(problem), details=details)


def make_router(flags: Flags) -> APIRouter:
    """All routes of the flags."""
    refused = refusals({400: "It does not fit (`VALIDATION_ERROR`)", 503: "The store cannot be reached now"})
    guarded = refused | refusals(
        {
            400: "It does not fit (`VALIDATION_ERROR`) or cannot be done (`INVALID_STATE`)",
            401: "Without a valid key",
            403: "The key lacks the scope `operator`",
            404: "No such flag (`FLAG_NOT_FOUND`) or schedule (`SCHEDULE_NOT_FOUND`)",
            413: "The body is too large",
        }
    )
    # FastAPI would promise a 422 that never comes, unless 4XX is spoken for.
    rest = refusals({"4XX": "Refused"})
    config = APIRouter(prefix="/api/config/flags", tags=["flags"], route_class=FlagsRoute, responses=refused | rest)
    admin = APIRouter(
        prefix="/api/admin/flags",
        tags=["flags admin"],
        route_class=AdminRoute,
        dependencies=[Depends(_operator)],
        responses=guarded | rest,
    )
    _add_config(config, flags)
    _add_flags(admin, flags)
    _add_users(admin, flags)
    _add_schedules(admin, flags)
    both = APIRouter()
    both.include_router(config)
    both.include_router(admin)
    return both


def refusals(why: Mapping[int | str, str]) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route by their status, for its description."""
    return {
        status: {"model": ErrorAnswer, "description": text, "content": {"application/json": {"example": _REFUSED}}}
        for status, text in why.items()
    }


_REFUSED = {
    "error": {
        "code": "INVALID_STATE",
        "message": "schedule 17 is applied for good: only one that waits can be cancelled",
        "details": None,
        "timestamp": "2026-12-01T08:05:00.000000Z",
        "request_id": "6f1c2b7d",
    }
}


def _add_config(router: APIRouter, flags: Flags) -> None:
    @router.get("", summary="Which flags are on", responses={200: {"content": _MAP_EXAMPLE}})
    async def all_flags(environment: Environment = PRODUCTION, user_id: UserId | None = None) -> dict[str, bool]:
        """Open to all. Every flag of the environment by its key, and whether it is on for this user."""
        return await flags.all_enabled(environment=environment, user_id=user_id)

    @router.get("/{key}", summary="Whether one flag is on")
    async def one_flag(key: Key, environment: Environment = PRODUCTION, user_id: UserId | None = None) -> Evaluated:
        """Open to all. A flag that does not exist is off."""
        enabled = await flags.is_enabled(key, environment=environment, user_id=user_id)
        return Evaluated(flag_key=key, environment=environment, enabled=enabled)


_MAP_EXAMPLE = {"application/json": {"example": {"new-checkout": True, "dark-mode": False}}}


def _add_flags(router: APIRouter, flags: Flags) -> None:
    @router.get("", summary="The flags of an environment")
    async def list_flags(
        environment: Environment = PRODUCTION, limit: Limit = LISTED_MAX, offset: Offset = 0
    ) -> FlagList:
        """By their keys."""
        found = await flags.all_flags(environment=environment, limit=limit, offset=offset)
        return FlagList(environment=environment, flags=[FlagBody.of(flag) for flag in found])

    @router.get("/{key}", summary="A flag")
    async def get_flag(key: Key, environment: Environment = PRODUCTION) -> FlagBody:
        """As it stands, percentage and all."""
        return FlagBody.of(await flags.get(key, environment=environment))

    @router.put(
        "/{key}", summary="Create or change a flag", responses={201: {"model": FlagBody, "description": "It is new"}}
    )
    @router.post(
        "/{key}", summary="Create or change a flag", responses={201: {"model": FlagBody, "description": "It is new"}}
    )
    async def put_flag(
        key: NewKey, change: FlagChange, who: Operator, response: Response, environment: Environment = PRODUCTION
    ) -> FlagBody:
        """What is left out stays as it is. Failed schedules that wait to set the same again end as superseded."""
        flag, created = await flags.put(
            key, environment=environment, actor=who.owner, enabled=change.enabled,
            rollout_percentage=change.rollout_percentage, description=change.description,
        )  # fmt: skip
        response.status_code = 201 if created else 200
        return FlagBody.of(flag)

    @router.delete("/{key}", summary="Delete a flag", status_code=204)
    async def delete_flag(key: Key, who: Operator, environment: Environment = PRODUCTION) -> None:
        """With its overrides. Its schedules stay to be seen, and fail for good when they are due."""
        await flags.delete(key, actor=who.owner, environment=environment)


def _add_users(router: APIRouter, flags: Flags) -> None:
    @router.get("/{key}/users", summary="The overrides of a flag")
    async def list_users(
        key: Key, environment: Environment = PRODUCTION, limit: Limit = LISTED_MAX, offset: Offset = 0
    ) -> OverrideList:
        """By user."""
        found = await flags.overrides(key, environment=environment, limit=limit, offset=offset)
        return OverrideList(flag_key=key, environment=environment, users=[OverrideBody.of(one) for one in found])

    @router.post("/{key}/users", summary="Include or exclude a user", status_code=201)
    async def put_user(
        key: Key, override: UserOverride, who: Operator, environment: Environment = PRODUCTION
    ) -> OverrideBody:
        """Whatever the percentage says; but a flag that is off is off for all. The last word counts."""
        put = await flags.put_override(
            key, override.user_id, override.override_type,
            reason=override.reason, actor=who.owner, environment=environment,
        )  # fmt: skip
        return OverrideBody.of(put)

    @router.delete("/{key}/users", summary="Take a user's override away")
    async def delete_user(
        key: Key, user_id: UserId, who: Operator, environment: Environment = PRODUCTION
    ) -> OverrideRemoved:
        """The percentage speaks for the user again."""
        removed = await flags.delete_override(key, user_id, actor=who.owner, environment=environment)
        return OverrideRemoved(removed=removed)


def _add_schedules(router: APIRouter, flags: Flags) -> None:
    @router.post("/{key}/schedule", summary="Plan a change", status_code=201)
    async def schedule(
        key: Key, request: ScheduleRequest, who: Operator, environment: Environment = PRODUCTION
    ) -> ScheduleBody:
        """It takes effect at its time. If it fails it is tried again after 2, 4, 8 … minutes."""
        [made] = await flags.schedule(key, request.new(), actor=who.owner, environment=environment)
        return ScheduleBody.of(made)

    @router.post("/{key}/schedule/bulk", summary="Plan several changes", status_code=201)
    async def schedule_all(
        key: Key, request: BulkRequest, who: Operator, environment: Environment = PRODUCTION
    ) -> ScheduleList:
        """All of them or, if one cannot be as it is asked for, none."""
        new = [one.new() for one in request.schedules]
        made = await flags.schedule(key, *new, actor=who.owner, environment=environment)
        return ScheduleList(flag_key=key, environment=environment, schedules=[ScheduleBody.of(one) for one in made])

    @router.get("/{key}/schedule", summary="The schedules of a flag")
    async def list_schedules(
        key: Key, environment: Environment = PRODUCTION, limit: Limit = LISTED_MAX, offset: Offset = 0
    ) -> ScheduleList:
        """All, by their time; also those of a flag that was deleted since."""
        found = await flags.schedules(key, environment=environment, limit=limit, offset=offset)
        return ScheduleList(flag_key=key, environment=environment, schedules=[ScheduleBody.of(one) for one in found])

    @router.get("/{key}/schedule/preview", summary="The state of a flag at a time to come")
    async def preview(
        key: Key,
        at: Annotated[Given, Query(description="In ISO 8601 with a zone")],
        environment: Environment = PRODUCTION,
    ) -> PreviewBody:
        """If each schedule until then succeeds at its next try."""
        return PreviewBody.of(key, environment, await flags.foresee(key, at, environment=environment))

    @router.delete("/{key}/schedule/{id}", summary="Cancel a schedule")
    async def cancel(key: Key, id: ScheduleId, who: Operator, environment: Environment = PRODUCTION) -> ScheduleBody:
        """While it waits, for its time or for a retry; never afterwards."""
        return ScheduleBody.of(await flags.cancel(key, id, actor=who.owner, environment=environment))

    @router.get("/{key}/schedule/{id}/retries", summary="The tries of a schedule, past and to come")
    async def retries(key: Key, id: ScheduleId, environment: Environment = PRODUCTION) -> RetriesBody:
        """The times to come are exact: they are when it will be tried, if each try before fails."""
        return RetriesBody.of(await flags.retries(key, id, environment=environment))

    @router.post("/{key}/schedule/{id}/retry", summary="Bring back a schedule that failed for good")
    async def retry(key: Key, id: ScheduleId, who: Operator, environment: Environment = PRODUCTION) -> ScheduleBody:
        """Due now, with all its retries; who did it is recorded."""
        return ScheduleBody.of(await flags.retry(key, id, actor=who.owner, environment=environment))
