"""Looking things up, and what the migration makes."""

from datetime import timedelta
from typing import Any

import pytest

from redrive import Filter
from redrive.errors import UsageError
from tests.systems.commands.conftest import DOMAIN, START, TYPE, Bench


async def test_query(bench: Bench) -> None:
    """Every filter alone and together, newest first, in pages that show each command once."""
    for number in range(6):
        await bench.bus.send(DOMAIN if number % 2 else "shipping", TYPE if number < 4 else "Other", f"c-{number}")
        bench.advance(minutes=1)
    await bench.work()

    async def ids(**asked: Any) -> list[str]:
        return [one.command_id for one in (await bench.bus.query_commands(**asked)).items]

    assert await ids() == [f"c-{number}" for number in (5, 4, 3, 2, 1, 0)]
    assert await ids(domain=DOMAIN) == ["c-5", "c-3", "c-1"]
    assert await ids(status="COMPLETED") == ["c-3", "c-1"]
    assert await ids(type="Other") == ["c-5", "c-4"]
    assert await ids(created_after=START + timedelta(minutes=4)) == ["c-5", "c-4"]
    assert await ids(created_before=START + timedelta(minutes=1)) == ["c-0"]
    assert await ids(domain=DOMAIN, status="PENDING", type="Other") == ["c-5"]
    assert await ids(status="IN_TROUBLESHOOTING_QUEUE") == []
    seen, cursor = [], None
    while True:
        page = await bench.bus.query_commands(limit=4, cursor=cursor)
        seen += [one.command_id for one in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == await ids()


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": True},
        {"status": "DONE"},
        {"cursor": "x"},
        {"cursor": "9" * 30},
        {"created_after": START.replace(tzinfo=None)},
    ],
)
async def test_questions_that_make_no_sense(bench: Bench, wrong: dict) -> None:
    """The error says what may be asked."""
    with pytest.raises(UsageError):
        await bench.bus.query_commands(**wrong)


async def test_nothing_is_nothing(bench: Bench) -> None:
    """What is not there is None or empty, not an error."""
    assert await bench.bus.get_command(DOMAIN, "nobody") is None
    assert await bench.bus.get_batch(DOMAIN, "nobody") is None
    assert await bench.bus.audit_trail("nobody") == []
    assert await bench.bus.troubleshooting.count() == 0
    assert await bench.bus.take_replies("nowhere") == []


async def test_the_engines_tools_see_commands(bench: Bench) -> None:
    """The lane counts, finds and explains commands as it does any task."""
    bench.raises = [ConnectionError("down")]
    await bench.send()
    await bench.work()
    [task] = (await bench.bus.lane.find(Filter(kind=f"{DOMAIN}/{TYPE}"))).items
    assert (task.failures, task.last_error, task.state) == (1, "down", "waiting")
    [attempt] = await bench.bus.lane.attempts(task.id)
    assert (attempt.outcome, attempt.error) == ("failed", "ConnectionError: down")
    assert (await bench.bus.lane.counts())["waiting"] == 1
    assert bench.app.lanes["commands"] is bench.bus.lane
