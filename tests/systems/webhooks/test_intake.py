"""Taking webhooks in: new, known, and too many."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from redrive import Filter, Task, hours
from redrive.testing import VirtualClock, drain

from .conftest import Inbox, Make, at_work, client_of, error_of, execute, rows, webhook


async def test_new_is_202_and_known_is_200(inbox: Inbox, local: httpx.AsyncClient, clock: VirtualClock):
    """Both answers say the same of the one row; the second has its current status."""
    new = await local.post("/webhooks", json=webhook(amount=7))
    assert new.status_code == 202
    assert new.json() == {
        "id": (await rows(inbox[0]))[0]["id"],
        "idempotency_key": "order-7",
        "status": "pending",
        "created_at": "2030-01-01T00:00:00.000000Z",
    }
    await drain(inbox[0], clock=clock)
    known = await local.post("/webhooks", json=webhook(amount=8))
    assert (known.status_code, known.json()) == (200, new.json() | {"status": "completed"})
    [row] = await rows(inbox[0])
    assert json.loads(row["payload"]) == {"amount": 7}


@pytest.mark.every_store
async def test_a_hundred_equal_keys_at_once_are_one_webhook(make: Make):
    """One row, one run, one 202 and 99 times 200, all with the same id."""
    app, webhooks = make()
    runs = []

    @webhooks.handler("order.*")
    async def order(task: Task) -> None:
        runs.append(task.id)

    async with at_work(app) as client:
        answers = await asyncio.gather(*(client.post("/webhooks", json=webhook()) for _ in range(100)))
        assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 99}
        [id_] = {answer.json()["id"] for answer in answers}
        while (await client.get(f"/webhooks/{id_}")).json()["status"] != "completed":
            await asyncio.sleep(0.01)
        await client.post("/webhooks", json=webhook())
    assert runs == [id_]
    assert len(await rows(app)) == 1


@pytest.mark.every_store
async def test_equal_keys_through_two_processes_are_one_webhook(make: Make):
    """The store decides, not a process: each has its own inbox on the same table."""
    inboxes = [make()[1] for _ in range(3)]
    receipts = await asyncio.gather(
        *(inboxes[n % 3].accept("a", {"n": n}, idempotency_key=f"k{n % 10}") for n in range(90))
    )
    assert Counter(receipt.new for receipt in receipts) == {True: 10, False: 80}
    assert len({receipt.id for receipt in receipts}) == 10


async def test_a_known_key_of_another_type_is_known_all_the_same(inbox: Inbox, local: httpx.AsyncClient, capfd: Any):
    """The key decides. The sender gets the webhook that has it, and the log says that a key was used twice."""
    first = await local.post("/webhooks", json=webhook())
    other = await local.post("/webhooks", json=webhook(event_type="order.cancelled"))
    assert (other.status_code, other.json()) == (200, first.json())
    [row] = await rows(inbox[0])
    assert row["event_type"] == "order.paid"


@pytest.mark.every_store
async def test_two_processes_and_one_key_with_two_types(make: Make, monkeypatch: pytest.MonkeyPatch):
    """Who looks before the other has stored and inserts after it gets the other's webhook, and those beside it are stored."""
    (_, first), (app, second) = make(), make()
    stored = await first.accept("order.paid", {}, idempotency_key="order-7")
    find, blind = second.inbox._find, 1

    def late(connection: Any, keys: Any) -> Any:
        nonlocal blind
        blind -= 1
        return {} if blind == 0 else find(connection, keys)

    monkeypatch.setattr(second.inbox, "_find", late)
    monkeypatch.setattr(second.inbox, "_store", second.inbox._look_and_store)
    async with client_of(app) as client:
        answer = await client.post("/webhooks", json=webhook(event_type="order.cancelled"))
    assert (answer.status_code, answer.json()["id"]) == (200, stored.id)
    assert len(await rows(app)) == 1


