"""Flags and overrides in the database: functions of a connection, run by `service` in transactions of its own.

Flags are no tasks: who changed one by hand, and how, stands in the audit log of all systems under the name of their table.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from redrive.extend import DEEDS, Database
from redrive.systems.flags.cache import FLAGS_MAX, FlagCache
from redrive.systems.flags.changes import LastSet, Stamp, Values
from redrive.systems.flags.errors import FlagNotFoundError, InvalidChangeError
from redrive.systems.flags.schedules import Schedules
from redrive.systems.flags.tables import Tables
from redrive.systems.flags.values import LISTED_MAX, Acted, Flag, Override

OVERRIDES_MAX = 10_000
"""How many users of one flag may have an override."""
NOTE_CHARS_MAX = 500


class FlagStore:
    """The flags and overrides of one database."""

    def __init__(self, database: Database, tables: Tables, cache: FlagCache, schedules: Schedules) -> None:
        self._database = database
        self._flags = tables.flags
        self._overrides = tables.overrides
        self._cache = cache
        self._schedules = schedules
        self._insert: Any = sqlite.insert if database.dialect.name == "sqlite" else postgresql.insert

    # --- flags ------------------------------------------------------------------------------------------------------

    def put(
        self, connection: Connection, key: str, environment: str, values: Values, described: Values, actor: str
    ) -> tuple[Flag, bool]:
        """Create or change a flag; whether it is new. Older retries of what is set here end as superseded."""
        t, now = self._flags, self._database.present(connection)
        new = {"flag_key": key, "environment": environment, "created_at": now, "updated_at": now, "last_set": {}}
        make = self._insert(t).values(new).on_conflict_do_nothing(index_elements=[t.c.flag_key, t.c.environment])
        created = connection.execute(make.returning(t.c.id)).first() is not None
        if created and connection.execute(select(func.count()).select_from(t)).scalar_one() > FLAGS_MAX:
            raise InvalidChangeError(f"there are {FLAGS_MAX} flags already: delete some that are not used")
        row = self.lock(connection, (t.c.flag_key == key) & (t.c.environment == environment))
        if row is None:  # deleted by another at this very moment
            raise FlagNotFoundError(key, environment)
        stamp = Stamp(self._database.present(connection))
        self.change(connection, row, values | described, stamp, set(values), actor)
        if created or values or described:
            act = "create" if created else "change"
            self._note(connection, act, environment, key, actor=actor, reason=_in_words(values | described))
        return self.get(connection, key, environment), created

    def switch(self, connection: Connection, ids: Collection[int], *, enabled: bool, actor: str, reason: str) -> Acted:
        """Turn flags on or off, one after the other by their ids, so that two who do so cannot block each other."""
        changed, refused = list[int](), dict[int, str]()
        word = "on" if enabled else "off"
        for id_ in sorted(set(ids)):
            row = self.lock(connection, self._flags.c.id == id_)
            if row is None:
                refused[id_] = f"flag {id_} is not there any more"
            elif row.enabled == enabled:
                refused[id_] = f"{row.flag_key!r} in {row.environment!r} is {word} already"
            else:
                stamp = Stamp(self._database.present(connection))
                self.change(connection, row, {"enabled": enabled}, stamp, {"enabled"}, actor)
                self._note(connection, f"switch {word}", row.environment, row.flag_key, actor=actor, reason=reason)
                changed.append(id_)
        return Acted(changed=changed, refused=refused)

    def lock(self, connection: Connection, where: Any) -> Row[Any] | None:
        """The row of a flag, held until the transaction ends: changes of one flag come one after the other."""
        return connection.execute(select(self._flags).where(where).with_for_update(key_share=True)).first()

    def change(
        self, connection: Connection, row: Row[Any], values: Values, stamp: Stamp, fields: set[str], actor: str
    ) -> None:
        """Change a flag that is locked, end older retries of the same fields, and let all caches know at the commit."""
        last_set = LastSet(row.last_set)
        last_set.mark(fields, stamp)
        new = values | {"last_set": last_set.as_json(), "updated_at": self._database.present(connection)}
        connection.execute(update(self._flags).where(self._flags.c.id == row.id).values(new))
        if fields:
            self._schedules.end_superseded(connection, row.id, fields, stamp, actor)
        self._cache.announce(connection)

    def _note(self, connection: Connection, act: str, environment: str, key: str, *, actor: str, reason: str) -> None:
        """Write down what a person did to a flag, in the commit that does it."""
        deed = {"ledger": self._flags.name, "task_id": f"{environment}/{key}", "act": act, "actor": actor}
        at = self._database.present(connection)
        connection.execute(insert(DEEDS), deed | {"at": at, "reason": reason})

    def delete(self, connection: Connection, key: str, environment: str, actor: str) -> None:
        """Delete a flag with its overrides; its schedules stay and end when they run."""
        t = self._flags
        gone = delete(t).where(t.c.flag_key == key, t.c.environment == environment)
        row = connection.execute(gone.returning(t.c.enabled, t.c.rollout_percentage)).first()
        if row is None:
            raise FlagNotFoundError(key, environment)
        self._note(connection, "delete", environment, key, actor=actor, reason=f"it had {_in_words(row._asdict())}")
        self._cache.announce(connection)

    def get(self, connection: Connection, key: str, environment: str) -> Flag:
        """One flag."""
        t = self._flags
        row = connection.execute(select(t).where(t.c.flag_key == key, t.c.environment == environment)).first()
        if row is None:
            raise FlagNotFoundError(key, environment)
        return _flag(row)

    def listed(
        self, connection: Connection, environment: str, *, limit: int, offset: int, after: str | None
    ) -> list[Flag]:
        """The flags of an environment by their keys."""
        t = self._flags
        found = select(t).where(t.c.environment == environment).order_by(t.c.flag_key).limit(limit).offset(offset)
        if after is not None:
            found = found.where(t.c.flag_key > after)
        return [_flag(row) for row in connection.execute(found)]

    def environments(self, connection: Connection) -> list[str]:
        """Where there are flags. All of them are looked at: they are few, see `FLAGS_MAX`."""
        column = self._flags.c.environment
        return list(connection.execute(select(column).distinct().order_by(column).limit(LISTED_MAX)).scalars())

    # --- overrides --------------------------------------------------------------------------------------------------

    def put_override(
        self,
        connection: Connection,
        key: str,
        environment: str,
        user_id: str,
        kind: str,
        reason: str | None,
        actor: str,
    ) -> Override:
        """Include or exclude a user; the last word counts."""
        t, f = self._overrides, self._flags
        flag = self.lock(connection, (f.c.flag_key == key) & (f.c.environment == environment))
        if flag is None:
            raise FlagNotFoundError(key, environment)
        values: dict[str, Any] = {
            "override_type": kind, "reason": reason, "created_by": actor, "created_at": self._database.present(connection)
        }  # fmt: skip
        named = self._insert(t).values(flag_id=flag.id, user_id=user_id, **values)
        connection.execute(named.on_conflict_do_update(index_elements=[t.c.flag_id, t.c.user_id], set_=values))
        counted = select(func.count()).select_from(t).where(t.c.flag_id == flag.id)
        if connection.execute(counted).scalar_one() > OVERRIDES_MAX:
            raise InvalidChangeError(f"{key!r} has {OVERRIDES_MAX} overrides already: use its percentage instead")
        why = f"{kind} {user_id}: {reason}" if reason else f"{kind} {user_id}"
        self._note(connection, "override", environment, key, actor=actor, reason=why)
        self._cache.announce(connection)
        return Override(user_id=user_id, **values)

    def delete_override(self, connection: Connection, key: str, environment: str, user_id: str, actor: str) -> bool:
        """Take a user's override away; whether there was one."""
        t, flag = self._overrides, self.get(connection, key, environment)
        gone = delete(t).where(t.c.flag_id == flag.id, t.c.user_id == user_id).returning(t.c.user_id)
        if connection.execute(gone).first() is None:
            return False
        self._note(connection, "remove override", environment, key, actor=actor, reason=user_id)
        self._cache.announce(connection)
        return True

    def listed_overrides(
        self, connection: Connection, key: str, environment: str, *, limit: int, offset: int
    ) -> Sequence[Override]:
        """The overrides of a flag by user."""
        t, flag = self._overrides, self.get(connection, key, environment)
        found = select(t).where(t.c.flag_id == flag.id).order_by(t.c.user_id).limit(limit).offset(offset)
        return [
            Override(**{name: getattr(row, name) for name in Override.__slots__}) for row in connection.execute(found)
        ]


def _in_words(values: Mapping[str, Any]) -> str:
    """What was set."""
    said = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return said if len(said) <= NOTE_CHARS_MAX else f"{said[:NOTE_CHARS_MAX]}…"


def _flag(row: Row[Any]) -> Flag:
    return Flag(**{name: getattr(row, name) for name in Flag.__slots__})
