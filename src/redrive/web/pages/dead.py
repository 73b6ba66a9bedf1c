"""Failure causes: what fails now, then what tasks are dead of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from redrive.operator.verdict.values import Rank, Subject, Trouble, Verdict
from redrive.web.api.groups import groups
from redrive.web.api.status import verdict_of
from redrive.web.pages.frame import Looker, page_router, render
from redrive.web.pages.verdict import place_of
from redrive.web.service import service_of

router = page_router()


FAILS = (Subject.FAILING, Subject.RETRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One cause as lists show it."""

    trouble: Trouble | None
    """What the verdict says of it; None where it says nothing."""
    group: dict[str, Any] | None
    """Who is dead of it; None while nobody is."""

    @property
    def fails(self) -> bool:
        """Whether tries fail of it now."""
        return self.trouble is not None and self.trouble.subject in FAILS

    @property
    def label(self) -> tuple[str, str, str]:
        """How it is: the colour, the icon and the words."""
        if self.trouble is None:
            return "plain", "cross", ""
        if self.trouble.subject is Subject.FAILING:
            return "bad", "stop", "Failing now"
        if self.trouble.subject is Subject.RETRIED:
            return "warn", "heal", "Some tries fail"
        ready = self.trouble.rank is Rank.READY
        return "info" if ready else "plain", "back" if ready else "cross", self.trouble.rank.words


def cause_rows(verdict: Verdict, found: Sequence[dict[str, Any]], kind: str | None = None) -> list[CauseRow]:
    """What fails now first, whether or not somebody is dead of it; then the groups as they come."""
    told = {(one.ledger, one.cause): one for one in verdict.troubles if one.cause is not None}
    dead = {(one["ledger"], one["cause"]): one for one in found if kind is None or one["kind"] == kind}
    failing = [key for key, one in told.items() if one.subject in FAILS and (kind is None or one.kind == kind)]
    return [CauseRow(trouble=told.get(key), group=dead.get(key)) for key in dict.fromkeys([*failing, *dead])]


@router.get("/dead", response_class=HTMLResponse)
async def dead(request: Request, visitor: Looker, ledger: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    """The page."""
    found = await groups(request, ledger or None)
    rows = cause_rows(await verdict_of(request, ledger or None), found)
    return render(
        request, "dead.html", visitor, title="Failure causes",
        rows=rows, place_of=place_of, ledger=ledger, ledgers=list(service_of(request).app.lanes),
    )  # fmt: skip
