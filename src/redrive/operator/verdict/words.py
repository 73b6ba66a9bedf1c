"""Pieces of sentences: amounts, shares, spans and instants as people say them."""

from datetime import datetime, timedelta

from redrive.operator.verdict.values import LinkTo, Piece, Sentence, Target, clock

_SMALL = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def said(*parts: str | Piece | Sentence) -> Sentence:
    """A sentence of texts and pieces."""
    pieces: list[Piece] = []
    for part in parts:
        if isinstance(part, tuple):
            pieces += part
        elif isinstance(part, Piece):
            pieces.append(part)
        elif part:
            pieces.append(Piece(part))
    return tuple(pieces)


def second(instant: datetime, now: datetime) -> Piece:
    """An instant to the second."""
    return Piece(clock(instant, now, to_seconds=True), when=instant, to_seconds=True)


def minute(instant: datetime, now: datetime) -> Piece:
    """An instant to the minute."""
    return Piece(clock(instant, now), when=instant)


def minute_after(instant: datetime, now: datetime) -> Piece:
    """The minute by which an instant is over."""
    whole = instant.replace(second=0, microsecond=0)
    return minute(whole if whole == instant else whole + timedelta(minutes=1), now)


def kind_piece(ledger: str | None, kind: str | None) -> Piece:
    """A kind; the tasks of a ledger where it has none."""
    if kind is None:
        return Piece(f"tasks of {ledger}", Target(to=LinkTo.TASKS, ledger=ledger))
    return Piece(kind, Target(to=LinkTo.KIND, ledger=ledger, name=kind))


def amount(number: int, thing: str, things: str | None = None) -> str:
    """`1 task`, `1,318 tasks`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def counted(number: int) -> str:
    """`One`, `Two`, `11`: how a sentence begins."""
    return _SMALL[number] if number < len(_SMALL) else f"{number:,}"


def share_words(part: int, whole: int) -> str:
    """`100%` of all and of nothing else, `4.7%`, `0%`."""
    if whole <= 0 or part <= 0:
        return "0%"
    if part >= whole:
        return "100%"
    percent = part / whole * 100
    if percent >= 10:
        return f"{min(99, round(percent))}%"
    return f"{max(0.1, percent):.1f}".removesuffix(".0") + "%"


def span_said(span: timedelta) -> str:
    """`0.4 s`, `45 s`, `3 min`, `2 h`, `3 days`: one unit, as it is said of something that still grows."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days"


def about(span: timedelta) -> str:
    """`about 65 s`, `about 4 minutes`: of what is only estimated."""
    seconds = span.total_seconds()
    if seconds < 100:
        return f"about {max(5, -(-seconds // 5) * 5):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"about {amount(minutes, 'minute')}"
    return f"about {amount(round(minutes / 60), 'hour')}"


def took_words(span: timedelta) -> str:
    """`3 ms`, `1.2 s`."""
    milliseconds = span / timedelta(milliseconds=1)
    return f"{max(1, round(milliseconds))} ms" if milliseconds < 1000 else span_said(span)
