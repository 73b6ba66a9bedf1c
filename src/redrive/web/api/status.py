"""How things are: the verdict that pages, the API and the command line share."""

from typing import Any

from fastapi import APIRouter, Request

from redrive.http.guard import KeyFirstRoute
from redrive.operator.verdict import Verdict, gather, judge, verdict_json
from redrive.web.answers import answers_of
from redrive.web.api import overview
from redrive.web.api.common import LOOKING, app_of, lanes_of
from redrive.web.api.overview import LedgerQuery
from redrive.web.service import running_of

router = APIRouter(prefix="/api", route_class=KeyFirstRoute, tags=["overview"], dependencies=LOOKING)


@router.get("/status", summary="What is wrong, how it moves, what happens by itself, and what is safe to press")
async def status(request: Request, ledger: LedgerQuery = None) -> dict[str, Any]:
    """Worst first. Every sentence is there as text, and in pieces with what they link to and the instants that they name.

    Numbers of a trouble count since it began, those of a kind are of the last five minutes.
    """
    return verdict_json(await verdict_of(request, ledger))


async def verdict_of(request: Request, ledger: str | None = None) -> Verdict:
    """The verdict on all ledgers, or on one; however many ask, it is made once a second."""
    lanes = lanes_of(request, ledger)
    store, proof = app_of(request).store, running_of(request).proof

    async def make() -> Verdict:
        return judge(await gather(store, lanes, proof.now()))

    return await answers_of(request).get(("status", ledger or None), overview.FRESH_SECONDS, make)
