"""A service that stands still, for tests of the API: open, with a clock of the test's own, and no worker but the test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import delete

from redrive import Policy, Redrive, Task, jitter, seconds
from redrive.core.backoff import Fixed
from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, Outcome
from redrive.core.task import TaskId
from redrive.errors import PermanentError
from redrive.lane import Lane
from redrive.ledgers.sql import schema
from redrive.operator.sql.census import SqlCensus
from redrive.running import Service
from redrive.settings import Settings
from redrive.testing import VirtualClock

from .conftest import client_of

POLICY = Policy(Fixed(seconds(60)), retries=3, jitter=jitter.none, name="test")
LEASE = seconds(30)


@dataclass(slots=True)
class Standing:
    """The service, two clients, and short verbs."""

    app: Redrive
    service: Service
    clock: VirtualClock
    local: httpx.AsyncClient
    secrets: dict[str, str]

    def headers(self, role: str = "operator") -> dict[str, str]:
        """The key of somebody with this role, who is called so too."""
        return {"X-API-Key": self.secrets[role]}

    async def get(self, path: str, **parameters: Any) -> Any:
        """The answer to a look."""
        answer = await self.local.get(
            path, params={name: value for name, value in parameters.items() if value is not None}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any, *, role: str = "operator", status: int = 200) -> Any:
        """The answer to an act."""
        answer = await self.local.post(path, json=body, headers=self.headers(role))
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def put(
        self, amount: int = 1, *, kind: str = "mail", payload: Any = None, lane: Lane | None = None
    ) -> list[TaskId]:
        """New tasks."""
        return [(await (lane or self.app).add(kind, payload)).id for _ in range(amount)]

    async def end(self, outcomes: Sequence[Outcome], *, kind: str = "mail", payload: Any = None) -> list[TaskId]:
        """New tasks of a kind, run once with these outcomes."""
        await self.put(len(outcomes), kind=kind, payload=payload)
        ledger = await self.app.tasks.ledger()
        claims = await ledger.claim(len(outcomes), LEASE, kinds=[kind])
        assert len(claims) == len(outcomes)
        claims.sort(key=lambda claim: claim.task.id)
        ended = [
            decide(claim, outcome, POLICY, elapsed=seconds(1)) for claim, outcome in zip(claims, outcomes, strict=True)
        ]
        assert await ledger.settle(ended, worker="test") == []
        return [claim.task.id for claim in claims]

    async def dead(self, *errors: str, kind: str = "mail", payload: Any = None) -> list[TaskId]:
        """Tasks that died of these errors."""
        return await self.end([Failed(PermanentError(error)) for error in errors], kind=kind, payload=payload)

    async def done(self, amount: int = 1) -> list[TaskId]:
        """Tasks that are done."""
        return await self.end([Done()] * amount)

    async def count(self) -> None:
        """A census of all ledgers, as the bookkeeper takes it."""
        for lane in self.app.lanes.values():
            await SqlCensus(await lane.ledger()).take()


@asynccontextmanager
async def standing(url: str, clock: VirtualClock, *, app: Redrive | None = None) -> AsyncIterator[Standing]:
    """A service that stands still."""
    made = app or Redrive(url, clock=clock, durable=False)
    if not len(made.tasks.handlers):

        @made.handler("mail", policy=POLICY)
        async def mail(_task: Task) -> None: ...

    await made.open()
    service = Service(made, Settings(_env_file=None))
    service.is_open = True
    secrets = {role: (await service.keys.create(role, [role])).secret for role in ("viewer", "operator", "admin")}
    for told in (schema.deed, schema.audit):  # what a test does comes first
        await made.database.write(lambda connection, told=told: connection.execute(delete(told)))
    try:
        async with client_of(service) as local:
            yield Standing(made, service, clock, local, secrets)
    finally:
        await service.close_all()
        await made.close()
