"""What operators see and do across all flags, as the page of the flags and programs ask for it: see `docs/operator-api.md`.

Acts take ids and a reason and answer how many changed, and of the others why not. They go the same way as those in `api`.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictInt

from redrive.http.guard import require, require_unless_loopback
from redrive.http.reason import Reason
from redrive.systems.flags.desk import CURSOR_CHARS_MAX, PAGE_SIZE
from redrive.systems.flags.routes import AdminRoute, Environment, FlagsRoute, refusals
from redrive.systems.flags.shapes import Body, ScheduleBody, UpcomingBody, storable
from redrive.systems.flags.system import Flags
from redrive.systems.flags.values import LISTED_MAX, PRODUCTION, Acted, ScheduleStatus, SeenSchedule

IDS_MAX = 1000

Operator = Annotated[Any, Depends(require("operator"))]
OfFlag = Annotated[str, Query(max_length=100, description="Of this flag only"), AfterValidator(storable)]


class ActRequest(Body):
    """Which, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": [17, 18], "reason": "the promotion is off"}]})
    ids: Annotated[list[Annotated[StrictInt, Field(ge=1, lt=2**63)]], Field(min_length=1, max_length=IDS_MAX)]
    reason: Reason


class SwitchRequest(ActRequest):
    """Which flags are to be on or off, and why."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ids": [7], "enabled": False, "reason": "checkout is broken"}]}
    )
    enabled: StrictBool = Field(description="On or off; the percentage stays as it is")


class ActedBody(Body):
    """What an act came to."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "changed": 1,
                    "refused": {"18": "schedule 18 is applied for good: only one that waits can be cancelled"},
                }
            ]
        }
    )
    changed: int = Field(description="How many changed")
    refused: dict[int, str] = Field(description="The others by their ids, and why they were left alone")

    @classmethod
    def of(cls, acted: Acted) -> "ActedBody":
        """The act as it is told."""
        return cls(changed=len(acted.changed), refused=dict(acted.refused))


class SeenBody(Body):
    """A schedule with its environment and its tries."""

    environment: str
    schedule: ScheduleBody
    tries: int = Field(description="How often it was tried, in all its life")
    upcoming: list[UpcomingBody] = Field(description="The exact times of the tries to come, if each of them fails")

    @classmethod
    def of(cls, seen: SeenSchedule) -> "SeenBody":
        """The schedule as it is shown."""
        return cls(
            environment=seen.schedule.environment, schedule=ScheduleBody.of(seen.schedule), tries=seen.tries,
            upcoming=[UpcomingBody.of(one) for one in seen.upcoming],
        )  # fmt: skip


class SchedulePageBody(Body):
    """Some schedules, and the cursor of the next page, if there is one."""

    schedules: list[SeenBody]
    cursor: str | None


def make_operator_router(flags: Flags) -> APIRouter:
    """The routes."""
    refused = refusals(
        {
            400: "It does not fit (`VALIDATION_ERROR`)",
            401: "Without a valid key",
            403: "The key lacks the scope",
            413: "The body is too large",
            503: "The store cannot be reached now",
            "4XX": "Refused",
        }
    )
    looking = APIRouter(
        prefix="/api/flags",
        tags=["flags operator"],
        route_class=FlagsRoute,
        dependencies=[Depends(require_unless_loopback("viewer"))],
        responses=refused,
    )
    acting = APIRouter(prefix="/api/flags", tags=["flags operator"], route_class=AdminRoute, responses=refused)
    _add_looking(looking, flags)
    _add_acting(acting, flags)
    both = APIRouter()
    both.include_router(looking)
    both.include_router(acting)
    return both


def _add_looking(router: APIRouter, flags: Flags) -> None:
    @router.get("/schedules", summary="The schedules of an environment, across its flags")
    async def schedules(
        status: Annotated[
            ScheduleStatus,
            Query(description="`retrying` are those that failed and are tried again; `failed` those that are over"),
        ] = ScheduleStatus.PENDING,
        environment: Environment = PRODUCTION,
        flag: OfFlag | None = None,
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX, description="How many are shown at most")] = PAGE_SIZE,
        cursor: Annotated[str | None, Query(max_length=CURSOR_CHARS_MAX, description="From the page before")] = None,
    ) -> SchedulePageBody:
        """Those to come by when they are due, those that are over by when they ended, the last first."""
        page = await flags.page(status, environment=environment, key=flag, cursor=cursor, limit=limit)
        return SchedulePageBody(schedules=[SeenBody.of(one) for one in page.seen], cursor=page.cursor)


def _add_acting(router: APIRouter, flags: Flags) -> None:
    @router.post("/schedules/cancel", summary="Cancel schedules")
    async def cancel(request: ActRequest, who: Operator) -> ActedBody:
        """Those that wait, for their time or for a retry; all in one commit."""
        return ActedBody.of(await flags.cancel_all(request.ids, actor=who.owner, reason=request.reason))

    @router.post("/schedules/retry", summary="Bring back schedules that failed for good")
    async def retry(request: ActRequest, who: Operator) -> ActedBody:
        """Due now, with all their retries."""
        return ActedBody.of(await flags.retry_all(request.ids, actor=who.owner, reason=request.reason))

    @router.post("/switch", summary="Turn flags on or off")
    async def switch(request: SwitchRequest, who: Operator) -> ActedBody:
        """By their ids, all in one commit. Failed schedules that wait to set the same again end as superseded."""
        acted = await flags.switch(request.ids, enabled=request.enabled, actor=who.owner, reason=request.reason)
        return ActedBody.of(acted)
