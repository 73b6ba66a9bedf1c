"""The timeline of a policy: one of a system, or one that is given as data."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, model_validator

from redrive.core import jitter as jitters
from redrive.core.backoff import Backoff, Exponential, Fixed, Linear, Schedule
from redrive.core.jitter import Jitter
from redrive.core.policy import Policy
from redrive.core.preview import preview as tries_of
from redrive.core.task import KEY_CHARS_MAX
from redrive.http.guard import KeyFirstRoute
from redrive.http.shape import Body, InstantAt
from redrive.operator.json_views import preview_json
from redrive.web.api.common import LOOKING, Span
from redrive.wiring import PUBLISHED, PublishedPolicy

WAITS_MAX = 1000
OF_A_PREVIEW = {"policy", "key", "start"}
"""What can be said of any preview; all else is said of a policy."""

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["preview"], dependencies=LOOKING)


class ExponentialBody(Body):
    """Each wait is a multiple of the last one, up to the cap."""

    kind: Literal["exponential"] = "exponential"
    first: Span
    cap: Span
    factor: float = Field(default=2.0, ge=1, le=1000)


class WaitsBody(Body):
    """The waits one by one; the last one for ever after."""

    kind: Literal["schedule"]
    waits: list[Span] = Field(min_length=1, max_length=WAITS_MAX)


class FixedBody(Body):
    """The same wait each time."""

    kind: Literal["fixed"]
    wait: Span


class LinearBody(Body):
    """Each wait is longer than the last one by a step, up to the cap."""

    kind: Literal["linear"]
    first: Span
    step: Span
    cap: Span


class JitterBody(Body):
    """How the waits are spread."""

    kind: Literal["none", "full", "equal", "decorrelated", "percent", "plus_minus", "additive"] = "equal"
    percent: float = Field(
        default=10.0, ge=0, le=100, description="For percent: up to this much earlier; for plus_minus: earlier or later"
    )
    most: Span = Field(default="30s", validate_default=True, description="For additive: up to this much later")


class PolicyBody(Body):
    """The policy of a system, by its name; or one as data, with a backoff."""

    policy: PublishedPolicy | None = Field(default=None, description="The policy of this system, as its defaults are")
    backoff: Annotated[
        ExponentialBody | WaitsBody | FixedBody | LinearBody | None, Field(default=None, discriminator="kind")
    ]
    jitter: JitterBody = JitterBody()
    retries: int | None = Field(default=None, ge=0, lt=1_000_000, description="Tries after the first")
    attempts: int | None = Field(default=None, ge=1, lt=1_000_000, description="Tries in all")
    deadline: Span | None = Field(default=None, description="Not tried any more after this long")
    name: str = Field(default="default", max_length=200, description="The policy's name: draws depend on it")
    key: str = Field(default="example", max_length=KEY_CHARS_MAX, description="The task's key: draws depend on it")
    start: InstantAt | None = Field(default=None, description="When the first try is; by default now")

    @model_validator(mode="after")
    def _one_of_both(self) -> "PolicyBody":
        if (self.policy is None) == (self.backoff is None):
            raise ValueError("give either a policy or a backoff")
        if self.policy is not None and (more := self.model_fields_set - OF_A_PREVIEW):
            raise ValueError(f"the policy of a system brings its own {', '.join(sorted(more))}: leave that out")
        return self


@router.post("/preview", summary="When a task that always fails would be tried under a policy")
async def preview(body: PolicyBody) -> dict[str, Any]:
    """The very times that would happen, on any machine. Nothing is stored."""
    policy = policy_of(body)
    start = body.start or datetime.now(UTC)
    return preview_json(policy, body.key, start, tries_of(policy, body.key, start))


def policy_of(body: PolicyBody) -> Policy:
    """The policy that a body names or describes."""
    if body.policy is not None:
        return PUBLISHED[body.policy]
    assert body.backoff is not None, "one of both is there"
    return Policy(
        _backoff(body.backoff), retries=body.retries, attempts=body.attempts, jitter=_jitter(body.jitter),
        deadline=body.deadline, name=body.name,
    )  # fmt: skip


def _backoff(body: ExponentialBody | WaitsBody | FixedBody | LinearBody) -> Backoff:
    match body:
        case ExponentialBody(first=first, cap=cap, factor=factor):
            return Exponential(first, cap, factor=factor)
        case WaitsBody(waits=waits):
            return Schedule(waits)
        case FixedBody(wait=wait):
            return Fixed(wait)
        case LinearBody(first=first, step=step, cap=cap):
            return Linear(first, step, cap)


def _jitter(body: JitterBody) -> Jitter:
    match body.kind:
        case "percent":
            return jitters.percent(body.percent)
        case "plus_minus":
            return jitters.plus_minus(body.percent)
        case "additive":
            return jitters.additive(body.most)
        case plain:
            chosen: Jitter = getattr(jitters, plain)
            return chosen
