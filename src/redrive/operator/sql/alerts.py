"""Alerts in a table of SQL."""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, delete, select, update

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.on_database import OnDatabase, reads, writes
from redrive.ledgers.sql.upsert import upsert
from redrive.operator.alerts import ACTIVE_MAX, QUIET, Alert, News


class SqlAlerts(OnDatabase):
    """The alerts of one database; see `Alerts`."""

    @reads
    def active(self, connection: Connection) -> list[Alert]:
        """See `Alerts.active`."""
        return [alert for alert in _all(connection) if alert.ended_at is None]

    @reads
    def known(self, connection: Connection) -> frozenset[str]:
        """See `Alerts.known`."""
        return frozenset(alert.name for alert in _all(connection))

    @writes
    def note(self, connection: Connection, found: Mapping[str, tuple[str, str]], *, complete: bool = True) -> News:
        """See `Alerts.note`."""
        a, now = schema.alert, self._database.present(connection)
        there = {alert.name: alert for alert in _all(connection)}
        free = max(0, ACTIVE_MAX - len(there))
        new = [
            {"name": name, "rule": rule, "text": text, "started_at": now}
            for name, (rule, text) in found.items()
            if name not in there
        ][:free]
        if new:
            connection.execute(upsert(self._database, a, keep=True), new)
        started, ended, forgotten = list[Alert](), list[Alert](), list[Alert]()
        for name, alert in there.items():
            is_wrong = name in found
            if is_wrong and (alert.ended_at is not None or alert.text != found[name][1]):
                connection.execute(update(a).where(a.c.name == name).values(ended_at=None, text=found[name][1]))
            elif not is_wrong and alert.ended_at is None and complete:
                connection.execute(update(a).where(a.c.name == name).values(ended_at=now))
            elif alert.ended_at is not None and not is_wrong and complete and now - alert.ended_at >= QUIET:
                (ended if alert.told_at is not None else forgotten).append(alert)
            if is_wrong and alert.told_at is None:
                started.append(alert)
        _forget(connection, [alert.name for alert in forgotten])
        started += [Alert(**one, told_at=None, ended_at=None) for one in new]  # type: ignore[arg-type]  # a dict of columns
        return News(started=started, ended=ended)

    @writes
    def told(self, connection: Connection, started: Collection[str], ended: Collection[str]) -> None:
        """See `Alerts.told`."""
        a, now = schema.alert, self._database.present(connection)
        if started:
            connection.execute(update(a).where(a.c.name.in_(started)).values(told_at=now))
        _forget(connection, ended)


def _all(connection: Connection) -> list[Alert]:
    a = schema.alert
    rows = connection.execute(select(a).order_by(a.c.started_at, a.c.name).limit(ACTIVE_MAX * 2))
    return [Alert(**row._asdict()) for row in rows]


def _forget(connection: Connection, names: Collection[str]) -> None:
    a = schema.alert
    if names:
        connection.execute(delete(a).where(a.c.name.in_(names)))
