"""Which version runs beside the one that failed last."""

from datetime import UTC, datetime, timedelta

from redrive.operator.roster import WorkerSeen
from redrive.operator.verdict.versions import Versions

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)


def worker(version, hours, *, stopped=False):
    """A worker that began so many hours ago."""
    return WorkerSeen(
        name=version or "?", host="h", pid=1, version=version, slots=1, holds={}, started_at=NOW - timedelta(hours=hours),
        seen_at=NOW, stopped_at=NOW if stopped else None,
    )  # fmt: skip


def test_what_runs_beside_what_failed():
    """A newer one is good to know, the same one a warning; where nobody says what runs, nothing is said."""
    newer = Versions.of([worker("9c1e", 9, stopped=True), worker("4f31", 1)], NOW)
    assert newer.beside("9c1e") == ("good", "4f31 runs now; last failed in 9c1e")
    assert newer.beside("4f31") == ("warn", "4f31 runs now, and they failed in it")
    assert newer.beside(None) == ("plain", "4f31 runs now")
    both = Versions.of([worker("9c1e", 9), worker("4f31", 1)], NOW)
    assert both.beside("9c1e") == ("good", "4f31 runs now beside 9c1e, in which they failed")
    back = Versions.of([worker("9c1e", 9), worker("4f31", 1, stopped=True)], NOW)
    assert back.beside("4f31") == ("plain", "9c1e runs now; last failed in 4f31")
    assert Versions.of([worker(None, 1)], NOW).beside("9c1e") is None
