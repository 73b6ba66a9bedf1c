"""`/api/commands`: commands and their batches, and what people do with the troubleshooting queue.

An act names commands by their ids within a domain, and answers how many of them changed and why the others did not: of two
operators who press the same button, one is told that the other was quicker.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import JSONResponse

from redrive.http.errors import ApiError, refusals
from redrive.http.guard import KeyFirstRoute, require, require_unless_loopback
from redrive.http.shape import InstantAt
from redrive.operator.acts import Acted
from redrive.systems.commands import shapes
from redrive.systems.commands.desk import TROUBLED, Troubleshooting
from redrive.systems.commands.reader import Reader
from redrive.systems.commands.values import TEXT_CHARS_MAX, CommandStatus

PAGE_MAX = 500

Looking = Depends(require_unless_loopback("viewer"))
Operator = Annotated[Any, Depends(require("operator"))]

DomainQuery = Annotated[
    str | None, Query(min_length=1, max_length=shapes.DOMAIN_CHARS_MAX, description="Of this domain only")
]
TypeQuery = Annotated[str | None, Query(min_length=1, max_length=TEXT_CHARS_MAX, description="Of this type only")]
LimitQuery = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many a page holds")]
CursorQuery = Annotated[str | None, Query(max_length=18, description="The cursor of the previous page")]
DomainPath = Annotated[str, Path(max_length=shapes.DOMAIN_CHARS_MAX, examples=["payments"])]


InstantQuery = Annotated[InstantAt | None, Query()]


_LOOK = refusals(
    {
        400: "A parameter cannot be used",
        401: "The caller is elsewhere and has sent no valid key",
        403: "The key lacks the scope viewer",
        503: "The store cannot be reached now, or does not answer in time",
    }
)
_ACT = refusals(
    {
        400: "What was given cannot be used; nothing was changed",
        401: "No valid key",
        403: "The key lacks the scope operator",
        503: "The store cannot be reached now",
    }
)


def make_routes(reader: Reader, desk: Troubleshooting) -> APIRouter:
    """The routes of one reader."""
    router = APIRouter(prefix="/api/commands", route_class=KeyFirstRoute, tags=["commands"])
    _add_troubleshooting(router, reader, desk)
    _add_looks(router, reader)
    return router


def _add_looks(router: APIRouter, reader: Reader) -> None:
    @router.get(
        "",
        summary="A page of commands, newest first",
        response_model=shapes.PageOut,
        responses=_LOOK,
        dependencies=[Looking],
    )
    async def page(
        domain: DomainQuery = None,
        status: Annotated[CommandStatus | None, Query(description="With this status only")] = None,
        type: TypeQuery = None,
        created_after: InstantQuery = None,
        created_before: InstantQuery = None,
        limit: LimitQuery = 100,
        cursor: CursorQuery = None,
    ) -> JSONResponse:
        """Only the troubleshooting queue has an index, so a page reads 50,000 commands at most.

        If few of them match, the page is short, or even empty, and its cursor continues after the last one read.
        """
        found = await reader.browse_commands(domain, status, type, created_after, created_before, limit, cursor)
        return JSONResponse(shapes.page_json(found))

    # Before the next route, which takes whatever has two parts: ids may hold a slash.
    @router.get(
        "/batches/{domain}/{batch_id:path}",
        summary="A batch, with its commands counted by state",
        response_model=shapes.BatchOut,
        responses=_LOOK | refusals({404: "There is no such batch"}),
        dependencies=[Looking],
    )
    async def batch(domain: DomainPath, batch_id: str) -> JSONResponse:
        """It is complete when none of its commands is open or in the troubleshooting queue."""
        found = await reader.get_batch(domain, batch_id)
        if found is None:
            raise ApiError(404, "batch_unknown", f"{domain!r} has no batch {batch_id!r:.80}")
        return JSONResponse(shapes.batch_json(found))

    @router.get(
        "/{domain}/{command_id:path}",
        summary="A command with its data, its last error and its audit",
        response_model=shapes.CommandDetails,
        responses=_LOOK | refusals({404: "There is no such command"}),
        dependencies=[Looking],
    )
    async def one(domain: DomainPath, command_id: str) -> JSONResponse:
        """Anything that looks like a secret is hidden. The attempts, with what was decided after each, belong to the task."""
        found = await reader.get_command(domain, command_id)
        if found is None:
            raise ApiError(404, "command_unknown", f"{domain!r} has no command {command_id!r:.80}")
        audit = await reader.audit_trail(command_id, domain, latest=shapes.AUDIT_MAX)
        return JSONResponse(shapes.details_json(found, audit))


def _add_troubleshooting(router: APIRouter, reader: Reader, desk: Troubleshooting) -> None:
    @router.get(
        "/troubleshooting",
        summary="The troubleshooting queue, newest first, and how many commands it holds",
        response_model=shapes.QueueOut,
        responses=_LOOK,
        dependencies=[Looking],
    )
    async def troubled(
        domain: DomainQuery = None, type: TypeQuery = None, limit: LimitQuery = 100, cursor: CursorQuery = None
    ) -> JSONResponse:
        """Served by an index that holds nothing else."""
        found = await reader.browse_commands(domain, TROUBLED, type, limit=limit, cursor=cursor)
        waiting = dict(await desk.count_by_domain()) if cursor is None else None
        return JSONResponse(shapes.page_json(found) | {"waiting": waiting})

    def act(name: str, summary: str) -> Callable[[Any], Any]:
        path = f"/troubleshooting/{name}"
        return router.post(path, summary=summary, response_model=shapes.ActOut, responses=_ACT)

    @act("retry", "Send commands again: a new message, a fresh budget, due now")
    async def retry(given: shapes.CommandActIn, key: Operator) -> JSONResponse:
        """Their history is kept. Only commands in the troubleshooting queue change, each on its own."""
        return await _told(desk.retry_many(given.domain, given.ids, key.owner, reason=given.reason))

    @act("cancel", "End commands as CANCELED, and reply that with the reason")
    async def cancel(given: shapes.CommandActIn, key: Operator) -> JSONResponse:
        """Only commands in the troubleshooting queue change, each on its own."""
        return await _told(desk.cancel_many(given.domain, given.ids, key.owner, reason=given.reason))

    @act("complete", "End commands as COMPLETED, because somebody did them by hand, and reply SUCCESS with the result")
    async def complete(given: shapes.CompleteIn, key: Operator) -> JSONResponse:
        """Only commands in the troubleshooting queue change, each on its own."""
        return await _told(
            desk.complete_many(given.domain, given.ids, key.owner, result=given.result, reason=given.reason)
        )


async def _told(done: Coroutine[Any, Any, Acted]) -> JSONResponse:
    acted = await done
    return JSONResponse({"changed": len(acted.changed), "refused": dict(acted.refused)})
