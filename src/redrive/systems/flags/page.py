"""The page of the flags: what is due next, what will be retried, what failed for good, and what an operator can do about it."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import Request

from redrive.http.errors import ApiError
from redrive.http.panel import Panel, query_of, text_of, turns
from redrive.lane import Page
from redrive.systems.flags.changes import readable_values
from redrive.systems.flags.desk import PAGE_SIZE, FlagDesk
from redrive.systems.flags.errors import FlagNotFoundError
from redrive.systems.flags.picture import SHOWN_MAX, Coming, UpcomingPicture, draw
from redrive.systems.flags.store import FlagStore
from redrive.systems.flags.values import PRODUCTION, FlagSchedule, ScheduleStatus, SeenSchedule

HERE = "/systems/flags"
FLAGS_PAGE = 50
TEXT_CHARS_MAX = 100
SECTIONS = {
    "pending": ("Due next", "waiting", "Nothing is planned."),
    "retrying": ("Failed, will be retried", "waiting", "No failed change is waiting for a retry."),
    "failed": ("Failed for good", "dead", "No change has failed for good."),
    "applied": ("Applied, newest first", "done", "Nothing has been applied in the last 90 days."),
    "cancelled": ("Cancelled, newest first", "cancelled", "Nothing has been cancelled in the last 30 days."),
}
"""Of each section its title, its colour, and what is said when it is empty."""
OVERVIEW = ("pending", "retrying", "failed", "applied")
"""What is seen without a filter by status."""


def make_panel(store: FlagStore, desk: FlagDesk) -> Panel:
    """The page, over the parts that it shows."""

    async def content(request: Request) -> Mapping[str, Any]:
        """The heads of the sections, or a page of one of them; and the flags."""
        environments = await store.environments()
        usual = PRODUCTION if PRODUCTION in environments or not environments else environments[0]
        asked = {
            "environment": text_of(request, "environment", TEXT_CHARS_MAX) or usual,
            "flag": text_of(request, "flag", TEXT_CHARS_MAX) or "",
            "status": text_of(request, "status", TEXT_CHARS_MAX) or "",
        }
        if asked["status"] not in ("", *SECTIONS):
            raise ApiError(400, "status_unknown", f"There is no such status: choose from {', '.join(SECTIONS)}.")
        cursor = text_of(request, "cursor", TEXT_CHARS_MAX)
        pages = await _pages(desk, asked, cursor)
        return {
            "asked": asked,
            "environments": environments,
            "statuses": SECTIONS,
            "sections": [_section(name, page, asked, cursor) for name, page in pages.items()],
            "picture": _picture(pages),
            **await _flags(store, request, asked),
        }

    return Panel(title="Flags", template="flags/page.html", content=content)


async def _pages(desk: FlagDesk, asked: Mapping[str, str], cursor: str | None) -> dict[str, Page[SeenSchedule]]:
    names, limit = ([asked["status"]], PAGE_SIZE) if asked["status"] else (OVERVIEW, SHOWN_MAX)
    return {
        name: await desk.page(
            ScheduleStatus(name), environment=asked["environment"], key=asked["flag"] or None, limit=limit,
            cursor=cursor if asked["status"] else None,
        )
        for name in names
    }  # fmt: skip


def _section(name: str, page: Page[SeenSchedule], asked: Mapping[str, str], cursor: str | None) -> dict[str, Any]:
    title, look, empty = SECTIONS[name]
    one = {**asked, "status": name}
    whole = bool(asked["status"])
    return {
        "name": name,
        "title": title,
        "empty": empty,
        "schedules": [_row(each, look) for each in page.items],
        "all": None if whole else query_of(HERE, one),
        **turns(
            HERE, one, cursor=cursor if whole else None, following=str(page.cursor) if whole and page.cursor else None
        ),
    }


def _row(seen: SeenSchedule, look: str) -> dict[str, Any]:
    schedule = seen.schedule
    applying = schedule.lease_until is not None
    return {
        "schedule": schedule,
        "sets": sets(schedule),
        "look": "claimed" if applying else look,
        "status": "being applied" if applying else schedule.status,
        "tries": seen.tries,
        "upcoming": seen.upcoming,
    }


def _picture(pages: Mapping[str, Page[SeenSchedule]]) -> UpcomingPicture | None:
    """Of upcoming schedules, by their next try."""
    ahead = [one for name in ("pending", "retrying") if name in pages for one in pages[name].items]
    coming = [
        Coming(name=one.schedule.flag_key, sets=sets(one.schedule), tries=[each.at for each in one.upcoming])
        for one in ahead
        if one.upcoming
    ]
    return draw(sorted(coming, key=lambda one: one.tries[0]), datetime.now(UTC))


async def _flags(store: FlagStore, request: Request, asked: Mapping[str, str]) -> dict[str, Any]:
    after = text_of(request, "after", TEXT_CHARS_MAX)
    if asked["flag"]:
        try:
            found = [await store.get(asked["flag"], environment=asked["environment"])]
        except FlagNotFoundError:
            found = []
        return {"flags": found, "flags_next": None, "flags_first": None}
    found = await store.all_flags(environment=asked["environment"], limit=FLAGS_PAGE + 1, after=after)
    more = found[FLAGS_PAGE - 1].flag_key if len(found) > FLAGS_PAGE else None
    return {
        "flags": found[:FLAGS_PAGE],
        "flags_next": query_of(HERE, {**asked, "after": more}) if more else None,
        "flags_first": query_of(HERE, asked) if after else None,
    }


def sets(schedule: FlagSchedule) -> str:
    """What a schedule sets, in words."""
    values = readable_values(schedule.updates)
    if not values:  # others wrote it; it says so itself when it is tried
        return json.dumps(schedule.updates, ensure_ascii=False)[:TEXT_CHARS_MAX]
    said = ["on" if values["enabled"] else "off"] if "enabled" in values else []
    if "rollout_percentage" in values:
        said.append(f"for {values['rollout_percentage']}%")
    return ", ".join(said)
