"""What each version has tried, beside which of them run."""

from datetime import UTC, datetime, timedelta

from redrive.operator.kinds import VersionSeen
from redrive.operator.verdict.versions import Versions
from redrive.web.pages.versions import version_rows, worth_trying

NOW = datetime(2026, 3, 1, 21, 42, tzinfo=UTC)
OLD, NEW = NOW - timedelta(hours=9), NOW - timedelta(minutes=8)
RUNNING = Versions({"9c1e": OLD, "4f2a": NEW}, {"4f2a": 7})


def seen(version, tries, failures, first, last):
    """What a version has tried."""
    return VersionSeen(
        version=version, tries=tries, failures=failures, dead=0, first_tried=first, last_failure=None, last_success=last
    )


def test_the_latest_first_with_since_when_or_until_when_it_ran():
    """Since its first sign of life where it runs, until its last try where it does not."""
    rows = version_rows([seen("9c1e", 4310, 0, OLD, NEW), seen("4f2a", 812, 812, NEW, NOW)], RUNNING)
    assert [(row.version, row.since, row.until, row.failures) for row in rows] == [
        ("4f2a", NEW, None, 812), ("9c1e", OLD, NEW, 0),
    ]  # fmt: skip


def test_whether_a_redrive_is_worth_trying():
    """A newer version that runs is a reason; where nobody says what runs, nothing is said."""
    assert worth_trying("9c1e", RUNNING) == "Last seen in 9c1e; 4f2a is newer and runs now: a redrive is worth trying."
    assert "still the newest" in worth_trying("4f2a", RUNNING)
    assert "which is older" in worth_trying("4f2a", Versions(RUNNING.first_seen, {"9c1e": 1}))
    assert worth_trying(None, RUNNING) is None
    assert worth_trying("4f2a", Versions({}, {})) is None
