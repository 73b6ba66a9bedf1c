"""A verdict as JSON values, for the API and for `redrive status --json`: instants in ISO 8601 UTC, spans in seconds."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from redrive.operator.json_views import instant_json
from redrive.operator.verdict.values import (
    Button,
    Figure,
    KindHealth,
    Piece,
    Target,
    Trouble,
    Verdict,
    plain,
)

LINK_FIELDS = ("ledger", "name", "state", "kind", "cause", "gate")


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """All of it. Every sentence is there as text, and as pieces with their links and instants."""
    return {
        "at": instant_json(verdict.at),
        "well": verdict.is_well,
        "title": verdict.title,
        "summary": sentence_json(verdict.summary),
        "calm_since": instant_json(verdict.calm_since),
        "troubles": [trouble_json(one) for one in verdict.troubles],
        "more": verdict.more,
        "quiet": [sentence_json(one) for one in verdict.quiet],
        "strip": [_figure_json(one) for one in verdict.strip],
        "kinds": [kind_json(one) for one in verdict.kinds],
        "kinds_note": verdict.kinds_note,
    }


def trouble_json(one: Trouble) -> dict[str, Any]:
    """One trouble."""
    return {
        "rank": one.rank.value,
        "needs_you": one.needs_you,
        "label": one.rank.words,
        "subject": one.subject.value,
        "since": instant_json(one.since),
        "told": plain(one.told),
        "wrong": [sentence_json(sentence) for sentence in one.wrong],
        "trend": {"label": one.moves.label, "now": one.moves.now, "points": list(one.moves.points)},
        "by_itself": sentence_json(one.by_itself),
        "safe": sentence_json(one.safe),
        "button": _button_json(one.button),
        "beside": _button_json(one.beside),
        "view": _link_json(one.view),
        "ledger": one.ledger,
        "kind": one.kind,
        "cause": one.cause,
        "at": one.at,
        "error": one.error,
        "version": one.version,
    }


def kind_json(one: KindHealth) -> dict[str, Any]:
    """One kind, over the last five minutes, with the minutes of the last hour."""
    return {
        "ledger": one.ledger,
        "kind": one.kind,
        "health": one.health,
        "rank": None if one.rank is None else one.rank.value,
        "tries": one.tries,
        "failures": one.failures,
        "share": one.share,
        "begun_a_minute": one.begun_a_minute,
        "p50_seconds": _seconds(one.p50),
        "p95_seconds": _seconds(one.p95),
        "oldest_due_seconds": _seconds(one.oldest_due),
        "waiting": one.waiting,
        "waiting_more": one.waiting_more,
        "parked": one.parked,
        "dead": one.dead,
        "trend": [
            {"start": instant_json(point.start), "tries": point.tries, "failures": point.failures}
            for point in one.trend
        ],
    }


def sentence_json(sentence: Sequence[Piece]) -> dict[str, Any]:
    """A sentence as text, and in its pieces."""
    return {"text": plain(sentence), "pieces": [_piece_json(piece) for piece in sentence]}


def _piece_json(piece: Piece) -> dict[str, Any]:
    shown: dict[str, Any] = {"text": piece.text}
    if piece.link is not None:
        shown["link"] = _link_json(piece.link)
    if piece.when is not None:
        shown |= {"at": instant_json(piece.when), "to_seconds": piece.to_seconds}
    if piece.code:
        shown["code"] = True
    return shown


def _link_json(link: Target | None) -> dict[str, Any] | None:
    if link is None:
        return None
    set_ = {name: value for name in LINK_FIELDS if (value := getattr(link, name)) is not None}
    return {"to": link.to.value, **set_}


def _button_json(button: Button | None) -> dict[str, Any] | None:
    if button is None:
        return None
    return {
        "act": button.act.value,
        "words": button.words,
        "ledger": button.ledger,
        "kind": button.kind,
        "cause": button.cause,
        "warning": button.warning,
    }


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "value": figure.value,
        "note": sentence_json(figure.note),
        "tone": figure.tone.value,
        "link": _link_json(figure.link),
    }


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
