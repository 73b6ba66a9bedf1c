"""Whatever arrives is a message that fits the contract, or has a reason why it does not. Nothing else comes out."""

import json
import subprocess
import sys
import time
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.systems.relay.message import (
    COUNT_MAX,
    JSON,
    PROTOBUF,
    RETRIES_MAX,
    InvalidMessageError,
    read_message,
)
from redrive.systems.relay.relay_pb2 import RetryMessage
from redrive.systems.relay.settings import RelaySettings
from redrive.systems.relay.values import Arrival

ROOT = Path(__file__).parents[3]
SETTINGS = RelaySettings(_env_file=None)
INT32_MAX = 2**31 - 1


def read(body: bytes, content_type: str | None = PROTOBUF, **given: Any) -> Arrival:
    kept = {"content_encoding": None, "headers": {}, "settings": SETTINGS} | given
    return read_message(body, content_type=content_type, **kept)


def proto(**given: Any) -> bytes:
    fields = {"message_id": "m-1", "original_queue": "orders", "original_payload": b"\x00\xff"} | given
    return RetryMessage(**fields).SerializeToString()


def as_json(**given: Any) -> bytes:
    fields = {"message_id": "m-1", "original_queue": "orders", "original_payload": b64encode(b"\x00\xff").decode()}
    return json.dumps(fields | given).encode()


@pytest.mark.parametrize(
    "content_type",
    [PROTOBUF, None, "", "application/protobuf", "application/vnd.google.protobuf", "application/octet-stream"],
)
def test_protobuf(content_type: str | None) -> None:
    """Protobuf is read also where nobody says that it is; what is absent has its default."""
    arrival = read(proto(error_reason="too slow", retry_count=2), content_type)
    assert (arrival.message_id, arrival.queue, arrival.payload) == ("m-1", "orders", b"\x00\xff")
    assert (arrival.error_reason, arrival.retry_count, arrival.max_retries) == ("too slow", 2, 3)
    assert (arrival.not_before, arrival.headers, arrival.content_type) == (None, {}, None)


@pytest.mark.parametrize("content_type", [JSON, "application/json; charset=utf-8", "Application/JSON"])
def test_json(content_type: str) -> None:
    """JSON with the same names, numbers of 64 bits also as text, is the same message."""
    body = as_json(error_reason="no ü", max_retries=7, next_retry_at_ms="1700000000000", retry_count=None, more=[1])
    arrival = read(body, content_type)
    assert (arrival.payload, arrival.error_reason, arrival.max_retries) == (b"\x00\xff", "no ü", 7)
    assert arrival.not_before == datetime.fromtimestamp(1_700_000_000, UTC)


POISON: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "truncated": ("unparsable", proto()[:-1], {}),
    "random bytes": ("unparsable", b"\xff" * 40, {}),
    "empty": ("no_message_id", b"", {}),
    "text that is not UTF-8": ("unparsable", b"\x0a\x02\xff\xfe\x1a\x01q", {}),
    "no message id": ("no_message_id", proto(message_id=""), {}),
    "no queue": ("no_original_queue", proto(original_queue=""), {}),
    "negative count": ("negative_count", proto(retry_count=-1), {}),
    "negative maximum": ("negative_count", proto(max_retries=-3), {}),
    "hint in microseconds": ("bad_hint", proto(next_retry_at_ms=1_800_000_000_000_000), {}),
    "hint in seconds": ("bad_hint", proto(next_retry_at_ms=1_800_000_000), {}),
    "hint before all time": ("bad_hint", proto(next_retry_at_ms=-5), {}),
    "hint beyond all calendars": ("bad_hint", proto(next_retry_at_ms=2**63 - 1), {}),
    "hint in two years": ("bad_hint", proto(next_retry_at_ms=int(time.time() + 2 * 366 * 86_400) * 1000), {}),
    "too large": ("too_large", proto(original_payload=bytes(SETTINGS.relay_max_message_bytes)), {}),
    "id with NUL": ("bad_field", proto(message_id="a\0b"), {}),
    "id too long": ("bad_field", proto(message_id="x" * 501), {}),
    "queue with NUL": ("bad_field", proto(original_queue="a\0b"), {}),
    "queue longer than AMQP's": ("bad_field", proto(original_queue="ü" * 128), {}),
    "unknown content type": ("content_type", proto(), {"content_type": "text/plain"}),
    "compressed": ("content_type", proto(), {"content_encoding": "gzip"}),
    "huge headers": ("bad_headers", proto(), {"headers": {"x": "y" * 70_000}}),
    "no JSON": ("unparsable", b"{", {"content_type": JSON}),
    "JSON that is no object": ("unparsable", b"[1]", {"content_type": JSON}),
    "JSON too deep": ("unparsable", b"[" * 100_000, {"content_type": JSON}),
    "JSON that is not UTF-8": ("unparsable", b'{"message_id": "\xff"}', {"content_type": JSON}),
    "JSON with half a character": ("bad_field", as_json(message_id="\ud800"), {"content_type": JSON}),
    "JSON with no base64": ("bad_field", as_json(original_payload="?"), {"content_type": JSON}),
    "JSON with a number for text": ("bad_field", as_json(message_id=7), {"content_type": JSON}),
    "JSON with text for a number": ("bad_field", as_json(retry_count="two"), {"content_type": JSON}),
    "JSON with a fraction": ("bad_field", as_json(retry_count=1.5), {"content_type": JSON}),
    "JSON with a truth": ("bad_field", as_json(retry_count=True), {"content_type": JSON}),
    "JSON with too large a number": ("bad_field", as_json(retry_count=2**31), {"content_type": JSON}),
    "JSON with an endless number": ("unparsable", b'{"retry_count": ' + b"9" * 5000 + b"}", {"content_type": JSON}),
}


