"""The story of a task, and the picture of it: added, each try with the waits between, deeds of people, and the tries to come.

Pure: it takes what the API tells of a task and computes where to draw. Waits of milliseconds and of days stand side by side,
so their lengths are drawn by their logarithm.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from redrive.core.durations import format_duration

SHOWN_MAX = 40
"""Marks in one picture; of a longer story the end is drawn."""
AHEAD_MAX = 10
RAIL_Y, HEIGHT = 40, 96
EDGE = 60.0
GAP_MIN, GAP_PER_DECADE = 74.0, 20.0
MARK_MIN, MARK_PER_DECADE, MARK_MAX = 16.0, 6.0, 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    """Something that happened, or will."""

    x: float
    width: float
    look: str
    label: str
    moment: str
    at: datetime
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """The wait between two marks."""

    x1: float
    x2: float
    label: str
    ahead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePicture:
    """All that the template draws."""

    marks: Sequence[TimelineMark]
    rails: Sequence[Rail]
    width: float
    sentence: str
    left_out: int
    height: int = HEIGHT
    rail: int = RAIL_Y


def story(
    task: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]],
    deeds: Sequence[Mapping[str, Any]],
    preview: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Everything in the order in which it happened, each with the wait before it."""
    told: list[dict[str, Any]] = []
    if task["created_at"]:
        told.append({"what": "added", "at": task["created_at"], "until": task["created_at"]})
    places: dict[str, int] = {}
    for one in attempts:
        stack = (one["explanation"] or {}).get("stack", "") if one["stack"] else ""
        same_place = places.get(stack) if stack else None
        places.setdefault(stack, one["number"])
        started = one["started_at"] or one["ended_at"]
        took = one["duration_seconds"]
        told.append({**one, "what": "attempt", "at": started, "until": one["ended_at"],
                     "took": None if took is None else span(took), "same_place": same_place})  # fmt: skip
    for one in deeds:
        told.append({**one, "what": "deed", "until": one["at"]})
    told.sort(key=lambda one: (_instant(one["at"]), one["what"] != "added"))
    for position, one in enumerate(preview[:AHEAD_MAX]):
        told.append({**one, "what": "ahead", "until": one["at"], "first": position == 0})
    for before, one in pairwise(told):
        wait = (_instant(one["at"]) - _instant(before["until"])).total_seconds()
        one["wait_seconds"] = max(0.0, wait)
        one["waited"] = span(wait) if wait >= 0.001 else ""
    if told:
        told[0] |= {"wait_seconds": 0.0, "waited": ""}
    return told


def draw(told: Sequence[Mapping[str, Any]]) -> TimelinePicture:
    """The picture of a story."""
    shown = told[-SHOWN_MAX:]
    marks, rails = list[TimelineMark](), list[Rail]()
    x = EDGE
    for position, one in enumerate(shown):
        if position:
            gap = GAP_MIN + GAP_PER_DECADE * math.log10(1 + one["wait_seconds"])
            rails.append(Rail(x1=_rounded(x), x2=_rounded(x + gap), label=one["waited"], ahead=one["what"] == "ahead"))
            x += gap
        marks.append(_mark(one, x))
    return TimelinePicture(
        marks=marks,
        rails=rails,
        width=_rounded(x + EDGE),
        sentence="; ".join(f"{mark.title}" for mark in marks) or "Nothing has happened yet",
        left_out=len(told) - len(shown),
    )


def _mark(one: Mapping[str, Any], x: float) -> TimelineMark:
    at = _instant(one["at"])
    exact = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    width = MARK_MIN
    match one["what"]:
        case "added":
            look, label, title = "added", "added", f"added {exact}"
        case "attempt":
            said = one["outcome"].replace("_", " ")
            look, label, title = one["outcome"], f"try {one['number']}", f"try {one['number']} {said} {exact}"
            width += MARK_PER_DECADE * math.log10(1 + 1000 * (one["duration_seconds"] or 0))
            if one["state"] == "dead":
                look, label = "dead", f"try {one['number']}: dead"
        case "deed":
            look, label, title = "deed", one["act"], f"{one['act']} by {one['actor']} {exact}"
        case _:
            look, label, title = "ahead", f"try {one['number']}", f"try {one['number']} would start {exact}"
    return TimelineMark(
        x=_rounded(x), width=_rounded(min(MARK_MAX, width)), look=look, label=label, moment=at.strftime("%H:%M:%S"), at=at, title=title
    )  # fmt: skip


def span(seconds: float) -> str:
    """A span for people: no more exact than they can use."""
    if 0 <= seconds < 0.001:
        return "less than 1ms"
    whole = timedelta(seconds=round(seconds, 3 if seconds < 1 else 1 if seconds < 10 else 0))
    return format_duration(whole)


def _instant(given: str) -> datetime:
    return datetime.fromisoformat(given).astimezone(UTC)


def _rounded(length: float) -> float:
    return round(length, 1)
