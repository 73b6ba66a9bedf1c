"""The page of a kind: its versions and how long its tasks take; and the table of kinds over a longer time."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.core.states import State
from redrive.core.task import Task
from redrive.engine.tally import KindCounts, KindMinute
from redrive.operator.verdict import Verdict, judge
from redrive.web.pages.kinds import time_to_done
from tests.operator.verdict.story import LEDGER, SUNDAY
from tests.web.standing import Standing, standing

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)


@pytest.fixture
async def web(tmp_path, clock):
    async with standing(f"sqlite:///{tmp_path / 'web.db'}", clock) as made:
        yield made


def done(seconds):
    """A task that was done so long after it was added."""
    return Task(
        id=1, key="1", kind="mail", state=State.DONE, failures=0, failures_max=3, redrives=0, due_at=None, lease_until=None,
        payload=None, last_error=None, created_at=NOW, updated_at=NOW, ended_at=NOW + timedelta(seconds=seconds),
    )  # fmt: skip


def test_time_to_done_is_told_by_the_last_that_are_done():
    """From added to done, retries and waits included; too few tell nothing."""
    chart = time_to_done([done(0.05)] * 60 + [done(2)] * 30 + [done(400)] * 10)
    assert chart.lead == "Half within 50ms,"
    assert "95 of 100 within 6m 40s: the last 100" in chart.answer
    assert [row for row in chart.rows if row[1] != "0"] == [("< 100ms", "60"), ("1s+", "30"), ("5m+", "10")]
    assert time_to_done([done(1)] * 4) is None


async def test_kinds_are_summed_up_over_the_chosen_time(web: Standing):
    """Five minutes, or an hour, a day, a week; the versions stand on the page of the kind."""
    now = web.clock.now()
    for minutes, version, tries, failures in ((0, "4f2a", 5, 1), (30, "9c1e", 100, 10)):
        at = now - timedelta(minutes=minutes)
        minute = KindMinute(at.replace(second=0, microsecond=0), "mail", "", tries, tries, failures, tries - failures, 0, at, at, at, at, ran=[tries, *[0] * 13])  # fmt: skip
        await web.app.store.kinds.write([KindCounts("redrive_task", [minute], [])], worker="w", version=version)
    shown = {over: (await web.local.get(f"/?over={over}")).text for over in ("5m", "1h", "7d")}
    assert 'data-name="Tries">5<' in shown["5m"]
    assert 'data-name="Tries">105<' in shown["1h"]
    assert 'data-name="Tries">105<' in shown["7d"]
    assert "last 7 days" in shown["7d"]
    assert (await web.local.get("/?over=never")).status_code == 422
    page = (await web.local.get("/kinds/redrive_task/mail")).text
    assert "<code>4f2a</code>" in page
    assert "<code>9c1e</code>" in page


async def test_what_fails_now_is_listed_while_nobody_is_dead_of_it(web: Standing, monkeypatch: pytest.MonkeyPatch):
    """On the page of causes and on that of the kind: red, first, and with how many wait."""

    async def night(*_: object) -> Verdict:
        return judge(SUNDAY)

    monkeypatch.setattr("redrive.web.pages.dead.verdict_of", night)
    monkeypatch.setattr("redrive.web.pages.kinds.verdict_of", night)
    for path in ("/dead", f"/kinds/{LEDGER}/mail.send"):
        text = (await web.local.get(path)).text
        assert "Failing now" in text, path
        assert "120 waiting" in text, path
        assert "No task of this kind is dead" not in text
