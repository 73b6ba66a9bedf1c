"""Which tasks ran when their worker was lost: asked of the history, and only where there may be one."""

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, event

from redrive.core.task import Claim
from tests.ledgers.homes import BACKOFF, LEASE, TRANSIENT, Home
from tests.ledgers.shapes import OWN

plain = pytest.mark.homes(lambda table: table.name not in ("command", "commandbus_command"))
"""Commands write more beside each claim."""


STATEMENTS = {"sqlite": 3, "postgres": 1}
"""How many statements a claim takes."""


async def claim_with_statements(home: Home, limit: int = 9) -> tuple[list[Claim], list[tuple[str, Any]]]:
    """What a claim took, and the statements that it executed."""

    def claim(connection: Connection) -> tuple[list[Claim], list[tuple[str, Any]]]:
        seen: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            seen.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", note)
        try:
            kinds = ["mail"] if home.table.kind else None
            return home.ledger._claim(connection, limit, LEASE, kinds, 1, uuid4()), seen
        finally:
            event.remove(connection, "before_cursor_execute", note)

    return await home.database.write(claim)


@plain
@pytest.mark.homes(lambda table: table.last_error is not None)
async def test_a_claim_without_lost_workers_asks_nothing_more(home: Home) -> None:
    """First tries and retries of ordinary failures cost no look at the history."""
    await home.put()
    await home.run(TRANSIENT)
    home.clock.advance(BACKOFF)
    await home.put(2)
    claims, statements = await claim_with_statements(home)
    assert len(claims) == 3
    assert [claim.suspect for claim in claims] == [False] * 3
    assert len(statements) == STATEMENTS[home.store]


@plain
async def test_a_claim_with_a_suspect_is_one_statement_more(home: Home) -> None:
    """However many there are, the history is asked once; who was not lost is not marked."""
    await home.put(3)
    claims = await home.ledger.claim(3, LEASE)
    await home.settle(claims[0], TRANSIENT)
    home.clock.advance(LEASE)
    lost = {claim.task.id for claim in await home.expire()}
    assert len(lost) == 2
    home.clock.advance(BACKOFF)
    claims, statements = await claim_with_statements(home)
    assert {claim.task.id for claim in claims if claim.suspect} == lost
    assert (len(claims), len(statements)) == (3, STATEMENTS[home.store] + 1)


@pytest.mark.homes(lambda table: table == OWN.on("sqlite") or table == OWN.on("postgres"))
async def test_the_history_is_read_by_its_index(home: Home) -> None:
    """Only the attempts of the tasks in question are read."""
    await home.put()
    await home.claim_one()
    home.clock.advance(LEASE)
    await home.expire()
    [claim], [*_, (question, parameters)] = await claim_with_statements(home)
    assert claim.suspect

    def explain(connection: Connection) -> str:
        if home.store == "sqlite":
            rows = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + question, parameters)
        else:
            rows = connection.exec_driver_sql("EXPLAIN (COSTS OFF) " + question, parameters)
        return "\n".join(str(row[-1]) for row in rows)

    plan = await home.database.write(explain)
    assert ("redrive_attempt_task_idx" if home.store == "sqlite" else "redrive_attempt_pkey") in plan, plan
