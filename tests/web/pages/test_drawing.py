"""Charts that the service draws."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.web.pages.drawing import (
    PLOT_HEIGHT,
    PLOT_TOP,
    Series,
    few,
    gauge,
    per_step,
    ring,
    scale,
    side_by_side,
    spark,
    times,
    trend,
)

NOW = datetime(2026, 3, 15, 21, 41, 52, tzinfo=UTC)
STARTS = [NOW.replace(second=0) - timedelta(minutes=back) for back in range(59, -1, -1)]
FLOOR = PLOT_TOP + PLOT_HEIGHT


@pytest.mark.parametrize("most", [0, 1, 3, 7, 99, 812, 10_000_000, 0.4])
def test_an_axis_holds_the_most_in_few_whole_steps(most: float) -> None:
    """It begins at zero, reaches the most, and has at most five marks."""
    top, marks = scale(most)
    assert top >= most
    assert marks[0].label == "0"
    assert 2 <= len(marks) <= 5
    assert [mark.place for mark in marks] == sorted((mark.place for mark in marks), reverse=True)


def test_the_numbers_of_an_axis_have_room() -> None:
    """A digit of 11 pixels may be 7 wide, and 7 lie between the number and the plot."""
    chart = per_step("n", "N?", [Series(name="a", look="bad", values=[600] * 60)], STARTS, NOW)
    assert chart.margin >= 7 + 7 * 3


def test_a_line_to_the_running_minute_is_a_pale_one() -> None:
    """A minute that has just begun has seen little: it must not look like a collapse."""
    chart = per_step("n", "N?", [Series(name="a", look="bad", values=[6] * 59 + [0])], STARTS, NOW, lines=True)
    [path] = chart.paths
    assert path.running.endswith(f"L100.0 {PLOT_HEIGHT}.0")
    assert f"{PLOT_HEIGHT}.0" not in path.line
    assert "100" not in path.line
    [ahead] = per_step(
        "n", "N?", [Series(name="a", look="bad", values=[6] * 60)], STARTS, NOW, lines=True, ahead=True
    ).paths
    assert not ahead.running


def test_bars_stand_on_each_other_and_the_running_minute_is_pale() -> None:
    """Nothing is drawn outside the plot, what is small stays visible, and only the last step is pale."""
    some = [
        Series(name="failed", look="bad", values=[0] * 58 + [1, 5]),
        Series(name="fine", look="soft2", values=[400] * 60),
    ]
    chart = per_step("x", "How?", some, STARTS, NOW, events=[(STARTS[30], "deploy"), (NOW - timedelta(days=1), "old")])
    assert all(box.y >= PLOT_TOP - 2 and box.y + box.height <= FLOOR + 0.1 for box in chart.boxes)
    assert {box.pale for box in chart.boxes if box.x > 98} == {True}
    assert not any(box.pale for box in chart.boxes if box.x < 98)
    assert min(box.height for box in chart.boxes if box.look == "bad") >= 1.5
    assert [event.label for event in chart.events] == ["deploy"]
    assert len(chart.rows) <= 30
    assert chart.columns == ["From", "failed", "fine"]


def test_a_line_is_broken_where_nobody_counted() -> None:
    """What is not known is not drawn, and not filled."""
    values = [1.0, 2.0, None, 4.0, *[5.0] * 56]
    chart = per_step("x", "How?", [Series(name="depth", look="waiting", values=values)], STARTS, NOW, lines=True)
    [path] = chart.paths
    assert path.line.count("M") == 2
    assert path.area == ""


def test_marks_of_time_are_whole_and_apart() -> None:
    """An hour has its start, a few whole quarters and now, each with its instant for the reader's zone."""
    marks = times(STARTS[0], STARTS[-1] + timedelta(minutes=1), NOW)
    assert (marks[0].label, marks[-1].label) == ("20:42", "now")
    assert [mark.label for mark in marks[1:-1]] == ["21:00", "21:15", "21:30"]
    assert all(mark.at is not None for mark in marks[:-1])


def test_a_ring_shows_shares_and_a_gauge_its_mark() -> None:
    """Amounts of zero have no arc; a whole is nearly a circle; a share below the mark looks worse."""
    drawn = ring([("done", "done", 3), ("dead", "dead", 1), ("waiting", "waiting", 0)])
    assert [title for *_, title in drawn.arcs] == ["done: 3", "dead: 1"]
    assert drawn.total == "4"
    assert len(ring([("done", "done", 5)]).arcs) == 1
    assert [gauge(share, 0.95, "").look for share in (1, 0.95, 0.9, 0.2)] == ["good", "good", "warn", "bad"]


def test_small_pictures() -> None:
    """Failures are at the foot of the bars; one failure is visible beside thousands; the running minute is a pale path of its own."""
    drawn = trend([10_000, 10], [1, 10], "said")
    assert [(look, pale) for look, pale, _ in drawn.shapes] == [("soft2", False), ("bad", False), ("bad", True)]
    assert {look: path for look, pale, path in drawn.shapes if not pale}["bad"] == "M0.1 27.0V25.5h.8V27.0z"
    assert [pale for _, pale, _ in spark([0, 3, 1], "bad", "said").shapes] == [False, True]
    assert spark([], "bad", "said").shapes == []


def test_words_under_bars() -> None:
    """Of many bars only some have a word, so that words do not run into each other."""
    chart = side_by_side("x", "How?", [str(at) for at in range(20)], Series(name="tasks", look="good", values=[1] * 20))
    assert len(chart.xs) <= 6
    assert len(chart.boxes) == len(chart.rows) == 20


@pytest.mark.parametrize(("amount", "said"), [(0, "0"), (1234, "1,234"), (0.5, "0.5"), (12.34, "12"), (0.04, "0.04"), (3.0, "3")])  # fmt: skip
def test_numbers_as_people_read_them(amount: float, said: str) -> None:
    """No more digits than people can use."""
    assert few(amount) == said
