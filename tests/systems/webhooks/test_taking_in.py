"""POST /webhooks: new, known, too many, and everything that does not fit."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from redrive import Redrive, Task, hours
from redrive.errors import LedgerAwayError
from redrive.settings import Settings
from redrive.systems.webhooks import Webhooks, bodies
from redrive.testing import VirtualClock, drain
from redrive.web.app import make_web
from redrive.wiring import Service

from .conftest import Make, at_work, client_of, error_of, execute, rows, webhook

Inbox = tuple[Redrive, Webhooks]


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


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "null": b"null",
    "not UTF-8": b'{"idempotency_key": "\xff", "event_type": "a", "payload": {}}',
    "UTF-16": json.dumps(webhook()).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(webhook()).encode(),
    "NaN": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": NaN}}',
    "infinite": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": -Infinity}}',
    "a float beyond floats": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": 1e999}}',
    "ten thousand digits": b'{"idempotency_key": "k", "event_type": "a", "payload": {"n": ' + b"9" * 10_000 + b"}}",
    "the same name twice": b'{"idempotency_key": "k", "idempotency_key": "l", "event_type": "a", "payload": {}}',
    "twice in the payload": b'{"idempotency_key": "k", "event_type": "a", "payload": {"a": {"b": 1, "b": 2}}}',
    "nested without end": b'{"idempotency_key": "k", "event_type": "a", "payload": ' + b'{"a":' * 100_000,
    "nested too deep": b'{"idempotency_key": "k", "event_type": "a", "payload": '
    + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
    "lists nested too deep": b'{"idempotency_key": "k", "event_type": "a", "payload": {"a":'
    + b"[" * 900 + b"]" * 900 + b"}}",
    "half a character": b'{"idempotency_key": "k", "event_type": "a", "payload": {"a": "\\ud800"}}',
    "half a character in the key": b'{"idempotency_key": "\\ud800", "event_type": "a", "payload": {}}',
    "NUL in the key": b'{"idempotency_key": "a\\u0000b", "event_type": "a", "payload": {}}',
    "no key": b'{"event_type": "a", "payload": {}}',
    "an empty key": b'{"idempotency_key": "", "event_type": "a", "payload": {}}',
    "a key that is a number": b'{"idempotency_key": 7, "event_type": "a", "payload": {}}',
    "a key that is too long": json.dumps(webhook("k" * 501)).encode(),
    "a type that is too long": json.dumps(webhook(event_type="t" * 201)).encode(),
    "a payload that is a list": b'{"idempotency_key": "k", "event_type": "a", "payload": []}',
    "a payload that is null": b'{"idempotency_key": "k", "event_type": "a", "payload": null}',
    "half a character in a name": b'{"idempotency_key": "k", "event_type": "a", "payload": {}, "\\ud800": 1}',
    "a name that is huge": json.dumps(webhook() | {"x" * 100_000: 1}).encode(),
    "a thousand names too many": json.dumps(webhook() | {f"x{n}": 1 for n in range(1000)}).encode(),
    "half a character in a name of the payload": b'{"idempotency_key": "k", "event_type": "a", "payload": {"\\ud800": 1}}',
    "half a character twice": b'{"idempotency_key": "k", "event_type": "a", "payload": {"\\ud800": 1, "\\ud800": 1}}',
    "one name too many": b'{"idempotency_key": "k", "event_type": "a", "payload": {}, "status": "completed"}',
}  # fmt: skip


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # it is refused before the database is asked
@pytest.mark.parametrize("what", BAD)
async def test_what_does_not_fit_is_422_and_leaves_nothing(inbox: Inbox, local: httpx.AsyncClient, what: str):
    """Whatever is wrong with a body, the answer says so in the one form of errors, and there is no row."""
    answer = await local.post("/webhooks", content=BAD[what], headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert error_of(answer)["code"] in ("invalid_json", "invalid_request", "invalid_webhook")
    assert len(answer.content) < 3000
    assert await rows(inbox[0]) == []


async def test_what_is_unusual_is_kept_as_it_is(inbox: Inbox, local: httpx.AsyncClient):
    """The longest key, large numbers, every kind of character and some depth come back unchanged."""
    payload: dict[str, Any] = {"n": 10**300, "f": 1e308, "": "\u0000 \U0001f600", "a b": [None, True, 0.1], "deep": 1}
    for _ in range(90):
        payload = {"in": payload}
    assert (await local.post("/webhooks", json=webhook("k" * 500, "t" * 200, **payload))).status_code == 202
    task = await inbox[1].find("k" * 500)
    assert task is not None
    assert task.payload == payload


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # it is refused before the database is asked
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 202),
        ({"Content-Type": "application/json; charset=utf-8"}, 202),
        ({"Content-Type": 'APPLICATION/JSON;charset="UTF-8"'}, 202),
        ({"Content-Type": "application/cloudevents+json"}, 202),
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "text/json"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
    ],
)
async def test_only_json_is_taken(inbox: Inbox, local: httpx.AsyncClient, headers: dict[str, str], status: int):
    """A content type that a page from elsewhere could send without asking is refused, and so is every other but JSON."""
    answer = await local.post("/webhooks", content=json.dumps(webhook()).encode(), headers=headers)
    assert answer.status_code == status, answer.text
    assert len(await rows(inbox[0])) == (status == 202)


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_over_the_limit_is_413(make: Make, chunked: bool):
    """With or without a length that says so; one that just fits is taken."""
    app, _ = make(webhook_max_bytes=2000)
    body = json.dumps(webhook(a="")).encode()
    fits = json.dumps(webhook(a="x" * (2000 - len(body)))).encode()
    async with client_of(app) as client:
        for content, status in ((fits + b" ", 413), (fits, 202)):

            async def pieces(content: bytes = content) -> Any:
                for start in range(0, len(content), 100):
                    yield content[start : start + 100]

            sent = pieces() if chunked else content
            answer = await client.post("/webhooks", content=sent, headers={"Content-Type": "application/json"})
            assert answer.status_code == status, answer.text
            assert len(await rows(app)) == (status == 202)


async def test_reading_stops_at_the_limit(make: Make):
    """A body without end is cut after its first megabyte: no more is read, however much the sender has."""
    app, _ = make()
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b" " * (1 << 16)

    async with client_of(app) as client:
        answer = await client.post("/webhooks", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert sent <= (1 << 20) + 3 * (1 << 16)


async def test_a_body_that_comes_too_slowly_is_408(make: Make, monkeypatch: pytest.MonkeyPatch):
    """A sender that stops in the middle of its body does not hold its place for ever."""
    monkeypatch.setattr(bodies, "READ_SECONDS_MAX", 0.05)
    app, _ = make()

    async def stuck() -> Any:
        yield b'{"idempotency_key":'
        await asyncio.sleep(30)

    async with client_of(app) as client:
        answer = await client.post("/webhooks", content=stuck(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, error_of(answer)["code"]) == (408, "body_too_slow")


async def test_a_sender_that_hangs_up_leaves_nothing(make: Make, capfd: pytest.CaptureFixture[str]):
    """Half a body is no webhook, and no reason for a traceback."""
    app, _ = make()
    await app.open()
    messages = iter(
        [{"type": "http.request", "body": b'{"idempotency_key":', "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": "/webhooks", "raw_path": b"/webhooks", "query_string": b"",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    await make_web(Service(app, Settings(_env_file=None)))(scope, receive, send)
    assert sent[0]["status"] == 400
    assert "Traceback" not in capfd.readouterr().out
    assert await rows(app) == []


async def test_a_store_that_is_away_is_503(make: Make, monkeypatch: pytest.MonkeyPatch):
    """The sender is told to come back; nothing was stored."""
    app, webhooks = make()
    await app.open()

    async def away(*_: Any) -> Any:
        raise LedgerAwayError("postgresql://a:hunter2@db is away")

    monkeypatch.setattr(webhooks.inbox, "_taking", away)
    async with client_of(app) as client:
        answer = await client.post("/webhooks", json=webhook())
        assert b'webhook_events_total{result="rejected"} 1.0' in (await client.get("/metrics")).content
    assert (answer.status_code, error_of(answer)["code"]) == (503, "store_away")
    assert "Retry-After" in answer.headers
    assert "hunter2" not in answer.text


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
    assert len(commits) <= 3
    assert len(await rows(app)) == 300
