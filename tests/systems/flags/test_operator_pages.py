"""Schedules page by page: in the order that people want, all of them once, and by an index however many there are."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event

from redrive.systems.flags import InvalidChangeError, NewSchedule
from redrive.systems.flags.policy import calculate_next_retry_at
from redrive.systems.flags.values import ScheduleStatus

from .conftest import MINUTE, Api, Home, execute

PARKED = 4000


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
    for cursor in ("", "1", "x@1", "1@", "1@inf", "1@2030-01-01", f"{2**63}@1", "9@0001-01-01T00:00:00+23:59"):
        with pytest.raises(InvalidChangeError, match="the one that the page before gave"):
            await home.flags.page(ScheduleStatus.PENDING, cursor=cursor)
    # Brought back by hand it is due at once: before all that was planned.
    await home.flags.retry("broken-0", dead[0].id, actor="ada")
    assert await ids() == [dead[0].id, soon.id, late.id]


@pytest.mark.parametrize("section", [ScheduleStatus.PENDING, ScheduleStatus.APPLIED])
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
    ids = [one.schedule.id for one in whole.seen]
    times = [one.schedule.scheduled_at for one in whole.seen]
    assert len(ids) == 11 + (section is ScheduleStatus.PENDING)
    assert times == sorted(times, reverse=section is ScheduleStatus.APPLIED)
    for size in (1, 3, 12):
        paged, cursor = list[int](), None
        while True:
            page = await home.flags.page(section, limit=size, cursor=cursor)
            paged += [one.schedule.id for one in page.seen]
            cursor = page.cursor
            if cursor is None:
                break
        assert paged == ids


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
        home.flags._desk._page(connection, section, "production", key, cursor, 5)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    [(statement, parameters)] = [one for one in seen if "feature_flag_schedules.id" in one[0]]
    prefix = "EXPLAIN QUERY PLAN " if home.store == "sqlite" else "EXPLAIN (COSTS OFF) "
    return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, parameters))
