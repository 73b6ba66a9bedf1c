"""Text search in the background of this process: begun, watched, called off.

A search lives in the service that began it and is forgotten after a while; nothing of it is stored.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import Field, model_validator

from redrive.core.failure import describe_error, redact
from redrive.core.states import State
from redrive.core.task import KIND_CHARS_MAX, Task, TaskId
from redrive.errors import LedgerAwayError
from redrive.http.errors import ApiError, refusals
from redrive.http.guard import KeyFirstRoute
from redrive.http.shape import Body
from redrive.lane import Lane
from redrive.operator.asked import TEXT_CHARS_MAX, read_filter
from redrive.operator.json_views import redacted
from redrive.operator.ports import Search
from redrive.ports import Filter
from redrive.stores.port import Store
from redrive.web.api.common import LOOKING, NO_LEDGER, app_of, lanes_of, shown

RUNNING_MAX = 4
KEPT_MAX = 50
RUN_SECONDS_MAX = 900.0
KEPT_SECONDS = 900.0
TASKS_MAX = 200
PAUSE_SHARE = 0.5
"""Between two looks a search rests for half as long as the look took, so that it is never all that the database does."""

router = APIRouter(
    prefix="/api/searches",
    route_class=KeyFirstRoute,
    tags=["searches"],
    dependencies=LOOKING,
    responses=refusals(NO_LEDGER),
)


class SearchBody(Body):
    """What is looked for."""

    ledger: str | None = Field(default=None, max_length=200, description="One ledger; by default all")
    text: str = Field(default="", max_length=TEXT_CHARS_MAX, description="In the key, kind, last error or payload")
    state: State | None = None
    kind: str | None = Field(default=None, max_length=KIND_CHARS_MAX)

    @model_validator(mode="after")
    def _asks_something(self) -> "SearchBody":
        if not (self.text.strip() or self.state or self.kind):
            raise ValueError("say what to look for: a text, a state or a kind")
        self.filter()
        return self

    def filter(self) -> Filter:
        """The same for the search."""
        return read_filter(text=self.text.strip(), state=self.state, kind=self.kind)


@dataclass(slots=True)
class Job:
    """One search."""

    id: str
    ledger: str | None
    asked: Filter
    total: int | None
    began: float = field(default_factory=time.monotonic)
    state: str = "running"
    looked_at: int = 0
    found: int = 0
    tasks: list[tuple[str, Task]] = field(default_factory=list)
    """The first of those that were found, each with its ledger."""
    problem: str | None = None
    task: asyncio.Task[None] | None = None

    def as_json(self) -> dict[str, Any]:
        """The search as the API shows it."""
        return {
            "id": self.id, "ledger": self.ledger, "text": self.asked.text or "", "state": self.state, "looked_at": self.looked_at,
            "total": self.total, "found": self.found, "problem": self.problem,
            "tasks": [shown(task, ledger) for ledger, task in self.tasks],
        }  # fmt: skip


class Searches:
    """The searches of this process."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    async def begin(self, store: Store, lanes: Sequence[Lane], asked: Filter) -> Job:
        """Begin a search of these ledgers, one after the other; 429 where enough are running."""
        self._forget_old()
        if sum(job.state == "running" for job in self._jobs.values()) >= RUNNING_MAX:
            raise ApiError(
                429, "too_many_searches", "too many searches are running: wait for one to end, or cancel one",
                headers={"Retry-After": "10"},
            )  # fmt: skip
        searches = {lane.name: store.search(await lane.ledger(), asked, redacted) for lane in lanes}
        states = await store.figures.states()
        known = [sum(states[name].amounts.values()) for name in searches if name in states]
        total = sum(known) if len(known) == len(searches) else None
        job = Job(secrets.token_hex(8), lanes[0].name if len(lanes) == 1 else None, asked, total)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._run(job, searches), name=f"search {job.id}")
        return job

    def get(self, id: str) -> Job:
        """The search with this id."""
        self._forget_old()
        if id not in self._jobs:
            raise ApiError(
                404, "search_unknown", "there is no such search here: it has expired, or another process runs it"
            )
        return self._jobs[id]

    async def call_off(self, id: str) -> None:
        """End a search and forget it."""
        job = self.get(id)
        del self._jobs[id]
        await _stop(job)

    async def close(self) -> None:
        """End all searches."""
        jobs = list(self._jobs.values())
        self._jobs.clear()
        for job in jobs:
            await _stop(job)

    async def _run(self, job: Job, searches: Mapping[str, Search]) -> None:
        try:
            async with asyncio.timeout(RUN_SECONDS_MAX):
                for ledger, search in searches.items():
                    await self._look_through(job, ledger, search)
            job.state = "done"
        except TimeoutError:
            job.state, job.problem = "failed", "it took too long: narrow it down"
        except LedgerAwayError:
            job.state, job.problem = "failed", "the database cannot be reached now: start again"
        except Exception as error:  # whatever it is, who watches must hear of it
            job.state, job.problem = "failed", redact(describe_error(error))

    async def _look_through(self, job: Job, ledger: str, search: Search) -> None:
        after: TaskId | None = None
        while True:
            asked = time.monotonic()
            chunk = await search.chunk(after)
            job.looked_at += chunk.looked_at
            job.found += len(chunk.tasks)
            job.tasks += [(ledger, task) for task in chunk.tasks[: TASKS_MAX - len(job.tasks)]]
            after = chunk.last
            if after is None:
                return
            await asyncio.sleep((time.monotonic() - asked) * PAUSE_SHARE)

    def _forget_old(self) -> None:
        now = time.monotonic()
        ended = [job for job in self._jobs.values() if job.state != "running"]
        for job in ended:
            if now - job.began > KEPT_SECONDS + RUN_SECONDS_MAX:
                del self._jobs[job.id]
        while len(self._jobs) >= KEPT_MAX:
            oldest = next((job for job in self._jobs.values() if job.state != "running"), None)
            if oldest is None:
                break
            del self._jobs[oldest.id]


async def _stop(job: Job) -> None:
    if job.task is not None:
        job.task.cancel()
        await asyncio.gather(job.task, return_exceptions=True)


SearchId = Annotated[str, Path(max_length=64)]


@router.post("", summary="Start a text search in the background", status_code=202)
async def begin(request: Request, body: SearchBody) -> dict[str, Any]:
    """Returns its id at once."""
    job = await _searches(request).begin(app_of(request).store, lanes_of(request, body.ledger), body.filter())
    return {"id": job.id}


@router.get("/{id}", summary="The progress of a search, and what it has found")
async def watch(request: Request, id: SearchId) -> dict[str, Any]:
    """`total` is how many tasks there are to look at, as of the last census; `tasks` are the first of those found."""
    return _searches(request).get(id).as_json()


@router.delete("/{id}", summary="Cancel a search", status_code=204, response_class=Response)
async def call_off(request: Request, id: SearchId) -> Response:
    """It is forgotten."""
    await _searches(request).call_off(id)
    return Response(status_code=204)


def _searches(request: Request) -> Searches:
    app_of(request)
    searches: Searches = request.app.state.searches
    return searches
