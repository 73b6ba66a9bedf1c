"""The gates of endpoints on DynamoDB: what they promise on databases, and what is parked, put off and refused here."""

# The same tests, run on this store because they are in this folder.
from ..sql.test_gates import (  # noqa: F401
    test_a_hanging_endpoint_takes_ten_slots_and_no_more,
    test_an_outage_fails_no_event,
    test_limits_can_be_set,
    test_what_is_parked_fails_when_its_endpoint_is_disabled,
    test_what_is_parked_is_said,
)
