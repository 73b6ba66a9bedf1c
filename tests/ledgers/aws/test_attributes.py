"""Values as DynamoDB writes them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.ledgers.aws.attributes import decode, encode, from_iso, from_micros, to_iso, to_item, to_micros

values = st.recursive(
    st.text() | st.integers(-(10**30), 10**30) | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1), inner, max_size=4),
    max_leaves=10,
)
instants = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))


@given(values)
def test_values_come_back(value: object) -> None:
    """What was written is read as it was."""
    assert decode(encode(value)) == value


def test_none_is_not_written() -> None:
    """What is not there takes no room, in an item and in its maps."""
    assert to_item({"a": None, "b": {"c": None, "d": 1}}) == {"b": {"M": {"d": {"N": "1"}}}}
    with pytest.raises(TypeError, match="no attribute holds"):
        encode(object())


@given(instants, instants)
def test_instants_come_back_and_sort_as_text(one: datetime, other: datetime) -> None:
    """To the microsecond, in both spellings; and text sorts as time does."""
    assert from_micros(to_micros(one)) == one
    assert from_iso(to_iso(one)) == one
    assert (to_iso(one) < to_iso(other)) is (one < other)
    assert to_iso(one).endswith("Z")
    assert to_micros(one + timedelta(microseconds=1)) == to_micros(one) + 1
