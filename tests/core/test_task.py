"""New tasks are checked before a ledger sees them: keys, kinds, spans and payloads."""

import json
import pickle
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

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
    check_gate,
    check_text,
    encode_payload,
    is_alone,
    json_writer,
    same_json,
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


@pytest.mark.parametrize("ensure_ascii", [False, True])
@given(payload=JSON)
def test_a_writer_writes_what_python_writes(ensure_ascii, payload):
    """The quick writer gives the same text as `json.dumps`, escaped or not."""
    expected = json.dumps(payload, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))
    assert json_writer(ensure_ascii=ensure_ascii)(payload) == expected


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_a_writer_refuses_what_is_not_json(ensure_ascii):
    """Neither infinite numbers nor keys that are no text or number, nor objects."""
    write = json_writer(ensure_ascii=ensure_ascii)
    for wrong, error in ((float("nan"), ValueError), ({(1,): 2}, TypeError), (object(), TypeError)):
        with pytest.raises(error):
            write(wrong)
    assert write({"ä": [1, {"b": None}]}) == ('{"\\u00e4":[1,{"b":null}]}' if ensure_ascii else '{"ä":[1,{"b":null}]}')


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((1, 2), [1, 2], True),
        (1.0, 1, True),
        (1e23, 10**23, True),
        (0.1, 0.1, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": 2}, False),
        (None, {}, False),
        (UUID(int=1), str(UUID(int=1)), True),
    ],
)
def test_payloads_are_the_same_as_json(one, other, same):
    """However they were written: what counts is what a ledger keeps."""
    assert same_json(one, other) is same
    assert same_json(other, one) is same


def test_a_gate_cannot_be_called_like_a_pause():
    """Its name is text of a limited length that does not begin as the pause of a kind does."""
    assert check_gate("bank:DE") == "bank:DE"
    assert check_gate("x" * 200) == "x" * 200
    for wrong, said in (
        ("x" * 201, f"gate must be 1 to 200 characters of text, not {repr('x' * 201)[:80]}"),
        ("", "gate must be 1 to 200 characters of text, not ''"),
        (
            "kind:mail",
            "'kind:mail' is a name for the pause of a kind: let the gate's name begin with another word",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            check_gate(wrong)
        assert str(refused.value) == said


def test_a_task_is_put_behind_a_gate():
    """Another gate takes the place of its own; a deadline only where it has none."""
    task = NewTask(kind="k", key="a", gate="own", payload={"a": 1}, priority=0)
    assert task.behind(None, None) == task
    assert task.behind("other", None) == task._replace(gate="other")
    later = task.behind(None, minutes(5))
    assert (later.gate, later.deadline) == ("own", minutes(5))
    assert later.behind(None, minutes(9)).deadline == minutes(5)
    with pytest.raises(UsageError, match="pause of a kind"):
        task.behind("kind:mail", None)


def test_a_task_can_be_copied():
    """As it is: nothing of it is checked or read again."""
    task = NewTask(kind="k", key="a", payload={"a": [1]}, delay="5s", deadline="1h", trace="t", tenant="x", priority=2)
    for copied in (pickle.loads(pickle.dumps(task)), deepcopy(task)):
        assert copied == task
        assert type(copied) is NewTask
        assert copied.payload_json == '{"a":[1]}'


def test_the_fence_of_a_run_alone_never_changes():
    """It is made of the claim's own one, the same by every version: a worker of another release must know it."""
    fence = UUID("8f6f6f0c-9a3d-4a53-8f2c-0a7a5c2b1d1e")
    claim = Claim(Task(1, "a", "k", None, State.CLAIMED, 0), fence, datetime(2030, 1, 1, tzinfo=UTC))
    alone = claim.alone()
    assert str(alone.claim_id) == "96e84bbe-5740-5ec9-9986-d0b0fbbad85d"
    assert is_alone(alone.claim_id)
    assert alone.alone() is alone
    assert alone._replace(claim_id=fence) == claim
    assert not is_alone(uuid4())
