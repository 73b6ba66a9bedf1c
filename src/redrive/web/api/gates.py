"""Gates: what stands in front of each destination, and what people do to it. Each act names who and why, and stands in the audit log.

Whoever sends the `version` that they saw acts only if nobody acted since: the second of two gets 409. What a gate lets through is
computed when somebody claims, so an act holds in every process from the next claim on; the pause of a kind within a second.
"""

from collections.abc import Awaitable
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field, model_validator

from redrive.access.keys import ApiKey
from redrive.core.gate_rules import Breaker
from redrive.core.task import GATE_CHARS_MAX
from redrive.http.errors import ApiError, refusals
from redrive.http.guard import KeyFirstRoute, require
from redrive.http.shape import Body, InstantAt, WellFormed
from redrive.lane import Lane
from redrive.operator.gates import PAGE_MAX, GateDoes
from redrive.operator.json_views import gate_json, rule_json, span_json
from redrive.web.api.acts import ReasonBody
from redrive.web.api.common import LOOKING, NO_LEDGER, Span, in_time, lane_of

CURSOR_CHARS_MAX = 1000
STRIP = timedelta(hours=1)
"""How far back the picture of a gate goes."""
STALE = {409: "Somebody else has acted since you looked"}

router = APIRouter(prefix="/api/gates", route_class=KeyFirstRoute, tags=["gates"], responses=refusals(NO_LEDGER))
Operator = Annotated[ApiKey, Depends(require("operator"))]


class GateBody(ReasonBody):
    """Which gate, and what was seen of it."""

    gate: WellFormed = Field(
        min_length=1,
        max_length=GATE_CHARS_MAX,
        description="The gate; `kind:mail` or `kind:mail.*` for kinds, `kind:*` for the whole ledger",
        examples=["bank:DE"],
    )
    version: int | None = Field(
        default=None, ge=0, lt=2**63, description="The version that was seen; without it, whatever it is"
    )


class PauseBody(GateBody):
    """Until when; without both, until somebody resumes it."""

    span: Span | None = Field(default=None, description="For so long")
    until: InstantAt | None = Field(default=None, description="Until this instant")

    @model_validator(mode="after")
    def _one_of_both(self) -> "PauseBody":
        if self.span is not None and self.until is not None:
            raise ValueError("give either span or until")
        return self


class BreakerBody(Body):
    """So many failures within a span trip it; then one try at a time, every `probe`."""

    failures: int = Field(default=10, ge=1, le=1_000_000)
    share: float | None = Field(default=None, gt=0, le=1, description="Of at least so many tries this share failed")
    within: Span = timedelta(minutes=1)
    probe: Span = timedelta(seconds=30)


class LimitsBody(GateBody):
    """The limits to change; null takes one away, and what is not given stays."""

    gate: WellFormed = Field(
        min_length=1, max_length=GATE_CHARS_MAX, description="The gate, or a pattern of gates", examples=["bank:*"]
    )
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000, description="How many run at once")
    rate: str | None = Field(
        default=None, max_length=50, description="How many start in any second, minute or hour", examples=["20/s"]
    )
    burst: int | None = Field(default=None, ge=1, le=1_000_000, description="How many of them at once")
    breaker: BreakerBody | None = Field(default=None)
    budget: float | None = Field(default=None, gt=0, le=1, description="Which share of first tries may be retried")
    unset: bool = Field(default=False, description="Take the limits of this pattern away, so that a wider one holds")

    @model_validator(mode="after")
    def _something(self) -> "LimitsBody":
        given = self.model_fields_set & {"concurrency", "rate", "burst", "breaker", "budget"}
        if bool(given) == self.unset:
            raise ValueError("give limits to change, or unset")
        return self


@router.get("", summary="A page of gates: what holds, returns or is paused comes first", dependencies=LOOKING)
async def page(
    request: Request,
    ledger: Annotated[str | None, Query(description="The ledger; by default redrive's own", max_length=200)] = None,
    does: Annotated[GateDoes | None, Query(description="Only gates that do this")] = None,
    prefix: Annotated[str, Query(description="How the names begin", max_length=GATE_CHARS_MAX)] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    cursor: Annotated[
        str | None, Query(description="Where the previous page ended", max_length=CURSOR_CHARS_MAX)
    ] = None,
) -> dict[str, Any]:
    """A page of those that do one thing may be short and still have a cursor. `rules` are all limits, by their patterns."""
    gates = await lane_of(request, ledger).gate_reader(limited=True)
    async with in_time():
        found = await gates.page(does=does, prefix=prefix, cursor=cursor or None, limit=limit)
        rules = await gates.rules()
    return {
        "gates": [gate_json(view) for view in found.items],
        "cursor": found.cursor,
        "rules": [rule_json(rule) for rule in rules],
    }


@router.get(
    "/{ledger}/{name:path}", summary="One gate: what it does, why, until when, and its last hour", dependencies=LOOKING
)
async def one(request: Request, ledger: str, name: str) -> dict[str, Any]:
    """Also a pause of kinds. `spans` is when it did not simply let tasks through, as far as that was recorded."""
    return await one_of(lane_of(request, ledger), name)


async def one_of(lane: Lane, name: str) -> dict[str, Any]:
    """The same for the page that shows it."""
    gates = await lane.gate_reader(limited=True)
    async with in_time():
        view = await gates.one(name)
        if view is None:
            raise ApiError(
                404, "gate_unknown", f"there is no gate {name!r:.80} in {lane.name!r}: no task has named it yet"
            )
        spans = await gates.spans([name], view.at - STRIP)
    return gate_json(view) | {"spans": [span_json(span) for span in spans]}


@router.post("/set", summary="Change the limits of a gate, or of a pattern of gates", responses=refusals(STALE))
async def set_limits(request: Request, body: LimitsBody, key: Operator) -> dict[str, Any]:
    """What a person sets stays, whatever code says, until it is unset."""
    lane = lane_of(request, body.ledger)
    who: dict[str, Any] = {"actor": key.owner, "reason": body.reason, "version": body.version}
    if body.unset:
        return await _acted(lane, body, lane.unset_gate(body.gate, **who))
    given = {name: getattr(body, name) for name in body.model_fields_set & {"concurrency", "rate", "burst", "budget"}}
    if "breaker" in body.model_fields_set:
        given["breaker"] = None if body.breaker is None else Breaker(**dict(body.breaker))
    return await _acted(lane, body, lane.set_gate(body.gate, **given, **who))


@router.post("/pause", summary="Pause a gate, a kind or a whole ledger", responses=refusals(STALE))
async def pause(request: Request, body: PauseBody, key: Operator) -> dict[str, Any]:
    """What runs ends, what waits waits, and adding goes on; deadlines still hold."""
    lane, who = lane_of(request, body.ledger), {"actor": key.owner, "reason": body.reason}
    span, until = body.span, body.until
    return await _acted(lane, body, lane.pause_gate(body.gate, span=span, until=until, version=body.version, **who))


@router.post("/resume", summary="Resume what is paused", responses=refusals(STALE))
async def resume(request: Request, body: GateBody, key: Operator) -> dict[str, Any]:
    """Whatever else keeps it shut, such as a breaker, still does."""
    lane = lane_of(request, body.ledger)
    who = {"actor": key.owner, "reason": body.reason}
    return await _acted(lane, body, lane.resume_gate(body.gate, version=body.version, **who))


async def _acted(lane: Lane, body: GateBody, act: Awaitable[bool]) -> dict[str, Any]:
    changed = await act
    gates = await lane.gate_reader(limited=True)
    view = await gates.one(body.gate)
    return {"changed": changed, "gate": None if view is None else gate_json(view)}
