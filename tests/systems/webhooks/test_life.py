"""What becomes of a webhook: its tries, its end, and what is deleted. In virtual time."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from redrive import PermanentError, Redrive, Snoozed, State, Task, days, hours, seconds
from redrive.app import WorkerSettings
from redrive.systems.webhooks import Webhooks
from redrive.testing import VirtualClock, drain

from .conftest import Make, execute, rows

Inbox = tuple[Redrive, Webhooks]


async def test_delays_are_those_of_the_spec(inbox: Inbox, clock: VirtualClock):
    """10, 20, 40, 80 s, then dead at the fifth failure, with attempts 5 and no time left to wait for."""
    app, webhooks = inbox
    began = clock.now()
    receipt = await webhooks.accept("a", {"fail": True}, idempotency_key="k")
    for attempts, due in ((1, 10), (2, 30), (3, 70), (4, 150)):
        await drain(app, clock=clock, until=timedelta(0))
        task = await webhooks.get(receipt.id)
        assert task.state is State.WAITING
        assert (task.failures, task.due_at) == (attempts, began + seconds(due))
        clock.advance(task.due_at - clock.now())
    await drain(app, clock=clock, until=timedelta(0))
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["retry_after"]) == ("failed", 5, None)
    assert row["last_error"] == "ValueError: not today"
    assert (row["lease_until"], row["claim_id"]) == (None, None)


async def test_settings_change_waits_and_tries(make: Make, clock: VirtualClock):
    """RETRY_MAX_DELAY cuts the waits, also where it is shorter than the first; MAX_ATTEMPTS ends them."""
    for base, cap, attempts, waits in ((5, 300, 8, [10, 20, 40, 80, 160, 300, 300]), (200, 300, 3, [300, 300])):
        _, webhooks = make(retry_base_delay=base, retry_max_delay=cap, max_attempts=attempts)
        policy = webhooks.policy
        assert policy.failures_max == attempts
        assert [policy.delay(n, "any").total_seconds() for n in range(1, attempts)] == waits


async def test_a_permanent_error_ends_at_once(make: Make, clock: VirtualClock):
    """It is failed after one try, though there were four left."""
    app, webhooks = make(clock=clock)

    @webhooks.handler("order.*")
    def order(task: Task) -> None:
        raise PermanentError("there is no such order")

    await webhooks.accept("order.paid", {}, idempotency_key="k")
    await drain(app, clock=clock)
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["retry_after"]) == ("failed", 1, None)


async def test_a_type_without_handler_waits(make: Make, clock: VirtualClock):
    """It is not failed, no try is charged, and a handler that is there later gets it."""
    app, webhooks = make(clock=clock)
    seen = []

    @webhooks.handler("order.*")
    def order(task: Task) -> None:
        seen.append(task.kind)

    await webhooks.accept("invoice.paid", {}, idempotency_key="i")
    await webhooks.accept("order.paid", {}, idempotency_key="o")
    await drain(app, clock=clock, until=hours(24))
    assert seen == ["order.paid"]
    by_key = {row["idempotency_key"]: row for row in await rows(app)}
    assert (by_key["i"]["status"], by_key["i"]["attempts"]) == ("pending", 0)
    later, more = make(clock=clock)
    more.handler("invoice.*")(order)
    await drain(later, clock=clock)
    assert seen == ["order.paid", "invoice.paid"]


async def test_attempts_count_what_was_started(make: Make, clock: VirtualClock):
    """A try that fails counts, one that is put off does not, and the one that succeeds does."""
    app, webhooks = make(clock=clock)
    calls = iter(["fail", "snooze", "done"])

    @webhooks.handler("*")
    def handle(task: Task) -> Any:
        match next(calls):
            case "fail":
                raise ValueError
            case "snooze":
                return Snoozed(seconds(5))
        return None

    await webhooks.accept("a", {}, idempotency_key="k")
    await drain(app, clock=clock)
    [row] = await rows(app)
    assert (row["status"], row["attempts"], row["retry_after"]) == ("completed", 2, None)


@pytest.mark.parametrize("lease", ["run out", "none"])
async def test_a_row_left_processing_comes_back_and_the_try_counts(inbox: Inbox, clock: VirtualClock, lease: str):
    """Whether its lease has run out or it has none at all, as a row from elsewhere may have."""
    app, webhooks = inbox
    receipt = await webhooks.accept("a", {}, idempotency_key="k")
    [claim] = await (await webhooks.lane.ledger()).claim(1, seconds(30))
    assert str(claim.task.id) == receipt.id
    if lease == "none":
        await execute(app, "UPDATE events SET lease_until = NULL, claim_id = NULL")
    else:
        clock.advance(seconds(31))
    drained = await drain(app, clock=clock)
    assert drained.of("k") == ["lease_expired", "done"]
    [row] = await rows(app)
    assert (row["status"], row["attempts"]) == ("completed", 2)


SPELLINGS = (
    "2030-01-01T00:00:10Z",
    "2030-01-01T00:00:10.000Z",
    "2030-01-01T00:00:10.000000Z",
    "2030-01-01T00:00:10+00:00",
    "2030-01-01T02:00:10.000+02:00",
    "2029-12-31T19:00:10-05:00",
    "2030-01-01 00:00:10",
    "2030-01-01 00:00:10.000000",
)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_times_compare_right_whatever_their_format(inbox: Inbox, clock: VirtualClock, spelling: str):
    """A row that somebody else wrote is due at its instant: not a moment before, and not when its text says otherwise."""
    app, webhooks = inbox
    await app.open()
    await execute(
        app,
        "INSERT INTO events (id, idempotency_key, event_type, payload, attempts, retry_after, created_at, updated_at)"
        f" VALUES ('x', 'k', 'a', '{{}}', 1, '{spelling}', '{spelling}', '{spelling}')",
    )
    clock.advance(seconds(9.9))
    assert await webhooks.inbox.depth(10) == 0
    assert await (await webhooks.lane.ledger()).next_due() == pytest.approx(seconds(0.1), abs=seconds(0.002))
    assert not (await drain(app, clock=clock, until=timedelta(0))).settlements
    clock.advance(seconds(0.11))
    assert await webhooks.inbox.depth(10) == 1
    assert (await drain(app, clock=clock, until=timedelta(0))).of("k") == ["done"]
    clock.advance(days(1))
    ledger = await webhooks.lane.ledger()
    assert await ledger.prune([State.DONE], days(1) + seconds(1)) == 0
    assert await ledger.prune([State.DONE], days(1) - seconds(1)) == 1


async def test_times_of_all_formats_keep_their_order(inbox: Inbox, clock: VirtualClock):
    """Rows in every spelling, each a second later than the last, run in the order of their instants."""
    app, _ = inbox
    await app.open()
    begin = datetime(2030, 1, 1, 0, 0, 10, tzinfo=UTC)
    for number in range(24):
        at = begin + seconds(number)
        zone = timedelta(hours=number % 5 - 2)
        local = (at + zone).replace(tzinfo=None)
        sign = f"{'-' if zone < timedelta(0) else '+'}{abs(zone).seconds // 3600:02}:00"
        spelled = [
            f"{at:%Y-%m-%dT%H:%M:%S}Z",
            f"{local:%Y-%m-%dT%H:%M:%S.%f}{sign}",
            f"{at:%Y-%m-%d %H:%M:%S}",
            f"{local.isoformat()}{sign}",
        ][number % 4]
        await execute(
            app,
            "INSERT INTO events (id, idempotency_key, event_type, payload, attempts, retry_after, created_at, updated_at)"
            f" VALUES ('{97 - number}', 'k{number:02}', 'a', '{{}}', 1, '{spelled}', '{spelled}', '{spelled}')",
        )
    drained = await drain(app, clock=clock)
    assert [one.claim.task.key for one in drained.settlements] == [f"k{number:02}" for number in range(24)]
    assert clock.now() >= begin + seconds(22.99)  # text is compared to the millisecond


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_times_are_written_as_iso_8601_in_utc(inbox: Inbox, clock: VirtualClock):
    """What people find in the file reads the same everywhere."""
    app, webhooks = inbox
    await webhooks.accept("a", {"fail": True}, idempotency_key="k")
    await drain(app, clock=clock, until=timedelta(0))
    [row] = await rows(app)
    assert row["created_at"] == "2030-01-01T00:00:00.000000Z"
    assert row["retry_after"] == "2030-01-01T00:00:10.000000Z"


async def test_old_webhooks_are_deleted_and_open_ones_never(inbox: Inbox, clock: VirtualClock):
    """Completed and failed ones after RETENTION_DAYS, in batches; those that wait or are processed stay, however old."""
    app, webhooks = inbox
    for key, payload in (("done", {}), ("dead", {"fail": True})):
        await webhooks.accept("a", payload, idempotency_key=key)
    await drain(app, clock=clock)
    await webhooks.accept("a", {}, idempotency_key="held")
    ledger = await webhooks.lane.ledger()
    [held] = await ledger.claim(1, seconds(30))
    await webhooks.accept("a", {}, idempotency_key="waits")
    tuned = webhooks.lane.tune(_worker())
    assert tuned.retention == {State.DONE: days(30), State.DEAD: days(30)}
    assert tuned.prune_every == hours(1)
    assert tuned.concurrency == 85
    clock.advance(days(30))
    for state, span in tuned.retention.items():
        await ledger.prune([state], span)
    assert len(await rows(app)) == 4 - 2
    assert {row["idempotency_key"] for row in await rows(app)} == {held.task.key, "waits"}
    assert await _count(app, "redrive_attempt") == 0


async def test_retention_of_zero_keeps_for_ever(make: Make):
    """As it does for tasks."""
    _, webhooks = make(retention_days=0)
    assert webhooks.lane.tune(_worker()).retention == {}


async def test_the_payload_is_what_the_sender_meant(inbox: Inbox):
    """Stored as JSON text that any reader reads back."""
    app, webhooks = inbox
    payload = {"name": "Zoë", "n": 1.5, "list": [1, None, {"a": "\u0000"}]}
    await webhooks.accept("a", payload, idempotency_key="k")
    [row] = await rows(app)
    assert json.loads(row["payload"]) == payload


async def _count(app: Redrive, table: str) -> int:
    return await app.database.read(
        lambda connection: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()
    )


def _worker() -> WorkerSettings:
    return WorkerSettings()
