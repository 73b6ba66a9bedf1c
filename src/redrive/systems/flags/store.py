"""Flags and overrides: changed in one commit with whatever follows from it, the audit log included.

Flags are not tasks. Who changed one by hand, and how, stands in the audit log of all systems under the name of their table. As in
a ledger, they are functions of a connection.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update

from redrive import Redrive
from redrive.extend import OnDatabase, reads, record_act, writes
from redrive.lane import Acted, Actor, Lane
from redrive.sql import after_commit
from redrive.systems.flags import tables
from redrive.systems.flags.aftermath import Superseded
from redrive.systems.flags.cache import FLAGS_MAX, FlagCache
from redrive.systems.flags.changes import LastSet, Stamp, Values, read_values, readable_values, superseded
from redrive.systems.flags.errors import FlagNotFoundError, InvalidChangeError
from redrive.systems.flags.logs import FlagLogs
from redrive.systems.flags.values import LISTED_MAX, PRODUCTION, Flag, Override

OVERRIDES_MAX = 10_000
"""How many users of one flag may have an override."""
NOTE_CHARS_MAX = 500


class FlagStore(OnDatabase):
    """The flags and overrides of one database."""

    def __init__(self, app: Redrive, cache: FlagCache, lane: Lane, logs: FlagLogs) -> None:
        super().__init__(app.database, open=app.open)
        self._cache = cache
        self._lane = lane
        self._logs = logs

    # --- flags ------------------------------------------------------------------------------------------------------

    @writes
    def put(
        self,
        connection: Connection,
        key: str,
        *,
        actor: str,
        environment: str = PRODUCTION,
        enabled: bool | None = None,
        rollout_percentage: int | None = None,
        description: str | None = None,
    ) -> tuple[Flag, bool]:
        """Create a flag or change one; whether it is new. What is not given stays as it is."""
        given = {"enabled": enabled, "rollout_percentage": rollout_percentage}
        values: Values = {column: value for column, value in given.items() if value is not None}
        if values:
            read_values(values)
        described: Values = {} if description is None else {"description": description}
        t, now = tables.flags, self._database.present(connection)
        new = {"flag_key": key, "environment": environment, "created_at": now, "updated_at": now, "last_set": {}}
        make = (
            self._database.insert(t).values(new).on_conflict_do_nothing(index_elements=[t.c.flag_key, t.c.environment])
        )
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
        return _flag(tables.read_flag(connection, key, environment)), created

    @writes
    def switch(self, connection: Connection, ids: Collection[int], *, enabled: bool, actor: str, reason: str) -> Acted:
        """Turn flags on or off, by their ids; those that are so already, or are gone, stay as they are."""
        changed, names, refused = list[int](), list[str](), dict[Any, str]()
        word = "on" if enabled else "off"
        for id_ in sorted(set(ids)):  # in one order, so that two who do so cannot block each other
            row = self.lock(connection, tables.flags.c.id == id_)
            if row is None:
                refused[id_] = f"flag {id_} is not there any more"
            elif row.enabled == enabled:
                refused[id_] = f"{row.flag_key!r} in {row.environment!r} is {word} already"
            else:
                stamp = Stamp(self._database.present(connection))
                self.change(connection, row, {"enabled": enabled}, stamp, {"enabled"}, actor)
                names.append(f"{row.environment}/{row.flag_key}")
                changed.append(id_)
        self._record(connection, f"switch {word}", names, Actor(name=actor, reason=reason))
        return Acted(changed=changed, refused=refused)

    @writes
    def delete(self, connection: Connection, key: str, *, actor: str, environment: str = PRODUCTION) -> None:
        """Delete a flag and its overrides. Its schedules stay, and fail for good when they are due."""
        t = tables.flags
        gone = delete(t).where(t.c.flag_key == key, t.c.environment == environment)
        row = connection.execute(gone.returning(t.c.enabled, t.c.rollout_percentage)).first()
        if row is None:
            raise FlagNotFoundError(key, environment)
        self._note(connection, "delete", environment, key, actor=actor, reason=f"it had {_in_words(row._asdict())}")
        self._cache.announce(connection)

    @reads
    def get(self, connection: Connection, key: str, *, environment: str = PRODUCTION) -> Flag:
        """A flag as it stands in the database."""
        return _flag(tables.read_flag(connection, key, environment))

    @reads
    def all_flags(
        self,
        connection: Connection,
        *,
        environment: str = PRODUCTION,
        limit: int = LISTED_MAX,
        offset: int = 0,
        after: str | None = None,
    ) -> list[Flag]:
        """The flags of an environment by their keys; those behind the key `after`, if it is given."""
        t = tables.flags
        found = select(t).where(t.c.environment == environment).order_by(t.c.flag_key).limit(limit).offset(offset)
        if after is not None:
            found = found.where(t.c.flag_key > after)
        return [_flag(row) for row in connection.execute(found)]

    @reads
    def environments(self, connection: Connection) -> list[str]:
        """Where there are flags, by name. All flags are looked at: they are few, see `FLAGS_MAX`."""
        column = tables.flags.c.environment
        found = select(column).distinct().order_by(column).limit(LISTED_MAX)
        return list(connection.execute(found).scalars())

    # --- changing one -----------------------------------------------------------------------------------------------

    def lock(self, connection: Connection, where: Any) -> Row[Any] | None:
        """The row of a flag, held until the transaction ends: changes of one flag come one after the other."""
        return connection.execute(select(tables.flags).where(where).with_for_update(key_share=True)).first()

    def change(
        self, connection: Connection, row: Row[Any], values: Values, stamp: Stamp, fields: set[str], actor: str
    ) -> list[Superseded]:
        """Change a flag that is locked, end older retries of the same fields, and let all caches know at the commit.

        Returns the retries that were ended. They are told after the commit, where the transaction is ours.
        """
        t, last_set = tables.flags, LastSet(row.last_set)
        last_set.mark(fields, stamp)
        new = values | {"last_set": last_set.as_json(), "updated_at": self._database.present(connection)}
        connection.execute(update(t).where(t.c.id == row.id).values(new))
        ended = self._end_older(connection, row.id, fields, stamp, actor) if fields else []
        if ended:
            after_commit(connection, lambda: self._logs.superseded(ended))
        self._cache.announce(connection)
        return ended

    def _end_older(
        self, connection: Connection, flag_id: int, fields: set[str], stamp: Stamp, actor: str
    ) -> list[Superseded]:
        """End the retries that wait to set what was just set by a newer change."""
        t = tables.schedules
        retries = tables.WAITS & t.c.next_retry_at.is_not(None) & (t.c.flag_id == flag_id)
        older, gave_way = dict[str, dict[Any, str]](), list[Superseded]()
        for schedule in tables.read_schedules(connection, retries):
            shared = [column for column in readable_values(schedule.updates) if column in fields]
            if shared and stamp.is_newer_than(schedule.scheduled_at, schedule.id):
                older.setdefault(superseded(shared[0], stamp), {})[schedule.id] = schedule.flag_key
        for reason, keys in older.items():
            # Only those that nobody has claimed meanwhile: they see for themselves when they run.
            ended: list[Any] = self._lane.cancel_sync([*keys], actor=actor, reason=reason, within=connection)
            values = {"last_error": reason, "error_message": "superseded"}
            connection.execute(update(t).where(t.c.id.in_(ended)).values(values))
            gave_way += [Superseded(id_, keys[id_], reason) for id_ in ended]
        return gave_way

    def _note(self, connection: Connection, act: str, environment: str, key: str, *, actor: str, reason: str) -> None:
        """Write down what a person did to a flag, in the commit that does it."""
        self._record(connection, act, [f"{environment}/{key}"], Actor(name=actor, reason=reason))

    def _record(self, connection: Connection, act: str, names: Sequence[str], actor: Actor) -> None:
        at = self._database.present(connection)
        record_act(connection, ledger=tables.flags.name, act=act, things=names, actor=actor, at=at)

    # --- overrides --------------------------------------------------------------------------------------------------

    @writes
    def put_override(
        self,
        connection: Connection,
        key: str,
        user_id: str,
        override_type: str,
        *,
        actor: str,
        reason: str | None = None,
        environment: str = PRODUCTION,
    ) -> Override:
        """Let a flag be on (`include`) or off (`exclude`) for one user; the last word counts."""
        t, f = tables.overrides, tables.flags
        flag = self.lock(connection, (f.c.flag_key == key) & (f.c.environment == environment))
        if flag is None:
            raise FlagNotFoundError(key, environment)
        put = Override(
            user_id=user_id, override_type=override_type, reason=reason, created_by=actor,
            created_at=self._database.present(connection),
        )  # fmt: skip
        values = {name: getattr(put, name) for name in Override.__slots__ if name != "user_id"}
        named = self._database.insert(t).values(flag_id=flag.id, user_id=put.user_id, **values)
        connection.execute(named.on_conflict_do_update(index_elements=[t.c.flag_id, t.c.user_id], set_=values))
        counted = select(func.count()).select_from(t).where(t.c.flag_id == flag.id)
        if connection.execute(counted).scalar_one() > OVERRIDES_MAX:
            raise InvalidChangeError(f"{key!r} has {OVERRIDES_MAX} overrides already: use its percentage instead")
        why = f"{put.override_type} {put.user_id}" + (f": {put.reason}" if put.reason else "")
        self._note(connection, "override", environment, key, actor=actor, reason=why)
        self._cache.announce(connection)
        return put

    @writes
    def delete_override(
        self, connection: Connection, key: str, user_id: str, *, actor: str, environment: str = PRODUCTION
    ) -> bool:
        """Let the percentage speak for a user again; whether there was an override."""
        t, flag = tables.overrides, tables.read_flag(connection, key, environment)
        gone = delete(t).where(t.c.flag_id == flag.id, t.c.user_id == user_id).returning(t.c.user_id)
        if connection.execute(gone).first() is None:
            return False
        self._note(connection, "remove override", environment, key, actor=actor, reason=user_id)
        self._cache.announce(connection)
        return True

    @reads
    def overrides(
        self,
        connection: Connection,
        key: str,
        *,
        environment: str = PRODUCTION,
        limit: int = LISTED_MAX,
        offset: int = 0,
    ) -> Sequence[Override]:
        """The overrides of a flag, by user."""
        t, flag = tables.overrides, tables.read_flag(connection, key, environment)
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
