"""The troubleshooting queue: the commands that need attention, and one of them with its story."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from fastapi import Request

from redrive.errors import TooSlowError, UsageError
from redrive.http.errors import ApiError
from redrive.http.panel import Panel, query_of, text_of, turns
from redrive.operator.words import format_duration, rounded
from redrive.systems.commands.desk import COUNTED_MAX, TROUBLED, Troubleshooting
from redrive.systems.commands.reader import Reader
from redrive.systems.commands.shapes import AUDIT_MAX, details_json, page_json

HERE = "/systems/commands"
PAGE = 50
TEXT_CHARS_MAX = 150
LOOKS = {
    "SENT": "added",
    "RECEIVED": "claimed",
    "COMPLETED": "done",
    "FAILED": "failed",
    "BUSINESS_RULE_FAILED": "failed",
    "MOVED_TO_TROUBLESHOOTING_QUEUE": "dead",
}
"""How a line of the audit is drawn. What a person did is drawn as a deed, everything else plainly."""
STATES = {
    "PENDING": "waiting",
    "IN_PROGRESS": "claimed",
    "COMPLETED": "done",
    "FAILED": "cancelled",
    "CANCELED": "cancelled",
    "IN_TROUBLESHOOTING_QUEUE": "dead",
}
"""The state of the task behind a command of this status: it gives the colour."""


def make_panel(reader: Reader, desk: Troubleshooting) -> Panel:
    """The page of one reader."""

    async def content(request: Request) -> Mapping[str, Any]:
        """A page of the queue, or the command that is asked for."""
        asked = {name: text_of(request, name, TEXT_CHARS_MAX) for name in ("domain", "type")}
        if of := text_of(request, "of", TEXT_CHARS_MAX):
            back = {**asked, "cursor": text_of(request, "cursor", TEXT_CHARS_MAX)}
            one = await _one(reader, of, text_of(request, "command", TEXT_CHARS_MAX) or "")
            return {"one": one, "states": STATES, "back": query_of(HERE, back)}
        return {"one": None, **await _page(reader, desk, request, asked)}

    return Panel(title="Troubleshooting", template="commands/page.html", content=content)


async def _one(reader: Reader, domain: str, command_id: str) -> Mapping[str, Any]:
    found = await reader.get_command(domain, command_id)
    if found is None:
        raise ApiError(404, "command_unknown", "There is no such command on the reader.")
    said = details_json(found, await reader.audit_trail(command_id, domain, latest=AUDIT_MAX))
    shown = None if said["data"] is None else json.dumps(said["data"], indent=2, ensure_ascii=False)
    return said | {"data": shown, "audit": [_line(line) for line in said["audit"]]}


def _line(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line of the audit for the story: what it says, in the words of a reader."""
    details, event = dict(line["details"]), line["event_type"]
    by = details.pop("operator", None)
    delay = details.pop("delay_seconds", None)
    error = ": ".join(str(one) for name in ("code", "message") if (one := details.pop(name, None)))
    attempt, reason, kind = (details.pop(name, None) for name in ("attempt", "reason", "type"))
    more = details["details"] if details.keys() == {"details"} else details
    return {
        "at": line["at"],
        "look": "deed" if by is not None else LOOKS.get(event, ""),
        "title": event.removeprefix("OPERATOR_").replace("_", " ").capitalize(),
        "by": by,
        "attempt": attempt,
        "reason": reason,
        "type": kind,
        "error": error,
        "again_after": None if delay is None else format_duration(rounded(timedelta(seconds=float(delay)))),
        "more": json.dumps(more, ensure_ascii=False) if more else None,
    }


async def _page(
    reader: Reader, desk: Troubleshooting, request: Request, asked: Mapping[str, str | None]
) -> Mapping[str, Any]:
    cursor = text_of(request, "cursor", TEXT_CHARS_MAX)
    waiting: Mapping[str, int] | None = None
    page: Mapping[str, Any] = {"commands": [], "cursor": None}
    problem = None
    try:
        waiting = await desk.count_by_domain()
        found = await reader.browse_commands(asked["domain"], TROUBLED, asked["type"], limit=PAGE, cursor=cursor)
        page = page_json(found)
    except TooSlowError:
        problem = "The database took too long to answer. Try again in a moment."
    except UsageError as refused:
        problem = f"{str(refused)[:1].upper()}{str(refused)[1:]}."
    place = {**asked, "cursor": cursor}
    domains = {one["domain"] for one in page["commands"]}
    return {
        "waiting": waiting,
        "total": None if waiting is None else sum(waiting.values()),
        "counted_max": COUNTED_MAX,
        "asked": asked,
        "commands": page["commands"],
        # Commands are named by their ids within a domain, so many can be chosen only where all are of one.
        "domain": next(iter(domains)) if len(domains) == 1 else None,
        "problem": problem,
        **turns(HERE, asked, cursor=cursor, following=page["cursor"]),
        "path_of": lambda one: query_of(HERE, {**place, "of": one["domain"], "command": one["command_id"]}),
    }
