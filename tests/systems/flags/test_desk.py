"""What operators see and do: schedules page by page by an index, cancelled, and brought back, each once."""

import asyncio
import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event

from redrive.lane import Attempt
from redrive.operator.cursors import read_cursor
from redrive.systems.flags import InvalidChangeError, InvalidStateError, NewSchedule, ScheduleNotFoundError
from redrive.systems.flags.desk import FlagDesk
from redrive.systems.flags.policy import calculate_next_retry_at
from redrive.systems.flags.values import ScheduleStatus

from ..figures import are_counted_soon, take_long_to_count
from .conftest import MINUTE, Api, Home, MakeHome, act, deeds, execute

PARKED = 4000
HOUR = timedelta(hours=1)


async def listed(api: Api, **query: Any) -> list[Any]:
    answer = await api("GET", "/api/flags/schedules", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["schedules"]


async def test_sections_and_their_order(home: Home, api: Api) -> None:
    """What is to come by when it is due, what is over by its end, the last first; across flags, by flag, by environment."""
    late, soon = await home.plan("late", 30 * MINUTE), await home.plan("soon", 20 * MINUTE)
    applied = [await home.plan(f"flag-{number}", (1 + number) * MINUTE / 4) for number in range(3)]
    dead = [await home.plan(f"broken-{number}", max_retries=0) for number in range(2)]
    cancelled = await home.plan("cancelled", 5 * MINUTE)
    await home.flags.put("late", environment="staging", actor="bob")
    staged = NewSchedule(scheduled_at=home.now + MINUTE, updates={"rolloutPercentage": 5}, max_retries=0)
    [elsewhere] = await home.flags.schedule("late", staged, actor="bob", environment="staging")
    retrying = await home.plan_broken(after=MINUTE, max_retries=2)
    await home.drain(until=home.now + timedelta(seconds=59))
    await home.flags.cancel("cancelled", cancelled.id, actor="ada")
    await home.drain(until=MINUTE)

    async def ids(**query: Any) -> list[int]:
        return [one["schedule"]["id"] for one in await listed(api, **query)]

    assert await ids() == await ids(status="pending") == [soon.id, late.id]
    assert await ids(status="retrying") == [retrying.id]
    assert await ids(status="failed") == [one.id for one in dead[::-1]]
    assert await ids(status="applied") == [one.id for one in applied[::-1]]
    assert await ids(status="cancelled") == [cancelled.id]
    assert await ids(flag="late") == [late.id]
    assert await ids(flag="flag-1", status="applied") == [applied[1].id]
    assert await ids(environment="staging", status="applied") == [elsewhere.id]
    assert await ids(environment="nowhere") == await ids(flag="soon", status="failed") == []
    [one] = await listed(api, status="retrying")
    assert (one["environment"], one["tries"], one["schedule"]["retryCount"]) == ("production", 1, 1)
    assert [one["number"] for one in one["upcoming"]] == [2, 3]
    told = (await api.admin("GET", f"broken/schedule/{retrying.id}/retries")).json()
    assert one["upcoming"] == told["upcoming"]
    second = one["upcoming"][1]["at"]
    first = (await home.schedule(retrying.id)).next_retry_at
    assert first is not None
    assert second == calculate_next_retry_at(1, retrying.id, now=first).isoformat(timespec="microseconds").replace(
        "+00:00", "Z"
    )
    assert [(one["tries"], one["upcoming"]) for one in await listed(api, status="failed")] == [(1, []), (1, [])]
    made_up = (
        [1, "x"],
        [1, str(2**63)],
        [None, "1"],
        ["2030-01-01", "1"],
        ["0001-01-01T00:00:00+23:59", "9"],
        ["1", 1],
    )
    for cursor in ("", "1", "x@1", *(base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in made_up)):
        with pytest.raises(InvalidChangeError, match="the one that the page before gave"):
            await home.flags.page(ScheduleStatus.PENDING, cursor=cursor)
    # Brought back by hand it is due at once: before all that was planned.
    await home.flags.retry("broken-0", dead[0].id, actor="ada")
    assert await ids() == [dead[0].id, soon.id, late.id]


@pytest.mark.parametrize("section", [ScheduleStatus.PENDING, ScheduleStatus.APPLIED])
@pytest.mark.every_store
async def test_pages_give_each_once(home: Home, section: ScheduleStatus) -> None:
    """Also those that share an instant, and those that others wrote: with times in other spellings, or none to be read."""
    await home.plan("promo", 5 * MINUTE)
    wide = "'2030-01-01T00:10:00+05:00'" if home.store == "sqlite" else "'2030-01-01 00:10:00+05'"
    bad = "'soon'" if home.store == "sqlite" else "'1970-01-01 00:00:00+00'"
    columns = "flag_key, environment, scheduled_at, status, updates, created_at, updated_at"
    values = ", ".join(
        f"('promo', 'production', {at}, '{section.word}', '{{}}', '2030-01-01 00:00:00+00:00', {at})"
        for at in [wide] * 4 + ["'2030-01-01 00:10:00+00:00'"] * 5 + [bad] * 2
    )
    await execute(home.app, f"INSERT INTO feature_flag_schedules ({columns}) VALUES {values}")
    whole = await home.flags.page(section)
    assert whole.cursor is None
    ids = [one.schedule.id for one in whole.items]
    times = [one.schedule.scheduled_at for one in whole.items]
    assert len(ids) == 11 + (section is ScheduleStatus.PENDING)
    assert times == sorted(times, reverse=section is ScheduleStatus.APPLIED)
    for size in (1, 3, 12):
        paged, cursor = list[int](), None
        while True:
            page = await home.flags.page(section, limit=size, cursor=cursor)
            paged += [one.schedule.id for one in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert paged == ids


@pytest.mark.every_store
async def test_pages_are_served_by_indexes(home: Home) -> None:
    """Each page reads the index that holds its rows in its order and sorts nothing, also of a flag that has few among many."""
    many, few = await home.plan("many", 5 * MINUTE), await home.plan("few", 5 * MINUTE)
    copied = "flag_id, flag_key, environment, scheduled_at, updates, created_at, updated_at"
    kinds = (
        ("pending", "NULL"),
        ("failed", "scheduled_at"),
        ("failed", "NULL"),
        ("applied", "NULL"),
        ("cancelled", "NULL"),
    )
    for status, due in kinds:
        for id_, amount in ((many.id, PARKED), (few.id, 8)):
            series = (
                f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {amount}) SELECT n FROM s)"
            )
            await execute(
                home.app,
                f"INSERT INTO feature_flag_schedules ({copied}, status, next_retry_at) SELECT {copied}, '{status}', {due}"
                f" FROM feature_flag_schedules, {series} AS s WHERE id = {id_}",
            )
    await execute(home.app, "ANALYZE")
    for section in ScheduleStatus:
        for key in (None, "few"):
            first = await home.flags.page(section, key=key, limit=5)
            assert first.cursor is not None
            for cursor in (None, first.cursor):
                plan = await home.app.database.write(explained, home, section, key, cursor)
                index = f"feature_flag_schedules_{('ahead' if section.is_ahead else 'over')}{'' if key is None else '_flag'}_idx"
                assert index in plan, plan
                assert "TEMP B-TREE FOR ORDER BY" not in plan, plan
                for line in (one.strip().removeprefix("->").strip() for one in plan.splitlines()):
                    assert not line.startswith(
                        ("SCAN ", "Seq Scan", "Sort", "Filter: (flag_key", "Filter: (environment")
                    ), plan


