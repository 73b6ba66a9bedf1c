"""A dead letter as it is read: where it failed, why, how often, under which id it goes on, and what is left of its headers."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic

from redrive.systems.relay import headers as amqp
from redrive.systems.relay.deaths import DeadLetter, Death, read_death, read_letter
from redrive.systems.relay.rules import load_rules
from redrive.systems.relay.tables import MESSAGE_ID_CHARS_MAX

RULES = load_rules()
WHEN = datetime(2026, 1, 31, tzinfo=UTC)
ONLY = {"is_only": True, "is_by_name": True}
ONCE = {"is_only": False, "is_by_name": True}
NEVER = {"is_only": False, "is_by_name": False}


def death(
    queue: Any = "orders", reason: Any = "rejected", count: Any = 1, exchange: Any = "", keys: Any = None
) -> dict[str, Any]:
    """One entry of the broker's record; without other keys it was sent to the queue by its name."""
    return {
        "queue": queue,
        "reason": reason,
        "count": count,
        "exchange": exchange,
        "routing-keys": [queue] if keys is None else keys,
        "time": WHEN,
    }


def letter(headers: dict[str, Any] | None = None, *, routing_key: str = "key", **properties: Any) -> DeadLetter:
    """A dead letter with these headers and properties, read."""
    header = SimpleNamespace(properties=Basic.Properties(headers=headers, **properties))
    message: Any = SimpleNamespace(header=header, body=b"body", routing_key=routing_key)
    return read_letter(message, RULES, consumed="dead")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"x-death": []}, None),
        ({"x-death": "no"}, None),
        ({"x-death": [5, {"queue": ""}, {"queue": 5}, {"reason": "expired"}]}, None),
        ({"x-death": [death()]}, ("orders", "rejected", 1, ONLY)),
        ({"x-death": [death(reason="delivery_limit", exchange="events")]}, ("orders", "delivery_limit", 1, NEVER)),
        # from orders into a queue that waits, and out of it when the time was up
        ({"x-death": [death("wait", "expired", 2), death(count=3)]}, ("orders", "rejected", 5, ONLY)),
        # round and round: orders died last, and is the first in the list
        (
            {"x-death": [death(count=2), death("wait", "expired")], "x-first-death-queue": "orders"},
            ("orders", "rejected", 3, ONLY),
        ),
        # a copy that an exchange gave it, back by its name from a queue that waits
        (
            {"x-death": [death(reason="expired"), death("wait"), death(exchange="events")], "x-first-death-queue": "orders"},
            ("orders", "expired", 3, ONCE),
        ),
        # sent by name to this queue and to others, openly or not
        ({"x-death": [death(keys=["orders", "mail"])]}, ("orders", "rejected", 1, NEVER)),
        ({"x-death": [death("mail", keys=["orders"])]}, ("mail", "rejected", 1, NEVER)),
        # a note that the record does not know is nobody's
        ({"x-death": [death()], "x-first-death-queue": "elsewhere"}, ("orders", "rejected", 1, ONLY)),
        ({"x-death": [death(reason=5, count="many", exchange=None, keys=5)]}, ("orders", "", 0, NEVER)),
        ({"x-death": [death(count=-5), death("b", count=True)]}, ("b", "rejected", 0, ONLY)),
        ({"x-death": [death(count=2**62, reason="r" * 101)]}, ("orders", "r" * 100, 900_000, ONLY)),
    ],
)  # fmt: skip
def test_the_record_of_deaths(headers: dict[str, Any], expected: tuple[Any, ...] | None) -> None:
    """The queue that it came from, the reason there, the count over all queues, and whether it was sent to that queue alone."""
    found = read_death(headers)
    if expected is None:
        assert found is None
    else:
        queue, reason, deaths, way = expected
        assert found == Death(queue=queue, reason=reason, deaths=deaths, **way)


