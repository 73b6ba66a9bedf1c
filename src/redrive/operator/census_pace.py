"""How often tasks are counted: often enough to be looked at, and never more than a fiftieth of the time."""

from datetime import timedelta

REST_SHARE = 50
"""A census may be taken again when this many times its own duration has passed."""
REST_MIN = timedelta(seconds=2)
REST_MAX = timedelta(minutes=5)
"""After a census that took long, as the first over a million dead tasks does, the next ones are short."""
TURN_MIN = timedelta(minutes=1)
TURN_SHARE = 5
"""For so many times the duration of the last one nobody else begins a census that is under way."""


def rest_after(took: timedelta) -> timedelta:
    """How long nobody counts after a census that took so long."""
    return min(max(REST_MIN, took * REST_SHARE), REST_MAX)


def turn_lasts(took: timedelta) -> timedelta:
    """How long one who counts may take, where the last one took so long."""
    return max(TURN_MIN, took * TURN_SHARE)
