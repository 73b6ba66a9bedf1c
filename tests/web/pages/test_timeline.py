"""The story of a task and its picture."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redrive.operator.json_views import instant_json
from redrive.web.pages.timeline import AHEAD_MAX, SHOWN_MAX, draw, span, story

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    """An instant of the story."""
    return instant_json(START + timedelta(seconds=seconds))


def attempt(number: int, start: float, *, took: float | None = 0.5, state: str = "waiting") -> dict[str, Any]:
    """A try as the API tells it."""
    return {
        "number": number, "started_at": at(start) if took is not None else None, "ended_at": at(start + (took or 0)),
        "duration_seconds": took, "outcome": "failed", "state": state, "worker": "w", "error": "e", "sentence": "s",
        "explanation": None, "stack": [],
    }  # fmt: skip


def test_a_place_is_told_once() -> None:
    """A try that failed where an earlier one did names that try, and one that failed elsewhere does not."""
    where = [{"error": "KeyError", "frames": [], "left_out": 0}]
    tries = [attempt(n, n) | {"explanation": {"stack": id_}, "stack": where} for n, id_ in enumerate("aaba", start=1)]
    told = story({"created_at": at(0)}, [*tries, attempt(5, 5)], [], [])
    assert [one["same_place"] for one in told[1:]] == [None, 1, None, 1, None]


def test_a_story_is_told_in_order_with_its_waits() -> None:
    """Added, tries, a deed between them, and what is to come; each says how long was waited before it."""
    told = story(
        {"created_at": at(0)},
        [attempt(1, 1), attempt(2, 61.5), attempt(3, 122, took=None, state="dead"), attempt(1, 3800)],
        [{"at": at(3722), "act": "redrive", "actor": "ada", "reason": "mended"}],
        [{"number": 2, "at": at(3900.5)}, {"number": 3, "at": at(4000.5)}],
    )
    assert [one["what"] for one in told] == [
        "added",
        "attempt",
        "attempt",
        "attempt",
        "deed",
        "attempt",
        "ahead",
        "ahead",
    ]
    assert [one["waited"] for one in told] == ["", "1s", "1m", "1m", "1h", "1m 18s", "1m 40s", "1m 40s"]
    picture = draw(told)
    assert [mark.label for mark in picture.marks] == [
        "added", "try 1", "try 2", "try 3: dead", "redrive", "try 1", "try 2", "try 3",
    ]  # fmt: skip
    assert [rail.ahead for rail in picture.rails] == [False] * 5 + [True] * 2
    assert "redrive by ada" in picture.sentence


def test_nothing_has_happened() -> None:
    """A row of a table that keeps no time of its birth."""
    picture = draw(story({"created_at": None}, [], [], []))
    assert (list(picture.marks), picture.left_out) == ([], 0)
    assert picture.sentence == "Nothing has happened yet"


@given(
    waits=st.lists(st.floats(-10, 400 * 86400), max_size=120),
    ahead=st.integers(0, 30),
    took=st.one_of(st.none(), st.floats(0, 90 * 86400)),
)
def test_any_story_can_be_drawn(waits: list[float], ahead: int, took: float | None) -> None:
    """Marks stand apart from left to right inside the picture, whatever clocks did; a long story is shown from its end."""
    times, now = [], 0.0
    for wait in waits:
        now = max(0.0, now + wait) % (300 * 86400)
        times.append(now)
    told = story(
        {"created_at": at(0)},
        [attempt(number + 1, start, took=took) for number, start in enumerate(times)],
        [],
        [{"number": number, "at": at(301 * 86400 + number)} for number in range(ahead)],
    )
    assert len(told) == 1 + len(waits) + min(ahead, AHEAD_MAX)
    picture = draw(told)
    assert len(picture.marks) == min(SHOWN_MAX, len(told))
    assert picture.left_out == len(told) - len(picture.marks)
    edges = [edge for mark in picture.marks for edge in (mark.x - mark.width / 2, mark.x + mark.width / 2)]
    assert edges == sorted(edges)
    assert 0 <= edges[0] <= edges[-1] <= picture.width


def test_spans_are_for_people() -> None:
    """No more digits than anybody can use."""
    assert [span(seconds) for seconds in (0, 0.0004, 0.25, 2.34, 61.4, 3723.9)] == [
        "less than 1ms", "less than 1ms", "250ms", "2.3s", "1m 1s", "1h 2m",
    ]  # fmt: skip