CAME_BACK = {"x-retry-scheduler": "relay", "x-message-id": "m-1", "x-retry-count": 2}


@pytest.mark.parametrize(
    ("headers", "message_id", "expected"),
    [
        ({"x-death": [death()]}, "m-1", "m-1"),
        ({"x-death": [death()], "x-message-id": "m-0"}, "m-1", "m-0"),
        # back from the relay, whatever its AMQP id is now
        ({"x-death": [death()], **CAME_BACK}, "other", "m-1"),
        ({"x-original-queue": "orders", **CAME_BACK}, "other", "m-1"),
        # somebody has copied the headers of a retry on, and sent it another way than the relay does
        ({"x-death": [death(exchange="events")], **CAME_BACK}, "other", "orders:other"),
        ({"x-death": [death("mail", keys=["orders"])], **CAME_BACK}, "other", "mail:other"),
        ({"x-death": [death(exchange="events")], "x-message-id": "m-0"}, "m-1", "orders:m-1"),
        # an exchange may have given copies to several queues: each is a message of its own
        ({"x-death": [death(exchange="events")]}, "m-1", "orders:m-1"),
        ({"x-death": [death("mail", exchange="events")]}, "m-1", "mail:m-1"),
        ({"x-death": [death()], "CC": ["mail"]}, "m-1", "orders:m-1"),
        ({"x-death": [death(keys=["orders", "mail"])]}, "m-1", "orders:m-1"),
        ({"x-death": [death("mail", keys=["orders"])]}, "m-1", "mail:m-1"),
        (
            {"x-death": [death(reason="expired"), death("wait"), death(exchange="events")], "x-first-death-queue": "orders"},
            "m-1", "orders:m-1",
        ),
        ({"x-original-queue": "orders"}, "m-1", "orders:m-1"),
        ({}, "m-1", "key:m-1"),
    ],
)  # fmt: skip
def test_the_id(headers: dict[str, Any], message_id: str, expected: str) -> None:
    """The id of the story: the relay's own, else the producer's, with the queue before it where there may be copies."""
    assert letter(headers, message_id=message_id).message_id == expected


@pytest.mark.parametrize("given_id", [None, "", "a\0b", "\udcff", "x" * (MESSAGE_ID_CHARS_MAX + 1), 5, b"raw"])
def test_two_messages_without_a_usable_id_are_two(given_id: Any) -> None:
    """Nothing that they hold may name them: the second would pass for a copy of the first, and be lost."""
    headers = {"x-death": [death()], "x-message-id": given_id, "x-retry-scheduler": "relay"}
    first, second = letter(dict(headers)).message_id, letter(dict(headers)).message_id
    assert first != second
    assert len(first) == 36


def test_an_id_that_is_too_long_with_its_queue_is_shortened_the_same_way_each_time() -> None:
    """A redelivery is the same story."""
    headers = {"x-death": [death("q" * 255, exchange="events")]}
    ids = {letter(headers, message_id=one * 250).message_id for one in ("a", "a", "b")}
    assert len(ids) == 2
    assert all(len(one) <= MESSAGE_ID_CHARS_MAX for one in ids)


@pytest.mark.parametrize(
    ("given_count", "expected"), [(None, 0), (2, 2), (-1, 0), (True, 0), ("2", 0), (2**40, 900_000)]
)
def test_the_count_is_carried_on(given_count: Any, expected: int) -> None:
    """From the header of the relay, else nought; nothing that a stranger puts there breaks anything."""
    assert letter({"x-death": [death(count=7)], "x-retry-count": given_count}).retry_count == expected
    copied = {"x-death": [death(exchange="events")], **CAME_BACK, "x-retry-count": given_count}
    assert letter(copied, message_id="other").retry_count == expected


