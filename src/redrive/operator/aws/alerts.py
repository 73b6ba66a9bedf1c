"""Alerts in items, one each. Whoever notes the same at the same time writes the same: each write has a condition.

Two services that look at once both hear what there is to tell; who tells it is the business of a turn.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from redrive.ledgers.aws.attributes import Item, Key, from_iso, from_item, to_iso
from redrive.ledgers.aws.client import RefusedError
from redrive.ledgers.aws.expressions import Action, Delete, Update, delete, put_new, query
from redrive.ledgers.aws.on_table import OnTable
from redrive.operator.alerts import ACTIVE_MAX, QUIET, Alert, News

ALERTS = "AL"


class ItemAlerts(OnTable):
    """The alerts of one table; see `Alerts`."""

    async def active(self) -> list[Alert]:
        """See `Alerts.active`."""
        return [alert for alert in await self._all() if alert.ended_at is None]

    async def known(self) -> frozenset[str]:
        """See `Alerts.known`."""
        return frozenset(alert.name for alert in await self._all())

    async def note(self, found: Mapping[str, tuple[str, str]], *, complete: bool = True) -> News:
        """See `Alerts.note`."""
        now = self._now()
        there = {alert.name: alert for alert in await self._all()}
        new = [name for name in found if name not in there][: max(0, ACTIVE_MAX - len(there))]
        begun = await asyncio.gather(*(self._begin(name, *found[name], now) for name in new))
        started, ended, changes = [one for one in begun if one.told_at is None], list[Alert](), list[Action]()
        for name, alert in there.items():
            is_wrong = name in found
            if is_wrong and (alert.ended_at is not None or alert.text != found[name][1]):
                changes.append(_there(name).set("ended_at", None).set("alert_text", found[name][1]).action())
            elif not is_wrong and alert.ended_at is None and complete:
                changes.append(_there(name).require_absent("ended_at").set("ended_at", to_iso(now)).action())
            elif alert.ended_at is not None and not is_wrong and complete and now - alert.ended_at >= QUIET:
                if alert.told_at is not None:
                    ended.append(alert)
                else:  # nobody heard of it: nobody need hear that it is over
                    same = Delete(_place(name)).require("ended_at", "=", to_iso(alert.ended_at))
                    changes.append(same.require_absent("told_at").action())
            if is_wrong and alert.told_at is None:
                started.append(alert)
        await self._write(changes)
        return News(started=sorted(started, key=_oldest), ended=ended)

    async def told(self, started: Collection[str], ended: Collection[str]) -> None:
        """See `Alerts.told`. What has started again meanwhile is forgotten too: its start is news once more."""
        told_at = to_iso(self._now())
        tell = [_there(name).set("told_at", told_at).action() for name in started if name not in ended]
        await self._write([*tell, *(delete(_place(name)) for name in ended)])

    async def _all(self) -> list[Alert]:
        items = await self._dynamo.query(query(("pk", ALERTS)), items_max=ACTIVE_MAX * 2)
        return sorted(map(_alert_of, items), key=_oldest)

    async def _begin(self, name: str, rule: str, text: str, now: datetime) -> Alert:
        """The alert, new, or as somebody else has just written it."""
        values = {"alert_name": name, "alert_rule": rule, "alert_text": text, "started_at": to_iso(now)}
        try:
            await self._dynamo.write([put_new(_place(name), values)])
        except RefusedError as error:
            if error.reasons[0].item is not None:
                return _alert_of(error.reasons[0].item)
        return _alert(values)

    async def _write(self, actions: Iterable[Action]) -> None:
        """Each by itself; what is refused has been changed by somebody else who looked, and stays so."""

        async def write(action: Action) -> None:
            try:
                await self._dynamo.write([action])
            except RefusedError:
                return

        await asyncio.gather(*map(write, actions))


def _place(name: str) -> Key:
    # A name may be longer than a key.
    return ALERTS, sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _there(name: str) -> Update:
    return Update(_place(name)).require_there()


def _oldest(alert: Alert) -> tuple[datetime, str]:
    return alert.started_at, alert.name


def _alert_of(item: Item) -> Alert:
    return _alert(from_item(item))


def _alert(values: Mapping[str, Any]) -> Alert:
    told_at, ended_at = values.get("told_at"), values.get("ended_at")
    return Alert(
        name=values["alert_name"],
        rule=values["alert_rule"],
        text=values["alert_text"],
        started_at=from_iso(values["started_at"]),
        told_at=None if told_at is None else from_iso(told_at),
        ended_at=None if ended_at is None else from_iso(ended_at),
    )
