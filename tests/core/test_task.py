"""New tasks are checked before a ledger sees them: keys, kinds, spans and payloads."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.durations import minutes, seconds
from redrive.core.states import State
from redrive.core.task import (
    KEY_CHARS_MAX,
    KIND_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    Claim,
    NewTask,
    Task,
    check_text,
    encode_payload,
)
from redrive.errors import DurationError, PayloadError, UsageError

STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


def nested(depth: int) -> list:
    inside: list = []
    for _ in range(depth):
        inside = [inside]
    return inside


def circle() -> list:
    inside: list = []
    inside.append(inside)
    return inside


@given(JSON)
def test_a_json_payload_comes_back_the_same(payload):
    """What is JSON is stored as text that reads back equal."""
    assert json.loads(NewTask(kind="k", key="1", payload=payload).payload_json) == payload


def test_payload_text_is_compact_and_unescaped():
    """Payloads are stored without padding and with their own letters."""
    assert encode_payload({"a": [1, "ü", None]}) == '{"a":[1,"ü",null]}'


@pytest.mark.parametrize(
    "payload",
    [
        datetime(2026, 1, 1, tzinfo=UTC),
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        b"bytes",
        {1, 2},
        Decimal("1.5"),
        object(),
        float("nan"),
        [float("inf")],
        {(1, 2): "tuple key"},
        "\ud800",
        nested(100_000),
        circle(),
    ],
    ids=lambda payload: f"{type(payload).__name__}",
)
def test_what_is_not_json_is_refused_with_the_remedy(payload):
    """A payload that is not JSON raises `PayloadError`, which lists what is allowed."""
    with pytest.raises(PayloadError, match=r"the payload is not JSON: .*; use dicts with text keys, lists, text"):
        NewTask(kind="k", key="1", payload=payload)


def test_a_payload_has_a_limit_in_bytes():
    """The limit counts encoded bytes, is inclusive, and says what to do beyond it."""
    assert encode_payload("x" * (PAYLOAD_BYTES_MAX - 2))
    for payload in ("x" * (PAYLOAD_BYTES_MAX - 1), "ü" * (PAYLOAD_BYTES_MAX // 2)):
        with pytest.raises(PayloadError, match="more than 1,048,576: store it elsewhere and add a reference"):
            encode_payload(payload)


@given(STORABLE)
def test_any_storable_text_can_be_a_key(key):
    """Every text without NUL and lone surrogates is a key up to its limit and refused beyond."""
    if len(key) <= KEY_CHARS_MAX:
        assert NewTask(kind="k", key=key).key == key
    else:
        with pytest.raises(UsageError):
            NewTask(kind="k", key=key)


@pytest.mark.parametrize(("field", "chars_max"), [("kind", KIND_CHARS_MAX), ("key", KEY_CHARS_MAX)])
def test_kind_and_key_have_limits(field, chars_max):
    """Kind and key are 1 to so many characters of text; the error names the field and the limit."""
    right = {"kind": "k", "key": "1"}
    assert NewTask(**right | {field: "x" * chars_max})
    for wrong in ("", "x" * (chars_max + 1), 7, None, b"k", ["k"]):
        with pytest.raises(UsageError, match=f"^{field} must be 1 to {chars_max} characters of text"):
            NewTask(**right | {field: wrong})


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ok\udfff"])
def test_text_that_no_database_stores_is_refused(text):
    """NUL and lone surrogates are refused before a database does it."""
    with pytest.raises(UsageError, match=r"^key holds a character that no database stores"):
        check_text("key", text, 10)


def test_a_wrong_text_is_shown_shortened():
    """An error about a huge key does not repeat all of it."""
    with pytest.raises(UsageError) as caught:
        check_text("key", "x" * 100_000, 500)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("most", [0, -1, 1_000_001, 2.5, "3", True])
def test_a_budget_out_of_range_is_refused(most):
    """A task's own number of attempts is a whole number from one to a million."""
    with pytest.raises(UsageError, match="attempts must be a whole number from 1 to 1,000,000"):
        NewTask(kind="k", key="1", failures_max=most)


def test_a_budget_within_range_is_kept():
    """One and a million are still allowed."""
    assert [NewTask(kind="k", key="1", failures_max=most).failures_max for most in (1, 10**6, None)] == [1, 10**6, None]


@pytest.mark.parametrize("field", ["delay", "deadline"])
@pytest.mark.parametrize("wrong", [-5, "soon", timedelta(seconds=-1), timedelta(days=367)])
def test_spans_are_checked_by_name(field, wrong):
    """A delay or deadline that is no span within bounds raises `DurationError` with its name."""
    with pytest.raises(DurationError, match=f"^{field} must"):
        NewTask(kind="k", key="1", **{field: wrong})
    assert NewTask(kind="k", key="1", delay=minutes(1), deadline=seconds(5)).delay == minutes(1)


def test_a_claim_counts_its_try_from_one():
    """The number of a claim is one more than the failures before it."""
    task = Task(id=1, key="1", kind="k", payload=None, state=State.CLAIMED, failures=2)
    claim = Claim(task=task, claim_id=UUID(int=1), claimed_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert claim.number == 3
    assert claim.abandoned is None


def test_a_system_may_take_larger_payloads():
    """Its own limit holds instead of the common one, and is named in the error."""
    large = "x" * PAYLOAD_BYTES_MAX
    made = NewTask(kind="a", key="k", payload=large, payload_bytes_max=PAYLOAD_BYTES_MAX + 2)
    assert len(made.payload_json) == PAYLOAD_BYTES_MAX + 2
    with pytest.raises(PayloadError, match=f"{PAYLOAD_BYTES_MAX + 1:,}"):
        NewTask(kind="a", key="k", payload=large, payload_bytes_max=PAYLOAD_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "payload", [7, 0.1, 1e16, True, None, 'ü "\\\n\x7f', [1, [2, (3,)]], {"a": {"b": [1.5, None]}, "ü": 2**70}]
)
def test_a_payload_is_the_text_that_python_writes(payload):
    """The encoder is made once, and says the same as one that is made for each call."""
    assert encode_payload(payload) == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def test_a_payload_that_holds_itself_is_refused():
    """However deep one would follow it."""
    endless = []
    endless.append(endless)
    with pytest.raises(PayloadError, match="is not JSON"):
        encode_payload(endless)
