"""A filter as people write it: one reader, one set of sentences."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.core.states import State
from redrive.errors import UsageError
from redrive.operator.asked import read_filter
from redrive.ports import Filter


def test_what_is_empty_asks_nothing():
    """A form sends all its fields; an empty one is no condition."""
    empty = {"state": "", "kind": "", "key": "", "error": "", "cause": "", "older_than": "", "until": "", "text": ""}
    assert read_filter(**empty) == read_filter() == Filter()


def test_texts_and_values_are_read_alike():
    """What the API has read already, and what a person typed, make the same filter."""
    at = datetime(2026, 1, 31, 9, tzinfo=UTC)
    typed = read_filter(state="dead", kind="mail", older_than="2h", until="2026-01-31T09:00:00Z")
    read = read_filter(state=State.DEAD, kind="mail", older_than=timedelta(hours=2), until=at)
    assert typed == read == Filter(state=State.DEAD, kind="mail", older_than=7200, until=at)
    assert read_filter(until="2026-01-31T09:00:00").until == at
    assert read_filter(older_than=timedelta(0)).older_than == timedelta(0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"state": "lost"}, "there is no state 'lost': choose from waiting, claimed, done, dead, cancelled"),
        ({"older_than": "soon"}, "soon"),
        ({"until": "yesterday"}, "until is an instant such as 2026-01-31T09:00:00Z, not 'yesterday'"),
        ({"kind": "k" * 201}, "kind is at most 200 characters long, not 201"),
        ({"error": "a\0b"}, "no task holds a NUL character"),
        ({"cause": "x", "state": "done"}, "only dead tasks are grouped by cause"),
    ],
)
def test_what_cannot_be_read_is_said(given: dict[str, str], sentence: str):
    """Each mistake has one sentence, wherever it was made."""
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        read_filter(**given)