def explained(connection: Connection, home: Home, section: ScheduleStatus, key: str | None, cursor: str | None) -> str:
    """The plan of the very statement that a page reads."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        after = None if cursor is None else read_cursor(cursor, int)
        FlagDesk._page.__wrapped__(home.flags._desk, connection, section, "production", key, after, 5)  # type: ignore[attr-defined]
    finally:
        event.remove(connection, "before_cursor_execute", note)
    [(statement, parameters)] = [one for one in seen if "feature_flag_schedules.id" in one[0]]
    prefix = "EXPLAIN QUERY PLAN " if home.store == "sqlite" else "EXPLAIN (COSTS OFF) "
    return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, parameters))


async def test_cancelled_before_its_time(home: Home) -> None:
    """It is never applied, and the row says who and when."""
    made = await home.plan()
    ended = await home.flags.cancel("promo", made.id, actor="bob")
    assert (ended.status, ended.cancelled_by, ended.cancelled_at) == ("cancelled", "bob", home.now)
    assert (await home.drain()).settlements == []
    assert not (await home.flags.get("promo")).enabled
    assert await home.actions(made.id) == ["created", "cancelled"]
    assert [deed.actor for deed in await home.flags.lane.deeds(made.id)] == ["bob"]


async def test_cancelled_while_waiting_for_a_retry(home: Home) -> None:
    """No retry comes any more, also after what was broken is mended."""
    made = await home.plan_broken()
    await home.drain(until=MINUTE)
    ended = await home.flags.cancel("broken", made.id, actor="bob")
    assert (ended.status, ended.next_retry_at, ended.retry_count) == ("cancelled", None, 1)
    await home.mend()
    assert (await home.drain()).settlements == []
    assert not (await home.flags.get("broken")).enabled


@pytest.mark.parametrize("state", ["applied", "dead", "cancelled", "claimed"])
async def test_never_cancelled_afterwards(home: Home, state: str) -> None:
    """What has ended, or is being applied just now, cannot be cancelled."""
    made = await (home.plan_broken(max_retries=0) if state == "dead" else home.plan("broken"))
    if state == "cancelled":
        await home.flags.cancel("broken", made.id, actor="bob")
    await home.move_to(made.scheduled_at)
    if state == "claimed":
        ledger = await home.flags.lane.ledger()
        await ledger.claim(1, MINUTE)
    else:
        await home.run_due()
    before = await home.row(made.id)
    with pytest.raises(InvalidStateError, match="only one that waits can be cancelled"):
        await home.flags.cancel("broken", made.id, actor="eve")
    assert await home.row(made.id) == before


async def test_of_another_flag_it_is_not_found(home: Home) -> None:
    """A schedule is reached by its own flag in its own environment only."""
    made = await home.plan()
    await home.plan("other")
    for key, environment in (("other", "production"), ("promo", "staging"), ("none", "production")):
        for call in (home.flags.cancel, home.flags.retry):
            with pytest.raises(ScheduleNotFoundError):
                await call(key, made.id, actor="bob", environment=environment)
        with pytest.raises(ScheduleNotFoundError):
            await home.flags.retries(key, made.id, environment=environment)
    assert (await home.schedule(made.id)).status == "pending"


async def test_a_dead_one_is_brought_back(home: Home) -> None:
    """Due at once, with all its retries; who did it is in the audit and in the history."""
    made = await home.plan_broken()
    await home.drain()
    await home.mend()
    back = await home.flags.retry("broken", made.id, actor="bob")
    assert (back.status, back.retry_count, back.next_retry_at) == ("pending", 0, home.now)
    await home.run_due()
    assert (await home.schedule(made.id)).status == "applied"
    assert (await home.flags.get("broken")).enabled
    assert await home.actions(made.id) == ["created", *["retried"] * 3, "failed", "retried", "applied"]
    entry = (await home.audit(made.id, "retried"))[-1]
    assert (entry.actor, entry.details["byHand"]) == ("bob", True)
    assert [(deed.act, deed.actor) for deed in await home.flags.lane.deeds(made.id)] == [("redrive", "bob")]


async def test_only_the_dead_come_back(home: Home) -> None:
    """Neither what waits, nor what was applied or cancelled."""
    made = await home.plan_broken()
    with pytest.raises(InvalidStateError, match="waiting for its next try"):
        await home.flags.retry("broken", made.id, actor="bob")
    await home.drain(until=MINUTE)
    with pytest.raises(InvalidStateError, match="waiting for its next try"):
        await home.flags.retry("broken", made.id, actor="bob")
    await home.flags.cancel("broken", made.id, actor="bob")
    with pytest.raises(InvalidStateError, match="is cancelled"):
        await home.flags.retry("broken", made.id, actor="bob")


async def test_what_would_only_end_again_is_refused(home: Home) -> None:
    """Expired, deleted or superseded since: the error says so, and what to do instead."""
    expired = await home.plan("one", expires_at=home.now + 2 * MINUTE)
    deleted = await home.plan("two")
    older = await home.plan_broken("broken", max_retries=0)
    home.clock.advance(HOUR)
    await home.flags.delete("two", actor="ada")
    await home.run_due()
    await home.mend()
    await home.flags.put("broken", enabled=False, actor="bob")
    for key, made, why in (
        ("one", expired, "has expired"), ("two", deleted, "was deleted"), ("broken", older, "superseded"),
    ):  # fmt: skip
        with pytest.raises(InvalidStateError, match=why):
            await home.flags.retry(key, made.id, actor="bob")
        assert (await home.schedule(made.id)).status == "failed"


@pytest.mark.every_store
async def test_two_operators_press_at_once(home: Home) -> None:
    """One of them brings it back, the other is told."""
    made = await home.plan_broken(max_retries=0)
    await home.drain()
    both = await asyncio.gather(
        *(home.flags.retry("broken", made.id, actor=who) for who in ("ada", "bob")), return_exceptions=True
    )
    assert sorted(isinstance(one, InvalidStateError) for one in both) == [False, True]
    assert len(await home.audit(made.id, "retried")) == 1


async def test_cancel_some(home: Home, api: Api) -> None:
    """Those that wait are cancelled, for their time or for a retry; of the others it is said why not. Who and why are kept."""
    waiting, applied = await home.plan("one", 10 * MINUTE), await home.plan("two")
    staged = NewSchedule(scheduled_at=home.now + 10 * MINUTE, updates={"enabled": True})
    await home.flags.put("one", environment="staging", actor="ada")
    [other] = await home.flags.schedule("one", staged, actor="ada", environment="staging")
    retrying = await home.plan_broken()
    await home.drain(until=MINUTE)
    ids = [waiting.id, applied.id, other.id, retrying.id, waiting.id, 4711]
    said = await act(api, "schedules/cancel", ids)
    assert said["changed"] == 3
    assert said["refused"] == {
        str(applied.id): f"schedule {applied.id} is applied for good: only one that waits can be cancelled",
        "4711": "there is no schedule 4711",
    }
    for id_ in (waiting.id, other.id, retrying.id):
        row = await home.row(id_)
        assert (row["status"], row["cancelled_by"], row["cancelled_at"]) == ("cancelled", "ada", home.now)
        [entry] = await home.audit(id_, "cancelled")
        assert (entry.actor, entry.details["reason"]) == ("ada", "the promotion is off")
    assert "the disk says no" in (await home.row(retrying.id))["last_error"]
    kept = ("feature_flag_schedules", str(waiting.id), "cancel", "ada", "the promotion is off")
    assert (await deeds(home)).count(kept) == 1
    assert (await act(api, "schedules/cancel", [waiting.id]))["changed"] == 0
    await home.drain()
    assert not (await home.flags.get("one")).enabled


async def test_retry_some(home: Home, api: Api) -> None:
    """Those that failed for good come back with all their retries; of the others it is said why not. Who and why are kept."""
    dead = [await home.plan(f"broken-{number}", max_retries=0) for number in range(2)]
    gone, edited = await home.plan("broken-gone", max_retries=0), await home.plan("broken-edited", max_retries=0)
    retrying, later = await home.plan_broken(), await home.plan("later", 60 * MINUTE)
    await home.drain(until=MINUTE)
    await home.mend()
    await home.flags.delete("broken-gone", actor="ada")
    await home.flags.put("broken-edited", actor="bob", enabled=False)
    said = await act(
        api, "schedules/retry", [later.id, retrying.id, *(one.id for one in dead), gone.id, edited.id, 4711], "mended"
    )
    assert said["changed"] == len(dead)
    why = said["refused"]
    assert set(why) == {str(id_) for id_ in (later.id, retrying.id, gone.id, edited.id, 4711)}
    for schedule, words in ((later, "is waiting"), (retrying, "is waiting"), (gone, "deleted"), (edited, "superseded")):
        assert words in why[str(schedule.id)]
    assert why["4711"] == "there is no schedule 4711"
    [entry] = [one for one in await home.audit(dead[0].id, "retried") if one.actor == "ada"]
    assert (entry.details["byHand"], entry.details["reason"]) == (True, "mended")
    assert "the disk says no" in entry.details["lastError"]
    assert ("feature_flag_schedules", str(dead[0].id), "redrive", "ada", "mended") in await deeds(home)
    await home.run_due()
    assert [(await home.schedule(one.id)).status for one in dead] == ["applied", "applied"]


async def test_whoever_acts_sees_it_in_the_figures(home: Home, api: Api) -> None:
    """They are counted soon, also where counting takes long; what changes nothing hurries nobody."""
    waits, dead = await home.plan("one", 10 * MINUTE), await home.plan_broken(max_retries=0)
    await home.drain(until=MINUTE)
    for path, id_, soon in (
        ("cancel", waits.id, True),
        ("cancel", waits.id, False),
        ("retry", dead.id, True),
        ("retry", dead.id, False),
    ):
        await take_long_to_count(home.flags.lane)
        await act(api, f"schedules/{path}", [id_])
        assert await are_counted_soon(home.flags.lane) is soon, path


@pytest.mark.every_store
async def test_two_at_once_act_once(make_home: MakeHome) -> None:
    """Whoever comes second, from another process, finds nothing left to do; each change is recorded once."""
    home, other = await make_home(), await make_home()
    waiting = [(await home.plan(f"flag-{number}", 10 * MINUTE)).id for number in range(4)]
    dead = [(await home.plan(f"broken-{number}", max_retries=0)).id for number in range(4)]
    await home.break_()
    await home.drain(until=MINUTE)
    flags = [flag.id for flag in await home.flags.all_flags() if flag.flag_key.startswith("flag")]
    await home.mend()
    results = await asyncio.gather(
        home.flags.cancel_all(waiting, actor="ada", reason="a"),
        other.flags.cancel_all(waiting[::-1], actor="bob", reason="b"),
        home.flags.retry_all(dead, actor="ada", reason="a"),
        other.flags.retry_all(dead[::-1], actor="bob", reason="b"),
        home.flags.switch(flags, enabled=True, actor="ada", reason="a"),
        other.flags.switch(flags[::-1], enabled=True, actor="bob", reason="b"),
    )
    for first, second, meant in ((*results[0:2], waiting), (*results[2:4], dead), (*results[4:6], flags)):
        assert sorted(first.changed + second.changed) == sorted(meant)
        assert sorted([*first.refused, *second.refused]) == sorted(meant)
    people = [entry for entry in await home.audit() if entry.actor in ("ada", "bob")]
    assert sorted(one.schedule_id for one in people if one.action == "flag_schedule.cancelled") == waiting
    assert sorted(one.schedule_id for one in people if one.action == "flag_schedule.retried") == dead
    assert len([one for one in await deeds(home) if one[2] == "switch on"]) == len(flags)


async def test_tries_and_schedule_fit_together(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that is tried while somebody looks is not shown as waiting with a try that failed for good."""
    made = await home.plan("broken", max_retries=0)
    await home.break_()
    home.clock.advance(MINUTE)
    attempts = home.flags.lane.attempts

    async def tried_meanwhile(id: int) -> list[Attempt]:
        await home.flags.process()
        return await attempts(id)

    monkeypatch.setattr(home.flags.lane, "attempts", tried_meanwhile)
    told = await home.flags.retries("broken", made.id)
    assert (told.schedule.status, len(told.attempts), told.upcoming) == ("failed", 1, [])
