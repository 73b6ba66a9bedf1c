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
