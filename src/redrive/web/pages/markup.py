"""The small pieces of HTML of which a page has hundreds: instants and sentences. Templates take several times as long for them."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from redrive.operator.verdict.values import Piece, Target

Given = datetime | str | None


def instant_of(given: datetime | str) -> datetime:
    """An instant as the API writes it."""
    return datetime.fromisoformat(given) if isinstance(given, str) else given


def exactly(given: datetime | str) -> str:
    """`2026-01-31T09:00:00Z`."""
    return instant_of(given).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_tag(given: Given, how: str, shown: Callable[[str], str]) -> Markup:
    """An instant, in UTC until the page shows it in the zone of whoever looks. All that is put together here is digits."""
    if not given:
        return Markup("–")
    exact = exactly(given)
    return Markup(f'<time {how} datetime="{exact}" title="{exact}">{shown(exact)}</time>')  # noqa: S704


def time_clock(given: Given) -> Markup:
    """`09:00:07`."""
    return time_tag(given, 'data-at="clock"', lambda exact: exact[11:19])


def time_minute(given: Given) -> Markup:
    """`09:00`."""
    return time_tag(given, 'data-at="minute"', lambda exact: exact[11:16])


def time_stamp(given: Given) -> Markup:
    """`2026-01-31 09:00:07`."""
    return time_tag(given, 'data-at="stamp"', lambda exact: f"{exact[:10]} {exact[11:19]}")


def sentence_of(pieces: Iterable[Piece], place_of: Callable[[Target | None], str | None]) -> Markup:
    """A sentence: instants, errors as code, and what has a page as a link."""
    return Markup("").join(_piece(one, place_of) for one in pieces)


def _piece(one: Piece, place_of: Callable[[Target | None], str | None]) -> Markup:
    if one.when:
        return time_clock(one.when) if one.to_seconds else time_minute(one.when)
    text = escape(one.text)
    if one.code:
        return Markup(f"<code>{text}</code>")  # noqa: S704 - the text is escaped
    place = place_of(one.link)
    return text if not place else Markup(f'<a href="{escape(place)}">{text}</a>')  # noqa: S704 - both are escaped


TAGS: dict[str, Any] = {
    "exactly": exactly,
    "sentence_of": sentence_of,
    "time_clock": time_clock,
    "time_minute": time_minute,
    "time_stamp": time_stamp,
}
"""What templates know of these."""
