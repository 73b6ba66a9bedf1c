"""Headers on their way through the database: what keeps its type, and what is left behind."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode, encode

from redrive.systems.relay import headers as amqp

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(width=32, allow_nan=False),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
        st.binary(max_size=20).map(bytearray),
        st.integers(0, 2**32 - 1).map(lambda at: datetime.fromtimestamp(at, UTC)),
        st.builds(
            lambda mantissa, scale: Decimal(mantissa).scaleb(-scale), st.integers(0, 2**31 - 1), st.integers(0, 20)
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", "$bytes", "$table", "b c"]), inner, max_size=4),
    ),
    max_leaves=10,
)


@given(value=VALUES)
def test_headers_survive_the_database(value: Any) -> None:
    """What a broker can send is, after a round through JSON, the very same on the wire."""
    back = amqp.from_json(json.loads(json.dumps(amqp.to_json(value))))
    assert encode.field_table({"h": back}) == encode.field_table({"h": value})


def test_text_that_is_no_text_goes_on_as_bytes() -> None:
    """A long string that is not UTF-8 arrives as bytes, which the driver itself could not send again."""
    wire = b"\x01hS" + (2).to_bytes(4, "big") + b"\xff\xfe"
    _, arrived = decode.field_table(len(wire).to_bytes(4, "big") + wire)
    sent = amqp.sendable(arrived)
    assert amqp.fit(sent)
    assert sent == {"h": bytearray(b"\xff\xfe")}
    assert math.isnan(amqp.sendable({"nan": math.nan})["nan"])
    assert amqp.sendable({"big": 1e300}) == {"big": "1e+300"}


def test_headers_that_would_lead_elsewhere_are_dropped() -> None:
    """Copies by CC would hide that the queue is missing; deaths and our own headers begin anew."""
    given = {"CC": ["a"], "BCC": ["b"], "x-death": [], "x-retry-count": 9, "x-original-queue": "q", "cc": 1, "mine": 2}
    assert amqp.kept(given) == {"cc": 1, "mine": 2}


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_headers_of_the_last_round_go_on() -> None:
    """What an upstream does not send again stays, what it does is newer; what was said of one failure alone is not carried on."""
    of_one_round = {
        "x-resubmitted-by": "ada",
        "x-resubmitted-at": "now",
        "x-dead-letter-class": "business",
        "x-dead-letter-rule": "r",
    }
    stored = {"tenant": "a", "step": 1, "traceparent": TRACEPARENT, **of_one_round}
    assert amqp.carried(stored, {"step": 2}) == {"tenant": "a", "step": 2, "traceparent": TRACEPARENT}
    assert amqp.carried(stored, {"x-dead-letter-class": "transient"})["x-dead-letter-class"] == "transient"


def test_headers_that_do_not_fit_together_are_those_that_came() -> None:
    """A message must be able to go out: rather without what was stored before than not at all."""
    stored, arrived = {"old": "x" * 40_000}, {"new": "y" * 40_000}
    assert amqp.carried(stored, arrived) == arrived
    assert amqp.carried(stored, {"new": "y"}) == {**stored, "new": "y"}


def test_a_trace_is_read_where_there_is_one() -> None:
    """Only what W3C Trace Context calls a traceparent."""
    assert amqp.trace_of({"traceparent": TRACEPARENT}) == TRACEPARENT
    for headers in ({}, {"traceparent": 5}, {"traceparent": TRACEPARENT.upper()}, {"traceparent": TRACEPARENT + "\n"}):
        assert amqp.trace_of(headers) is None
