"""Which version runs, and when each was deployed: the first sign of life of a worker that ran it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from redrive.operator.roster import WorkerSeen


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions on the roster."""

    first_seen: dict[str, datetime]
    running: dict[str, int]
    """Workers that are there now, by their version."""

    @classmethod
    def of(cls, workers: Iterable[WorkerSeen], now: datetime) -> "Versions":
        """What the roster says."""
        first: dict[str, datetime] = {}
        running: dict[str, int] = {}
        for one in workers:
            if one.version is None:
                continue
            first[one.version] = min(first.get(one.version, one.started_at), one.started_at)
            if one.is_there(now):
                running[one.version] = running.get(one.version, 0) + 1
        return cls(first, running)

    def deployed(self, version: str | None) -> datetime | None:
        """When a version was first seen; None where nobody knows."""
        return None if version is None else self.first_seen.get(version)

    @property
    def newest(self) -> str | None:
        """Of those that run the one that was deployed last."""
        return max(self.running, key=lambda version: self.first_seen[version], default=None)

    def beside(self, failed_in: str | None) -> tuple[str, str] | None:
        """What runs now beside the version that failed last: whether that is good to know, and a sentence. None where nobody says what runs."""
        newest = self.newest
        if newest is None:
            return None
        if failed_in is None:
            return "plain", f"{newest} runs now"
        if failed_in == newest:
            return "warn", f"{newest} runs now, and they failed in it"
        others = (
            f" beside {failed_in}, in which they failed"
            if failed_in in self.running
            else f"; last failed in {failed_in}"
        )
        return "good" if self.newer_runs(failed_in) else "plain", f"{newest} runs now{others}"

    def newer_runs(self, version: str | None) -> bool:
        """Whether a version runs that was deployed after this one."""
        newest, deployed = self.newest, self.deployed(version)
        if version is None or newest is None or newest == version:
            return False
        return deployed is None or self.first_seen[newest] > deployed
