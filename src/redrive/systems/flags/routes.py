"""The flags over HTTP: whether they are on, open to all, and everything else with a key of scope `operator`.

Names, limits and forms are in `shapes`. Here a request that does not fit is a 400 with the code `VALIDATION_ERROR`. What operators
do across all flags takes ids and a reason, and answers how many changed, and of the others why not.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator

from redrive.http.body import read_body
from redrive.http.errors import CAPITALS, ApiError, ErrorAnswer, ErrorStyle, problems_of
from redrive.http.guard import KeyFirstRoute, require, require_unless_loopback
from redrive.systems.flags import shapes
from redrive.systems.flags.cache import FlagCache
from redrive.systems.flags.desk import CURSOR_CHARS_MAX, PAGE_SIZE, FlagDesk
from redrive.systems.flags.errors import (
    FlagNotFoundError,
    FlagsError,
    InvalidChangeError,
    InvalidStateError,
    ScheduleNotFoundError,
)
from redrive.systems.flags.intake import FlagIntake
from redrive.systems.flags.store import FlagStore
from redrive.systems.flags.values import LISTED_MAX, PRODUCTION, ScheduleStatus

BODY_BYTES_MAX = 64 * 1024
BODY_SECONDS_MAX = 30.0
STYLES = tuple(
    ErrorStyle(prefix=prefix, codes=CAPITALS, invalid_status=400)
    for prefix in ("/api/config/flags", "/api/admin/flags", "/api/flags")
)
"""The requirement has its codes in capitals, and 400 for what does not fit."""
STATUS: dict[type[FlagsError], tuple[int, str]] = {
    FlagNotFoundError: (404, "FLAG_NOT_FOUND"),
    ScheduleNotFoundError: (404, "SCHEDULE_NOT_FOUND"),
    InvalidChangeError: (400, "VALIDATION_ERROR"),
    InvalidStateError: (400, "INVALID_STATE"),
}

_operator = require("operator")
Operator = Annotated[Any, Depends(_operator)]
"""The caller's key; who it belongs to is recorded."""
NewKey = Annotated[str, Path(max_length=100, pattern=shapes.KEY, description="The flag's key")]
Key = Annotated[str, Path(max_length=100, description="The flag's key"), AfterValidator(shapes.storable)]
Environment = Annotated[str, Query(min_length=1, max_length=100), AfterValidator(shapes.storable)]
UserId = Annotated[
    str, Query(min_length=1, max_length=200, description="Whom to ask for"), AfterValidator(shapes.storable)
]
ScheduleId = Annotated[int, Path(ge=1, lt=2**63, description="The schedule's id")]
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX, description="How many are shown at most")]
OfFlag = Annotated[str, Query(max_length=100, description="Of this flag only"), AfterValidator(shapes.storable)]
Offset = Annotated[int, Query(ge=0, le=1_000_000, description="How many are passed over")]


