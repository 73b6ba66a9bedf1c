"""The Python client, sync and async, against the real service."""

import inspect
import socket
from collections.abc import Iterator

import httpx
import pytest
import redrive_client as c
from redrive_client import ApiError, AsyncClient, Client, DeliveryFailedError, EventTaken

from .conftest import ITEMS, settings
from .receiver import Receiver, status
from .serving import Serving


@pytest.fixture
def serving(url: str) -> Iterator[Serving]:
    with Serving(url, settings()) as made:
        yield made


each = pytest.mark.parametrize("store", ["sqlite", ITEMS])


def test_both_have_the_same_methods() -> None:
    """What one can do, the other can, with the same parameters."""
    names = {name for name in vars(Client) if not name.startswith("_")}
    assert names == {name for name in vars(AsyncClient) if not name.startswith("_")}
    for name in names:
        sync, asynchronous = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert list(sync.parameters) == list(asynchronous.parameters), name


@each
def test_send_wait_and_read(serving: Serving) -> None:
    """An event without endpoints is in the inbox, is acknowledged, and is then delivered."""
    with Client(serving.base_url, key=serving.key("events:write", "events:read")) as client:
        made = client.send("order.created", {"n": 1}, idempotency_key="k")
        assert client.send("order.created", {"n": 1}, idempotency_key="k").event_id == made.event_id
        good, bad = client.send_many([("a", 1), ("no spaces", 1)])
        assert isinstance(good, EventTaken)
        assert isinstance(bad, ApiError)
        assert [event.event_type for event in client.inbox(page_size=1)] == ["order.created", "a"]
        assert client.status(made.event_id).status == "received"
        with pytest.raises(TimeoutError):
            client.wait_for_delivery(made.event_id, timeout=0.05)
        assert client.acknowledge(made.event_id).status == "delivered"
        assert client.wait_for_delivery(made.event_id).event_id == made.event_id
        client.delete(made.event_id)
        with pytest.raises(ApiError) as refused:
            client.status(made.event_id)
        assert (refused.value.status, refused.value.code) == (404, "NOT_FOUND")


@each
async def test_wait_for_delivery(serving: Serving) -> None:
    """It comes back when the endpoint has taken the event, and raises when it has refused."""
    async with Receiver() as receiver, AsyncClient(serving.base_url, key=serving.key("admin")) as client:
        async with httpx.AsyncClient(base_url=serving.base_url, headers=client._http.headers, timeout=60) as http:
            assert (await http.post("/v1/endpoints", json={"url": receiver.url})).status_code == 201
        made = await client.send("order.created", {"n": 1})
        delivered = await client.wait_for_delivery(made.event_id, timeout=150)
        assert (delivered.status, delivered.retry_attempts) == ("delivered", 0)
        receiver.answer = lambda _: status(404)
        made = await client.send("order.created", {"n": 2})
        with pytest.raises(DeliveryFailedError, match="failed at"):
            await client.wait_for_delivery(made.event_id, timeout=150)
        receiver.answer = lambda _: status(200)
        assert (await client.retry(made.event_id)).status in ("queued", "delivered")  # a worker may be quicker
        assert (await client.wait_for_delivery(made.event_id, timeout=150)).status == "delivered"
        assert [event.payload async for event in client.inbox(status="delivered")] == [{"n": 1}, {"n": 2}]


def test_what_may_pass_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 and broken connections are tried again with the same idempotency key, and a 400 is not."""
    monkeypatch.setattr(c.time, "sleep", lambda _: None)
    keys, answers = (
        [],
        [httpx.Response(503), httpx.ConnectError("away"), httpx.Response(429, headers={"Retry-After": "1"})],
    )
    body = {"event_id": "1", "status": "received", "timestamp": "2026-01-31T09:00:00.000000Z"}

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        said = answers.pop(0) if answers else httpx.Response(201, json=body)
        if isinstance(said, Exception):
            raise said
        return said

    with Client("http://x", key="k", transport=httpx.MockTransport(answer)) as client:
        assert client.send("a", 1).event_id == "1"
        assert (len(keys), len(set(keys))) == (4, 1)
        answers[:] = [httpx.Response(400, json={"error": {"code": "VALIDATION_ERROR", "message": "no"}})]
        with pytest.raises(ApiError, match="VALIDATION_ERROR"):
            client.send("a", 1)
        assert len(keys) == 5
        answers[:] = [httpx.Response(503, text="<html>")] * 4
        with pytest.raises(ApiError, match="UNEXPECTED"):
            client.send("a", 1)


class Answers:
    """A service that answers with one status after another; an exception is an answer that got lost."""

    def __init__(self, *said: int | Exception) -> None:
        self.said = list(said)

    def __call__(self, _request: httpx.Request) -> httpx.Response:
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        queued = {"event_id": "1", "status": "queued", "retry_attempts": 0}
        times = dict.fromkeys(("last_retry_at", "failed_at", "next_retry_at"))
        refused = {"error": {"code": "REFUSED", "message": "no"}}
        return httpx.Response(said, json=queued | times if said == 200 else refused)


LOST: list[int | Exception] = [httpx.ReadError("cut"), 504]


@pytest.mark.parametrize("lost", LOST)
async def test_an_answer_that_got_lost(lost: int | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DELETE whose answer was lost and that then finds nothing has done its work; one that was only put off has not."""
    monkeypatch.setattr(c.time, "sleep", lambda _: None)
    with Client("http://x", key="k", transport=httpx.MockTransport(Answers(lost, 404))) as client:
        client.delete("x")
    for said in ((429, 404), (404,)):
        with (
            Client("http://x", key="k", transport=httpx.MockTransport(Answers(*said))) as client,
            pytest.raises(ApiError, match="404"),
        ):
            client.delete("x")
    answers = Answers(lost, 404)
    async with AsyncClient("http://x", key="k", transport=httpx.MockTransport(answers)) as asynchronous:
        await asynchronous.delete("x")
    assert answers.said == []


@pytest.mark.parametrize("lost", LOST)
async def test_a_retry_is_not_sent_twice(lost: int | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """If its answer is lost it may have been carried out: the caller is told. One that was only put off is sent again."""
    monkeypatch.setattr(c.time, "sleep", lambda _: None)
    answers = Answers(lost, 200)
    with (
        Client("http://x", key="k", transport=httpx.MockTransport(answers)) as client,
        pytest.raises((httpx.ReadError, ApiError), match=r"cut|504"),
    ):
        client.retry("1")
    assert answers.said == [200]
    async with AsyncClient("http://x", key="k", transport=httpx.MockTransport(Answers(429, 200))) as asynchronous:
        assert (await asynchronous.retry("1")).status == "queued"


def test_nobody_there() -> None:
    """A service that is away is an error of the connection, after a few tries."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with (
            Client(f"http://127.0.0.1:{closed.getsockname()[1]}", key="k") as client,
            pytest.raises(httpx.ConnectError),
        ):
            client.status("x")
