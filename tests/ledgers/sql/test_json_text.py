"""Payloads come back as they went in, on both databases."""

import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redrive.core.durations import seconds
from redrive.core.task import NewTask
from redrive.ledgers.open import open_ledger
from redrive.ledgers.sql.database import Database

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
PAYLOADS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)


async def stored(database: Database, payloads: list[Any]) -> list[tuple[Any, Any]]:
    """Each payload as a page shows it and as a claim hands it out."""
    ledger = await open_ledger(database)
    added = await ledger.add([NewTask(kind="mail", key=str(uuid4()), payload=one) for one in payloads])
    claims = {claim.task.id: claim.task for claim in await ledger.claim(len(payloads), seconds(30))}
    found = []
    for one in added:
        task = await ledger.get(one.id)
        assert task is not None
        found.append((task.payload, claims[one.id].payload))
    return found


@pytest.mark.parametrize(
    "payload",
    [12345678901234567890123, 1.0, -0.0, 1e300, True, None, "", "1.0", "null", [], {}, {"n": [1.0, 10**22]}],
    ids=repr,
)
async def test_a_payload_that_looks_like_something_else(database: Database, payload: Any) -> None:
    """Numbers keep their digits and their kind, texts that look like numbers stay texts."""
    [both] = await stored(database, [payload])
    for shown in both:
        assert (json.dumps(shown), type(shown)) == (json.dumps(payload), type(payload))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(payloads=st.lists(PAYLOADS, min_size=1, max_size=20))
async def test_any_payload(database: Database, payloads: list[Any]) -> None:
    """Whatever JSON can say, of whatever depth."""
    for payload, both in zip(payloads, await stored(database, payloads), strict=True):
        assert [json.dumps(shown) for shown in both] == [json.dumps(payload)] * 2
