"""What a change of a flag may set, and which of two changes of the same field is the newer one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redrive.systems.flags.errors import InvalidChangeError

FIELDS = {"enabled": "enabled", "rolloutPercentage": "rollout_percentage"}
"""The fields that a change may set, by their names outside, and the columns they stand in."""
_OUTSIDE = {column: name for name, column in FIELDS.items()}

Values = dict[str, Any]
"""New values by column."""


def read_values(given: object) -> Values:
    """The new values that `updates` asks for, or an `InvalidChangeError` that says what is wrong with them."""
    if not isinstance(given, Mapping):
        raise InvalidChangeError(f"updates must name new values, such as {{'enabled': true}}, not {given!r:.80}")
    values: Values = {}
    for name, value in given.items():
        column = name if name in _OUTSIDE else FIELDS.get(name)
        if column is None:
            raise InvalidChangeError(f"updates cannot set {name!r:.80}: it may set {', '.join(FIELDS)}")
        values[column] = value
    if not values:
        raise InvalidChangeError(f"updates is empty: give at least one of {', '.join(FIELDS)}")
    enabled, percentage = values.get("enabled", False), values.get("rollout_percentage", 0)
    if not isinstance(enabled, bool):
        raise InvalidChangeError(f"enabled must be true or false, not {enabled!r:.80}")
    if isinstance(percentage, bool) or not isinstance(percentage, int) or not 0 <= percentage <= 100:
        raise InvalidChangeError(f"rolloutPercentage must be a whole number from 0 to 100, not {percentage!r:.80}")
    return values


def readable_values(given: object) -> Values:
    """The same; nothing where others wrote what cannot be set, which the schedule says itself when it is tried."""
    try:
        return read_values(given)
    except InvalidChangeError:
        return {}


def updates_of(values: Values) -> dict[str, Any]:
    """The values by their names outside."""
    return {_OUTSIDE[column]: value for column, value in values.items()}


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a change was meant to take effect, and by which schedule; None is a person's edit, then and there."""

    at: datetime
    schedule_id: int | None = None

    def is_newer_than(self, scheduled_at: datetime, schedule_id: int) -> bool:
        """Whether this change came after that schedule was meant to. An edit at the very same instant did."""
        if self.schedule_id is None:
            return self.at >= scheduled_at
        return (self.at, self.schedule_id) > (scheduled_at, schedule_id)

    def as_json(self) -> dict[str, Any]:
        return {"at": self.at.astimezone(UTC).isoformat(), "schedule": self.schedule_id}

    def __str__(self) -> str:
        return "an edit" if self.schedule_id is None else f"schedule {self.schedule_id}"


class LastSet:
    """Which change set each field last, as the flag's row remembers it."""

    def __init__(self, stored: object) -> None:
        self._stamps: dict[str, Stamp] = {}
        for column, stamp in (stored if isinstance(stored, Mapping) else {}).items():
            self._stamps[column] = Stamp(datetime.fromisoformat(stamp["at"]), stamp["schedule"])

    def newer_than(self, columns: Iterable[str], scheduled_at: datetime, schedule_id: int) -> tuple[str, Stamp] | None:
        """The first of the columns that was set by a newer change than this schedule, and that change."""
        for column in columns:
            stamp = self._stamps.get(column)
            if stamp is not None and stamp.is_newer_than(scheduled_at, schedule_id):
                return column, stamp
        return None

    def mark(self, columns: Iterable[str], stamp: Stamp) -> None:
        """Remember that this change set the columns."""
        self._stamps |= dict.fromkeys(columns, stamp)

    def as_json(self) -> dict[str, Any]:
        return {column: stamp.as_json() for column, stamp in self._stamps.items()}


def superseded(column: str, by: Stamp) -> str:
    """Why a schedule was cancelled in favour of a newer change."""
    return f"superseded: {by} has set {_OUTSIDE[column]} since"
