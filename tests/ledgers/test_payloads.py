"""Payloads come back as they went in, from every table that redrive may insert into, whatever JSON they are."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redrive.core.task import same_json
from redrive.ports import Filter
from tests.ledgers.homes import LEASE, Home

addable = pytest.mark.homes(lambda table: table.payload is not None and table.name != "jobs")
"""All but the one whose payload column has a mind of its own: JSON on SQLite, jsonb on PostgreSQL."""
with_numbers_of_its_own = pytest.mark.homes(lambda table: table.name == "jobs")

TEXT = st.text(max_size=20)
PLAIN_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
"""jsonb takes no NUL."""


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Any JSON."""
    numbers = (
        st.integers()
        | st.integers(min_value=-(10**60), max_value=10**60)
        | st.floats(allow_nan=False, allow_infinity=False)
    )
    leaves = st.none() | st.booleans() | numbers | text
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4))


quietly = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


async def given_back(home: Home, payloads: list[Any]) -> list[tuple[Any, Any]]:
    """What a claim and a look give back for each payload; adding it again says that it is the same."""
    new = [home.new(payload=payload) for payload in payloads]
    ids = [added.id for added in await home.ledger.add(new)]
    claimed = {claim.task.id: claim.task.payload for claim in await home.ledger.claim(len(new), LEASE)}
    shown = {task.id: task.payload for task in (await home.ledger.find(Filter(ids=ids))).items}
    assert [added.same_payload for added in await home.ledger.add(new)] == [True] * len(new)
    return [(claimed[id_], shown[id_]) for id_ in ids]


@addable
@given(payloads=st.lists(values(TEXT), min_size=1, max_size=20))
@example(
    payloads=[1.0, 1, -0.0, 12345678901234567890123, 1e22, 5e-324, 1.7976931348623157e308, "\0", "", "1", "null", None]
)
@example(payloads=[{"b": 1, "a": 2}, {"": {}}, [[]], "2026-01-01", "true", "[1", "\u2028\ufeff𝒳"])
@quietly
async def test_a_payload_comes_back_as_it_went_in(home: Home, payloads: list[Any]) -> None:
    """To the letter: the same types, the same digits, the same order of keys."""
    for payload, both in zip(payloads, await given_back(home, payloads), strict=True):
        assert [json.dumps(one) for one in both] == [json.dumps(payload)] * 2


@with_numbers_of_its_own
@given(payloads=st.lists(st.dictionaries(PLAIN_TEXT, values(PLAIN_TEXT), max_size=4), min_size=1, max_size=20))
@example(payloads=[{"large": 1e23, "larger": 1.7976931348623157e308, "exact": 12345678901234567890123, "one": 1.0}])
@quietly
async def test_an_object_comes_back_equal(home: Home, payloads: list[Any]) -> None:
    """Columns that keep numbers and not their spelling keep what they say: objects come back equal."""
    for payload, both in zip(payloads, await given_back(home, payloads), strict=True):
        assert all(same_json(one, payload) for one in both)
