"""The last hour of a gate as a strip."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from redrive.operator.gates import GateDoes, GateSpan
from redrive.web.pages.gate_strip import draw_strip, hours_of

NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def span(does: GateDoes, begin: float, end: float | None) -> GateSpan:
    """From so many minutes ago to so many minutes ago."""
    ended = None if end is None else NOW - timedelta(minutes=end)
    return GateSpan(name="g", does=does, began_at=NOW - timedelta(minutes=begin), ended_at=ended)


def test_a_gate_that_never_held() -> None:
    """One thin line, and a sentence for those who do not see it."""
    strip = draw_strip([], NOW, GateDoes.LETTING_THROUGH, None)
    assert [(part.look, part.x, part.width) for part in strip.parts] == [("through", 0, 100)]
    assert strip.sentence == "Let tasks through all the last hour"


def test_what_a_gate_went_through() -> None:
    """Blocks where it held and was paused, stairs where it returned, a line in between, each where it belongs."""
    spans = [
        span(GateDoes.HOLDING, 90, 54), span(GateDoes.RETURNING, 54, 51), span(GateDoes.PAUSED, 30, None),
    ]  # fmt: skip
    strip = draw_strip(spans, NOW, GateDoes.PAUSED, spans[-1].began_at)
    assert [(part.look, part.x) for part in strip.parts] == [
        ("holds", 0), ("returns", 10), ("returns", 11.25), ("returns", 12.5), ("returns", 13.75), ("through", 15), ("paused", 50),
    ]  # fmt: skip
    assert strip.parts[-1].label == "paused"
    assert strip.sentence == (
        "Holding 11:00:00 to 11:36:00, returning 11:36:00 to 11:39:00, paused since 12:00:00; else it let tasks through"
    )


def test_what_nobody_has_recorded_yet() -> None:
    """What the gate does now counts: a span that is over is not drawn on, and one that has begun is drawn."""
    began = NOW - timedelta(minutes=6)
    strip = draw_strip([], NOW, GateDoes.HOLDING, began)
    assert [(part.look, part.x) for part in strip.parts] == [("through", 0), ("holds", 90)]
    strip = draw_strip([span(GateDoes.HOLDING, 30, None)], NOW, GateDoes.LETTING_THROUGH, began)
    assert [(part.look, part.x) for part in strip.parts] == [("through", 0), ("holds", 50), ("through", 90)]


@given(
    st.lists(
        st.tuples(st.sampled_from(list(GateDoes)[:3]), st.floats(-1, 200), st.one_of(st.none(), st.floats(-1, 200))),
        max_size=20,
    ),
    st.sampled_from(list(GateDoes)),
)
def test_any_history_can_be_drawn(given_spans: list[tuple[GateDoes, float, float | None]], doing: GateDoes) -> None:
    """Whatever was recorded, nothing lies outside the picture and no two parts on each other."""
    strip = draw_strip([span(*one) for one in given_spans], NOW, doing, None)
    at = 0.0
    for part in strip.parts:
        assert part.x >= at - 0.02
        assert part.width > 0
        at = part.x + part.width
    assert at <= 100.02


def test_the_axis_names_whole_twenties() -> None:
    """The ends, and what lies between and not too near."""
    assert [(one.label, one.anchor) for one in hours_of(NOW)] == [
        ("11:30", "start"), ("12:00", "middle"), ("now", "end"),
    ]  # fmt: skip
