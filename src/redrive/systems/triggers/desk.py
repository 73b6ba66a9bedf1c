"""Endpoints as operators see them: those of all users, what they owe, switching them, and bringing back what failed.

It goes by the owners' own rules: what is written when an endpoint is switched is said in `endpoints.py`, and deliveries come back
through their lane. Who did what to an endpoint stands in the audit log under `ENDPOINTS`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redrive import Filter
from redrive.lane import Acted, Actor, Lane, Page
from redrive.operator.alert_rules import Alarm
from redrive.operator.cursors import Position, no_cursor, read_cursor, write_cursor
from redrive.operator.json_views import instant_json
from redrive.operator.whole_acts import as_one_act
from redrive.systems.triggers.endpoints import shown_url
from redrive.systems.triggers.held import EndpointGates
from redrive.systems.triggers.ids import read_id
from redrive.systems.triggers.ports import EndpointBook
from redrive.systems.triggers.values import EndpointState, GivenUp, SeenEndpoint

PAGE = "/systems/triggers"
ALARMS_MAX = 50
"""Endpoints that are told of one by one; how many more there are is one more alarm."""
DELIVERIES_PER_RETRY = 5000
DELIVERIES_PER_BLOCK = 500
NAME_CHARS_MAX = 80

UNKNOWN = "there is no such endpoint"
MORE = f"not all of it: {DELIVERIES_PER_RETRY:,} deliveries come back at once; retry again for the rest"


class EndpointDesk:
    """The endpoints of all users."""

    def __init__(self, book: EndpointBook, lane: Lane, gates: EndpointGates) -> None:
        self._book = book
        self._lane = lane
        self._gates = gates

    async def page(self, *, user: str | None = None, state: EndpointState | None = None, cursor: str | None = None,
                   limit: int = 50) -> Page[SeenEndpoint]:  # fmt: skip
        """Endpoints, newest first; those that are disabled or failing by since when, latest first."""
        after = None if cursor is None else read_cursor(cursor, _known_id)
        seen, more = await self._book.seen(user=user, state=state, after=after, limit=limit)
        held = await self._gates.held([one.id for one in seen])
        shown = [replace(one, held=held.get(one.id)) for one in seen] if held else seen
        following = write_cursor(Position(seen[-1].since, seen[-1].id)) if more else None
        return Page(items=list(shown), cursor=following)

    async def alarms(self) -> list[Alarm]:
        """Endpoints that were disabled by their failures, and not by anybody; the oldest first.

        So one that comes later never takes the place of one that was told, which would look as if that one were well again.
        """
        found, more = await self._book.given_up(ALARMS_MAX)
        alarms = [Alarm(f"endpoint_disabled {one.id}", _sentence(one), "endpoint_disabled") for one in found]
        if more:
            said = f"triggers: {more:,} more endpoints were disabled by their failures: see {PAGE}?state=disabled"
            alarms.append(Alarm("endpoint_disabled and more", said, "endpoint_disabled"))
        return alarms

    async def given_up(self) -> int:
        """How many endpoints were disabled by their failures, and not by anybody."""
        return await self._book.amount_given_up()

    async def enable(self, ids: Sequence[str], *, actor: str, reason: str) -> Acted:
        """Switch endpoints on, with a fresh start. What failed meanwhile stays failed: see `retry`."""
        return await self._switch(ids, enabled=True, actor=actor, reason=reason)

    async def disable(self, ids: Sequence[str], *, actor: str, reason: str) -> Acted:
        """Switch endpoints off, also those that their failures have disabled: a person has dealt with them then.

        Their owners are told, with the reason. Deliveries that wait for them fail when they are due.
        """
        return await self._switch(ids, enabled=False, actor=actor, reason=reason)

    async def _switch(self, ids: Sequence[str], *, enabled: bool, actor: str, reason: str) -> Acted:
        known, refused = _sorted_out(ids)
        there, changed = await self._book.switch(known, enabled=enabled, actor=actor, reason=reason)
        refused |= {id_: UNKNOWN for id_ in known if id_ not in there}
        refused |= dict.fromkeys(there - changed, f"it is {'enabled' if enabled else 'disabled'} already")
        return Acted(changed=sorted(changed), refused=refused)

    async def retry(self, ids: Sequence[str], *, actor: str, reason: str) -> Acted:
        """Bring back what has failed for these endpoints, oldest first, as the owner's own retry does; how many deliveries.

        Each delivery that was dead at its turn comes back once, also if it dies again meanwhile.
        """
        known, refused = _sorted_out(ids)
        states = await self._book.states(known)
        refused |= {id_: UNKNOWN for id_ in known if id_ not in states}
        refused |= {id_: "it is disabled: enable it first" for id_, enabled in states.items() if not enabled}
        whole = as_one_act(Actor(name=actor, reason=reason), "retry", {"endpoints": ", ".join(known)}).whole
        changed: list[Any] = []
        for id_ in sorted(id_ for id_, enabled in states.items() if enabled):
            after = ""
            while len(changed) < DELIVERIES_PER_RETRY:
                dead = await self._book.dead(id_, after, DELIVERIES_PER_BLOCK)
                if not dead:
                    break
                block = await self._lane.redrive(Filter(ids=dead), actor=actor, reason=reason, whole=whole)
                changed += block.changed
                after = dead[-1]
            else:
                if await self._book.dead(id_, after, 1):
                    refused[id_] = MORE
        if changed:
            await self._lane.count_soon()
        return Acted(changed=changed, refused=refused)


def _host(url: str) -> str:
    return shown_url(url).partition("://")[2].partition("/")[0].removesuffix("?…")


def _known_id(text: str) -> str:
    if read_id(text) != text:
        raise no_cursor()
    return text


def _sentence(one: GivenUp) -> str:
    # Where this goes, and the log, are read by more people than the page: of the URL only the host is said.
    return (
        f"triggers: the endpoint {one.id} of {_clipped(one.user_id)} at {_clipped(_host(one.url))} was disabled at "
        f"{instant_json(one.disabled_at)}: {one.disabled_reason}. No event goes there until it is enabled: see that it "
        f"answers, enable it and retry what failed, or keep it disabled if it should stay off: {PAGE}?state=disabled"
    )


def _clipped(text: str) -> str:
    return text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}…"


def _sorted_out(ids: Sequence[str]) -> tuple[list[str], dict[Any, str]]:
    """Ids that may be there, each once, and the refusal of those that cannot."""
    known = [id_ for id_ in dict.fromkeys(ids) if read_id(id_) == id_]
    return known, {id_: UNKNOWN for id_ in ids if read_id(id_) != id_}