class _FlagsAnswers(APIRoute):
    """Bodies are bounded, and what is refused has the codes of the flags."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            await read_body(request, BODY_BYTES_MAX, seconds_max=BODY_SECONDS_MAX)
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise _misfit(error) from None
            except FlagsError as error:
                status, code = STATUS[type(error)]
                raise ApiError(status, code, str(error)) from None

        return answer


class FlagsRoute(KeyFirstRoute, _FlagsAnswers):
    """A route of the flags."""


def _misfit(error: RequestValidationError) -> ApiError:
    """What does not fit; the first of it in the message."""
    details = [one | {"problem": one["problem"].removeprefix("Value error, ")} for one in problems_of(error)]
    where, problem = ".".join(details[0]["where"][1:])[:200], details[0]["problem"]
    return ApiError(400, "VALIDATION_ERROR", f"{where}: {problem}" if where else str(problem), details=details)


def make_routers(cache: FlagCache, store: FlagStore, intake: FlagIntake, desk: FlagDesk) -> list[APIRouter]:
    """All routes of the flags: for everybody, for administrators of flags, and for operators across all of them."""
    # FastAPI would promise a 422 that never comes, unless 4XX is spoken for.
    refused = _refusals(
        {400: "It is not valid (`VALIDATION_ERROR`)", 503: "The store cannot be reached now", "4XX": "Refused"}
    )
    guarded = refused | _refusals(
        {401: "Without a valid key", 403: "The key lacks the scope", 413: "The body is too large"}
    )
    of_flags = guarded | _refusals(
        {
            400: "It is not valid (`VALIDATION_ERROR`) or cannot be done (`INVALID_STATE`)",
            404: "No such flag (`FLAG_NOT_FOUND`) or schedule (`SCHEDULE_NOT_FOUND`)",
        }
    )
    config = APIRouter(prefix="/api/config/flags", tags=["flags"], route_class=FlagsRoute, responses=refused)
    admin = APIRouter(
        prefix="/api/admin/flags", tags=["flags admin"], route_class=FlagsRoute, responses=of_flags,
        dependencies=[Depends(_operator)],
    )  # fmt: skip
    looking = APIRouter(
        prefix="/api/flags", tags=["flags operator"], route_class=FlagsRoute, responses=guarded,
        dependencies=[Depends(require_unless_loopback("viewer"))],
    )  # fmt: skip
    acting = APIRouter(prefix="/api/flags", tags=["flags operator"], route_class=FlagsRoute, responses=guarded)
    _add_config(config, cache)
    _add_flags(admin, store)
    _add_users(admin, store)
    _add_schedules(admin, intake, desk)
    _add_looking(looking, desk)
    _add_acting(acting, store, desk)
    return [config, admin, looking, acting]


def _refusals(why: Mapping[int | str, str]) -> dict[int | str, dict[str, Any]]:
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


def _add_config(router: APIRouter, cache: FlagCache) -> None:
    @router.get("", summary="Which flags are on", responses={200: {"content": _MAP_EXAMPLE, "headers": _AGE}})
    async def all_flags(
        response: Response, environment: Environment = PRODUCTION, user_id: UserId | None = None
    ) -> dict[str, bool]:
        """Open to all. Every flag of the environment by its key, and whether it is on for this user."""
        enabled = await cache.all_enabled(environment=environment, user_id=user_id)
        _say_age(response, cache)
        return enabled

    @router.get("/{key}", summary="Whether one flag is on", responses={200: {"headers": _AGE}})
    async def one_flag(
        key: Key, response: Response, environment: Environment = PRODUCTION, user_id: UserId | None = None
    ) -> shapes.Evaluated:
        """Open to all. A flag that does not exist is off."""
        enabled = await cache.is_enabled(key, environment=environment, user_id=user_id)
        _say_age(response, cache)
        return shapes.Evaluated(flag_key=key, environment=environment, enabled=enabled)


AGE = "X-Flags-Age"
_AGE = {
    AGE: {
        "description": "Only while the store is away: how many seconds old the last known state is that answers",
        "schema": {"type": "integer"},
    }
}


def _say_age(response: Response, cache: FlagCache) -> None:
    if (age := cache.age_seconds) is not None:
        response.headers[AGE] = str(int(age))


_MAP_EXAMPLE = {"application/json": {"example": {"new-checkout": True, "dark-mode": False}}}


def _add_flags(router: APIRouter, store: FlagStore) -> None:
    @router.get("", summary="The flags of an environment")
    async def list_flags(
        environment: Environment = PRODUCTION, limit: Limit = LISTED_MAX, offset: Offset = 0
    ) -> shapes.FlagList:
        """By their keys."""
        found = await store.all_flags(environment=environment, limit=limit, offset=offset)
        return shapes.FlagList(environment=environment, flags=[shapes.FlagBody.model_validate(flag) for flag in found])

    @router.get("/{key}", summary="A flag")
    async def get_flag(key: Key, environment: Environment = PRODUCTION) -> shapes.FlagBody:
        """As it stands, percentage and all."""
        return shapes.FlagBody.model_validate(await store.get(key, environment=environment))

    @router.put(
        "/{key}",
        summary="Create or change a flag",
        responses={201: {"model": shapes.FlagBody, "description": "It is new"}},
    )
    @router.post(
        "/{key}",
        summary="Create or change a flag",
        responses={201: {"model": shapes.FlagBody, "description": "It is new"}},
    )
    async def put_flag(
        key: NewKey, change: shapes.FlagChange, who: Operator, response: Response, environment: Environment = PRODUCTION
    ) -> shapes.FlagBody:
        """What is left out stays as it is. Failed schedules that wait to set the same again end as superseded."""
        flag, created = await store.put(
            key, environment=environment, actor=who.owner, enabled=change.enabled,
            rollout_percentage=change.rollout_percentage, description=change.description,
        )  # fmt: skip
        response.status_code = 201 if created else 200
        return shapes.FlagBody.model_validate(flag)

    @router.delete("/{key}", summary="Delete a flag", status_code=204)
    async def delete_flag(key: Key, who: Operator, environment: Environment = PRODUCTION) -> None:
        """With its overrides. Its schedules stay to be seen, and fail for good when they are due."""
        await store.delete(key, actor=who.owner, environment=environment)


def _add_users(router: APIRouter, store: FlagStore) -> None:
    @router.get("/{key}/users", summary="The overrides of a flag")
    async def list_users(
        key: Key, environment: Environment = PRODUCTION, limit: Limit = LISTED_MAX, offset: Offset = 0
    ) -> shapes.OverrideList:
        """By user."""
        found = await store.overrides(key, environment=environment, limit=limit, offset=offset)
        return shapes.OverrideList(
            flag_key=key, environment=environment, users=[shapes.OverrideBody.model_validate(one) for one in found]
        )

    @router.post("/{key}/users", summary="Include or exclude a user", status_code=201)
    async def put_user(
        key: Key, override: shapes.UserOverride, who: Operator, environment: Environment = PRODUCTION
    ) -> shapes.OverrideBody:
        """Whatever the percentage says; but a flag that is off is off for all. The last word counts."""
        put = await store.put_override(
            key, override.user_id, override.override_type,
            reason=override.reason, actor=who.owner, environment=environment,
        )  # fmt: skip
        return shapes.OverrideBody.model_validate(put)

    @router.delete("/{key}/users", summary="Take a user's override away")
    async def delete_user(
        key: Key, user_id: UserId, who: Operator, environment: Environment = PRODUCTION
    ) -> shapes.OverrideRemoved:
        """The percentage speaks for the user again."""
        removed = await store.delete_override(key, user_id, actor=who.owner, environment=environment)
        return shapes.OverrideRemoved(removed=removed)


def _add_schedules(router: APIRouter, intake: FlagIntake, desk: FlagDesk) -> None:
    @router.post("/{key}/schedule", summary="Plan a change", status_code=201)
    async def schedule(
        key: Key, request: shapes.ScheduleRequest, who: Operator, environment: Environment = PRODUCTION
    ) -> shapes.ScheduleBody:
        """It takes effect at its time. If it fails, it is retried after 2, 4, 8 … minutes."""
        [made] = await intake.schedule(key, request.new(), actor=who.owner, environment=environment)
        return shapes.ScheduleBody.model_validate(made)

    @router.post("/{key}/schedule/bulk", summary="Plan several changes", status_code=201)
    async def schedule_all(
        key: Key, request: shapes.BulkRequest, who: Operator, environment: Environment = PRODUCTION
    ) -> shapes.ScheduleList:
        """All of them or, if one cannot be as it is asked for, none."""
        new = [one.new() for one in request.schedules]
        made = await intake.schedule(key, *new, actor=who.owner, environment=environment)
        return shapes.ScheduleList(
            flag_key=key, environment=environment, schedules=[shapes.ScheduleBody.model_validate(one) for one in made]
        )

    @router.get("/{key}/schedule", summary="The schedules of a flag")
    async def list_schedules(
        key: Key, environment: Environment = PRODUCTION, limit: Limit = LISTED_MAX, offset: Offset = 0
    ) -> shapes.ScheduleList:
        """All, by their time; also those of a flag that was deleted since."""
        found = await desk.schedules(key, environment=environment, limit=limit, offset=offset)
        return shapes.ScheduleList(
            flag_key=key, environment=environment, schedules=[shapes.ScheduleBody.model_validate(one) for one in found]
        )

    @router.get("/{key}/schedule/preview", summary="The state of a flag at a time to come")
    async def preview(
        key: Key,
        at: Annotated[shapes.Given, Query(description="In ISO 8601 with a zone")],
        environment: Environment = PRODUCTION,
    ) -> shapes.PreviewBody:
        """If each schedule until then succeeds at its next try."""
        seen = await desk.foresee(key, at, environment=environment)
        return shapes.PreviewBody(
            flag_key=key, environment=environment, at=seen.at, enabled=seen.enabled,
            rollout_percentage=seen.rollout_percentage, applied=list(seen.applied),
        )  # fmt: skip

    @router.delete("/{key}/schedule/{id}", summary="Cancel a schedule")
    async def cancel(
        key: Key, id: ScheduleId, who: Operator, environment: Environment = PRODUCTION
    ) -> shapes.ScheduleBody:
        """While it waits, for its time or for a retry; never afterwards."""
        return shapes.ScheduleBody.model_validate(await desk.cancel(key, id, actor=who.owner, environment=environment))

    @router.get("/{key}/schedule/{id}/retries", summary="The tries of a schedule, past and to come")
    async def retries(key: Key, id: ScheduleId, environment: Environment = PRODUCTION) -> shapes.RetriesBody:
        """The times to come are exact: they are when it will be tried, if each try before fails."""
        return shapes.RetriesBody.of(await desk.retries(key, id, environment=environment))

    @router.post("/{key}/schedule/{id}/retry", summary="Bring back a schedule that failed for good")
    async def retry(
        key: Key, id: ScheduleId, who: Operator, environment: Environment = PRODUCTION
    ) -> shapes.ScheduleBody:
        """Due now, with all its retries; who did it is recorded."""
        return shapes.ScheduleBody.model_validate(await desk.retry(key, id, actor=who.owner, environment=environment))


def _add_looking(router: APIRouter, desk: FlagDesk) -> None:
    @router.get("/schedules", summary="The schedules of an environment, across its flags")
    async def schedules(
        status: Annotated[
            ScheduleStatus,
            Query(description="`retrying`: failed, will be retried; `failed`: failed for good"),
        ] = ScheduleStatus.PENDING,
        environment: Environment = PRODUCTION,
        flag: OfFlag | None = None,
        limit: Limit = PAGE_SIZE,
        cursor: Annotated[str | None, Query(max_length=CURSOR_CHARS_MAX, description="From the page before")] = None,
    ) -> shapes.SchedulePageBody:
        """Those to come by when they are due, those that are over by when they ended, the last first."""
        page = await desk.page(status, environment=environment, key=flag, cursor=cursor, limit=limit)
        return shapes.SchedulePageBody(
            schedules=[shapes.SeenBody.of(one) for one in page.items],
            cursor=None if page.cursor is None else str(page.cursor),
        )


def _add_acting(router: APIRouter, store: FlagStore, desk: FlagDesk) -> None:
    @router.post("/schedules/cancel", summary="Cancel schedules")
    async def cancel(request: shapes.ActRequest, who: Operator) -> shapes.ActedBody:
        """Those that wait, for their time or for a retry; all in one commit."""
        return shapes.ActedBody.of(await desk.cancel_all(request.ids, actor=who.owner, reason=request.reason))

    @router.post("/schedules/retry", summary="Bring back schedules that failed for good")
    async def retry(request: shapes.ActRequest, who: Operator) -> shapes.ActedBody:
        """Due now, with all their retries."""
        return shapes.ActedBody.of(await desk.retry_all(request.ids, actor=who.owner, reason=request.reason))

    @router.post("/switch", summary="Turn flags on or off")
    async def switch(request: shapes.SwitchRequest, who: Operator) -> shapes.ActedBody:
        """By their ids, all in one commit. Failed schedules that wait to set the same again end as superseded."""
        acted = await store.switch(request.ids, enabled=request.enabled, actor=who.owner, reason=request.reason)
        return shapes.ActedBody.of(acted)
