"""What each version of the user's code has tried of a kind, beside which of them run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from redrive.operator.kinds import VersionSeen
from redrive.operator.verdict.versions import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    """One version, ready to be drawn."""

    version: str | None
    since: datetime
    """When it was deployed, else when it tried first."""
    until: datetime | None
    """When its last try ended; None while it runs."""
    tries: int
    failures: int


def version_rows(seen: Sequence[VersionSeen], versions: Versions) -> list[VersionRow]:
    """The latest first."""
    rows = []
    for one in seen:
        ends = [at for at in (one.last_failure, one.last_success) if at is not None]
        runs = one.version in versions.running
        since = versions.deployed(one.version) or one.first_tried
        rows.append(
            VersionRow(
                version=one.version, since=since, until=None if runs else max(ends, default=one.first_tried), tries=one.tries, failures=one.failures
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: row.since, reverse=True)


def worth_trying(failed_in: str | None, versions: Versions) -> str | None:
    """Whether the version that runs is reason to try again; None where nobody says which it is."""
    newest = versions.newest
    if newest is None or failed_in is None:
        return None
    if versions.newer_runs(failed_in):
        return f"Last seen in {failed_in}; {newest} is newer and runs now: a redrive is worth trying."
    if failed_in == newest:
        return (
            f"Last seen in {failed_in}, which is still the newest: a newer version would make a redrive worth trying."
        )
    return f"Last seen in {failed_in}; {newest} runs now, which is older."