@pytest.mark.parametrize("known", ["known", "new"])
async def test_a_full_queue_refuses_before_anything_is_written(make: Make, clock: VirtualClock, known: str):
    """While more than QUEUE_MAXSIZE are due: 429 with Retry-After and no row; a known key is 200; later it is 202."""
    app, webhooks = make(clock=clock, queue_maxsize=3)

    @webhooks.handler("*")
    async def handle(task: Task) -> None:
        pass

    async with client_of(app) as client:
        for number in range(4):
            assert (await client.post("/webhooks", json=webhook(f"k{number}"))).status_code == 202
        if known == "known":
            assert (await client.post("/webhooks", json=webhook("k2"))).status_code == 200
        refused = await client.post("/webhooks", json=webhook("late"))
        assert (refused.status_code, error_of(refused)["code"]) == (429, "queue_full")
        assert int(refused.headers["Retry-After"]) > 0
        assert len(await rows(app)) == 4
        assert (await client.get("/webhooks", params={"idempotency_key": "late"})).status_code == 404
        await drain(app, clock=clock)
        assert (await client.post("/webhooks", json=webhook("late"))).status_code == 202
    assert len(await rows(app)) == 5


@pytest.mark.every_store
async def test_a_hundred_senders_at_once_do_not_overfill_the_queue(make: Make):
    """The queue is counted in the transaction that stores: exactly as many get in as there is room for."""
    app, webhooks = make(queue_maxsize=30)
    receipts = await asyncio.gather(*(webhooks.accept("a", {}, idempotency_key=f"k{n}") for n in range(100)))
    assert sum(receipt is not None for receipt in receipts) == 31
    assert len(await rows(app)) == 31


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_two_processes_do_not_overfill_the_queue_of_a_file(make: Make):
    """On SQLite the count and the insert are one with respect to other processes too."""
    inboxes = [make(queue_maxsize=30)[1] for _ in range(3)]
    await asyncio.gather(*(inboxes[n % 3].accept("a", {}, idempotency_key=f"k{n}") for n in range(120)))
    assert (await inboxes[0].inbox.depth(1000)) == 31


async def test_only_what_is_due_fills_the_queue(make: Make, clock: VirtualClock):
    """Webhooks that wait for a later retry, are processed, completed or failed take no place."""
    app, webhooks = make(clock=clock, queue_maxsize=1)
    await app.open()
    for number, status in enumerate(["processing", "completed", "failed", "pending", "pending"]):
        at = "'2030-01-01T01:00:00Z'" if status == "pending" else "NULL"
        await execute(
            app,
            "INSERT INTO events (id, idempotency_key, event_type, payload, status, attempts, retry_after, created_at,"
            f" updated_at) VALUES ('{number}', 'old-{number}', 'a', '{{}}', '{status}', 1, {at}, '2029-01-01T00:00:00Z',"
            " '2029-01-01T00:00:00Z')",
        )
    assert await webhooks.inbox.depth(100) == 0
    assert (await webhooks.accept("a", {}, idempotency_key="1")).new
    assert (await webhooks.accept("a", {}, idempotency_key="2")).new
    assert await webhooks.accept("a", {}, idempotency_key="3") is None
    clock.advance(hours(2))
    assert await webhooks.inbox.depth(100) == 4


async def test_types_without_a_handler_have_a_queue_of_their_own(make: Make, clock: VirtualClock):
    """They are refused when it is full, and fill it for no other type; nor do those that are handled fill theirs."""
    app, webhooks = make(clock=clock, queue_maxsize=3)

    @webhooks.handler("order.*")
    async def handle(task: Task) -> None:
        pass

    async def send(client: httpx.AsyncClient, event_type: str, amount: int) -> list[int]:
        return [
            (await client.post("/webhooks", json=webhook(f"{event_type}-{number}", event_type))).status_code
            for number in range(amount)
        ]

    async with client_of(app) as client:
        assert await send(client, "unknown", 6) == [202] * 4 + [429] * 2
        assert await send(client, "strange", 1) == [429]
        assert await send(client, "order.paid", 6) == [202] * 4 + [429] * 2
        assert await send(client, "order.paid", 4) == [200] * 4
        await drain(app)
        assert await send(client, "order.sent", 5) == [202] * 4 + [429]
        assert await send(client, "strange", 1) == [429]
        await webhooks.lane.cancel(Filter(kind="unknown"), actor="ada", reason="not needed")
        assert await send(client, "strange", 1) == [202]