def test_what_it_was_before_it_died() -> None:
    """Headers, content type and properties are those of the message that failed; what came with its failures is gone."""
    read = letter(
        {
            "tenant": "a", "x-death": [death()], "x-first-death-queue": "orders", "x-last-death-reason": "rejected",
            "x-exception-message": "timeout", "x-dead-letter-class": "business", "x-original-properties": {"type": "t"},
            "x-delivery-count": 3, "CC": ["mail"], **CAME_BACK,
        },
        content_type="text/x-order", content_encoding="gzip", correlation_id="c", reply_to="answers", message_type="order",
        app_id="shop", message_id="m-1", priority=3, timestamp=WHEN, expiration="50", user_id="guest",
    )  # fmt: skip
    assert read.headers == {"tenant": "a"}
    assert read.content_type == "text/x-order"
    assert read.properties == {
        "content_encoding": "gzip", "correlation_id": "c", "reply_to": "answers", "type": "order", "app_id": "shop",
        "message_id": "m-1", "priority": 3, "timestamp": WHEN,
    }  # fmt: skip
    assert (read.trouble.error, read.error_reason) == ("timeout", "timeout")


def test_a_secret_in_an_error_is_not_told() -> None:
    """What people read is redacted; what the rules look at is not sent on."""
    read = letter({"x-death": [death()], "x-error": "postgresql://shop:hunter2@db/shop refused"})
    assert "hunter2" not in read.error_reason
    assert letter({"x-death": [death()]}).error_reason == "rejected in orders, without an error text"


@pytest.mark.parametrize(
    ("headers", "queue", "is_placed"),
    [
        ({"x-death": [death()], "x-original-queue": "other"}, "orders", True),
        ({"x-original-queue": "orders"}, "orders", True),
        ({"x-original-queue": "q" * 256}, "key", False),
        ({}, "key", False),
    ],
)
def test_where_it_failed(headers: dict[str, Any], queue: str, is_placed: bool) -> None:
    """The broker's record goes before a header; where neither says it, it is not known."""
    read = letter(headers)
    assert (read.trouble.queue, read.is_placed) == (queue, is_placed)
    assert letter({}, routing_key="").trouble.queue == "dead"


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
KNOWN = [
    "x-death",
    "x-first-death-queue",
    "x-message-id",
    "x-retry-count",
    "x-retry-scheduler",
    "x-error",
    "x-original-queue",
]
entries = st.lists(
    st.dictionaries(st.sampled_from(["queue", "reason", "count", "exchange", "routing-keys"]), anything) | anything,
    max_size=3,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=9), anything, max_size=6), entries, anything)
def test_whatever_it_holds_it_is_read(headers: dict[str, Any], deaths: list[Any], message_id: Any) -> None:
    """Every message becomes a dead letter that the relay can take: an id and a queue within their limits, a verdict."""
    read = letter(headers | {"x-death": deaths}, message_id=message_id)
    assert 1 <= len(read.message_id) <= MESSAGE_ID_CHARS_MAX
    assert 1 <= len(read.trouble.queue.encode()) <= 255
    assert 0 <= read.retry_count <= 900_000
    assert RULES.classify(read.trouble).rule
    assert not set(read.headers) & {"x-death", amqp.MESSAGE_ID, *amqp.NOTES}


@settings(deadline=None)
@given(anything | st.dictionaries(st.sampled_from(amqp.PROPERTY_NAMES), anything))
def test_properties_can_be_sent(table: Any) -> None:
    """Whatever a stranger gives as properties, only what the driver can send is taken."""
    taken = amqp.properties(table)
    if "type" in taken:
        taken["message_type"] = taken.pop("type")
    Basic.Properties(**taken).marshal()


def test_properties_that_would_hurt_are_left_out() -> None:
    """An address for answers that closes the channel of whoever publishes it, and what is not on the list."""
    given_table = {
        "reply_to": "amq.rabbitmq.reply-to",
        "user_id": "root",
        "expiration": "1",
        "priority": True,
        "type": "t",
    }
    assert amqp.properties(given_table) == {"type": "t"}