@pytest.mark.parametrize(("reason", "body", "given"), POISON.values(), ids=POISON)
def test_poison(reason: str, body: bytes, given: dict[str, Any]) -> None:
    """Each kind of bad input has a reason from a short list."""
    with pytest.raises(InvalidMessageError) as caught:
        read(body, **given)
    assert caught.value.reason == reason
    assert str(caught.value)


@given(
    body=st.one_of(st.binary(max_size=200), st.text().map(str.encode), st.just(proto())),
    content_type=st.one_of(st.none(), st.sampled_from([PROTOBUF, JSON]), st.text(max_size=20)),
)
def test_nothing_else_comes_out(body: bytes, content_type: str | None) -> None:
    """Any bytes of any type are an arrival that the database can hold, or bad input."""
    try:
        arrival = read(body, content_type)
    except InvalidMessageError as error:
        assert error.reason.isidentifier()
    else:
        assert 1 <= len(arrival.message_id) <= 500
        assert "\0" not in arrival.message_id + arrival.queue + arrival.error_reason
        assert 0 <= arrival.retry_count <= COUNT_MAX
        assert 0 <= arrival.max_retries <= RETRIES_MAX


def test_a_payload_is_not_told() -> None:
    """What is wrong with it is, but not what it holds: the reason is logged and travels in a header."""
    with pytest.raises(InvalidMessageError) as caught:
        read(as_json(original_payload={"card": "4111"}), JSON)
    assert str(caught.value) == "original_payload does not hold this dict"


def test_numbers_beyond_the_engines_own_are_bounded() -> None:
    """The largest counts that fit the contract neither overflow nor let a row die of failures."""
    arrival = read(proto(retry_count=INT32_MAX, max_retries=INT32_MAX))
    assert (arrival.retry_count, arrival.max_retries) == (COUNT_MAX, RETRIES_MAX)
    assert arrival.retry_count >= arrival.max_retries


def test_a_hint_within_a_year_is_taken() -> None:
    """None for 0; the past, and the future up to the longest wait that there is, are instants like any other."""
    assert read(proto(next_retry_at_ms=0)).not_before is None
    for ahead_days in (-3650, -1, 0, 1, 365):
        hint_ms = int((time.time() + ahead_days * 86_400) * 1000)
        assert read(proto(next_retry_at_ms=hint_ms)).not_before == datetime.fromtimestamp(hint_ms / 1000, UTC)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text/csv", "text/csv"),
        ("ä" * 127, "ä" * 127),
        ("ä" * 128, None),
        ("x" * 256, None),
        ("a\0b" + "x" * 252, None),
        ("", None),
        (5, None),
        (None, None),
    ],
)
def test_a_content_type_that_cannot_be_sent_is_none(given: Any, expected: str | None) -> None:
    """AMQP counts its bytes, and those of what is left after redaction; a longer one could never be published."""
    assert read(proto(), headers={"x-original-content-type": given}).content_type == expected


def test_secrets_leave_the_reason() -> None:
    """What is stored and travels as the error is redacted, shortened, and free of NUL."""
    arrival = read(proto(error_reason="password=hunter2 at amqp://u:s3cret@host \0" + "x" * 9000))
    assert "hunter2" not in arrival.error_reason
    assert "s3cret" not in arrival.error_reason
    assert len(arrival.error_reason) <= 2000
    assert "\0" not in arrival.error_reason


# --- headers ----------------------------------------------------------------------------------------------------------


# --- tags -------------------------------------------------------------------------------------------------------------


# --- the generated code -----------------------------------------------------------------------------------------------


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """`relay_pb2.py` and its types are what the compiler makes of `relay.proto`; if not, run `make proto`."""
    made = (
        "--proto_path=src",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
        "src/redrive/systems/relay/relay.proto",
    )
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *made], cwd=ROOT, check=True)
    for name in ("relay_pb2.py", "relay_pb2.pyi"):
        where = Path("redrive/systems/relay") / name
        assert (tmp_path / where).read_text() == (ROOT / "src" / where).read_text(), name