async def test_a_process_that_only_takes_in_knows_what_workers_handle(make: Make, clock: VirtualClock):
    """A type that no worker takes does not fill the queue of the others there either."""
    _, webhooks = make(clock=clock, queue_maxsize=3)
    _, worker = make(clock=clock)

    @worker.handler("order.*")
    async def handle(task: Task) -> None:
        pass

    async def accept(event_type: str, amount: int) -> int:
        taken = [
            await webhooks.accept(event_type, {}, idempotency_key=f"{event_type}-{number}") for number in range(amount)
        ]
        return sum(receipt is not None for receipt in taken)

    assert await accept("unknown", 6) == 4
    assert await accept("order.paid", 1) == 0, "nobody has said yet that it is handled"
    await worker._handled.say()
    assert await accept("order.paid", 6) == 4
    assert await accept("unknown-too", 1) == 0


@pytest.mark.every_store
async def test_what_is_unusual_is_kept_as_it_is(inbox: Inbox, local: httpx.AsyncClient):
    """The longest key, large numbers, every kind of character and some depth come back unchanged."""
    payload: dict[str, Any] = {"n": 10**300, "f": 1e308, "": "\u0000 \U0001f600", "a b": [None, True, 0.1], "deep": 1}
    for _ in range(90):
        payload = {"in": payload}
    assert (await local.post("/webhooks", json=webhook("k" * 500, "t" * 200, **payload))).status_code == 202
    task = await inbox[1].lane.get("k" * 500)
    assert task is not None
    assert task.payload == payload


@pytest.mark.every_store
async def test_one_commit_serves_many_senders(make: Make, monkeypatch: pytest.MonkeyPatch):
    """What comes in while a commit is under way shares the next one."""
    app, webhooks = make()
    await app.open()
    commits = []
    write = app.database.write

    async def counted(run: Any, *given: Any, **named: Any) -> Any:
        commits.append(run)
        return await write(run, *given, **named)

    monkeypatch.setattr(app.database, "write", counted)
    await asyncio.gather(*(webhooks.accept("a", {}, idempotency_key=f"k{n}") for n in range(300)))
    assert len(commits) <= 6  # half of those that wait, and half of the others
    assert len(await rows(app)) == 300


@pytest.mark.every_store
async def test_new_and_known_ones_in_one_batch(make: Make):
    """Each gets its own receipt, equal to its row, and the minute counts those that are new, once each."""
    app, webhooks = make()
    known = await webhooks.accept("a", {}, idempotency_key="k3")
    assert known is not None
    receipts = await asyncio.gather(*(webhooks.accept("a", {}, idempotency_key=f"k{n % 5}") for n in range(10)))
    assert [receipt.new for receipt in receipts] == [True, True, True, False, True, *[False] * 5]
    stored = {row["idempotency_key"]: row for row in await rows(app)}
    for n, receipt in enumerate(receipts):
        assert (receipt.id, receipt.idempotency_key, receipt.status) == (
            stored[f"k{n % 5}"]["id"],
            f"k{n % 5}",
            "pending",
        )
    shown = await asyncio.gather(*(webhooks.accept("a", {}, idempotency_key=f"k{n}") for n in range(5)))
    assert {receipt.id: receipt.created_at for receipt in shown} == {one.id: one.created_at for one in receipts}
    counted = await app.database.read(
        lambda connection: connection.exec_driver_sql(
            "SELECT sum(added) FROM redrive_minute WHERE ledger = 'events'"
        ).scalar_one()
    )
    assert counted == 5


async def test_the_payload_is_what_the_sender_meant(inbox: Inbox):
    """Stored as JSON text that any reader reads back."""
    app, webhooks = inbox
    payload = {"name": "Zoë", "n": 1.5, "list": [1, None, {"a": "\u0000"}]}
    await webhooks.accept("a", payload, idempotency_key="k")
    [row] = await rows(app)
    assert json.loads(row["payload"]) == payload
