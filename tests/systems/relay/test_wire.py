"""What is taken off the wire before the driver sees it, byte by byte and without a broker."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aio_pika
import pytest
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import AMQPError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel
from pamqp.frame import marshal
from pamqp.header import ContentHeader
from yarl import URL

from redrive.systems.relay import wire as wires
from redrive.systems.relay.wire import ConfirmingChannel, Incoming, Published, UnknownReturnError, Wire

WATCHED, OTHER = 3, 4
RAW: Any = SimpleNamespace(number=WATCHED, connection=SimpleNamespace(connection_tune=SimpleNamespace(frame_max=64)))


def frames(*given: Any, channel: int = WATCHED) -> bytes:
    return b"".join(marshal(one, channel) for one in given)


def delivered(tag: int, *parts: bytes, **properties: Any) -> bytes:
    """A delivery whose body comes in these parts."""
    header = ContentHeader(body_size=sum(map(len, parts)), properties=Basic.Properties(**properties))
    deliver = Basic.Deliver(
        consumer_tag="ctag1.7", delivery_tag=tag, redelivered=tag == 2, exchange="shop", routing_key="orders.ü"
    )
    return frames(deliver, header, *map(ContentBody, parts))


def returned(message_id: str, body: bytes) -> bytes:
    header = ContentHeader(body_size=len(body), properties=Basic.Properties(message_id=message_id))
    back = Basic.Return(reply_code=312, reply_text="NO_ROUTE", exchange="", routing_key="q")
    return frames(back, header, ContentBody(body))


class Heard:
    """A reader, and what the driver gets to see of what comes."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.reader = wires._Reader(self.wire.watchers, asyncio.get_running_loop())

    def of(self, data: bytes, *, at_once: int = 1 << 20) -> bytes:
        for start in range(0, len(data), at_once):
            self.reader.feed_data(data[start : start + at_once])
        seen = bytes(self.reader._buffer)  # type: ignore[attr-defined]
        self.reader._buffer.clear()  # type: ignore[attr-defined]
        return seen


@pytest.mark.parametrize("at_once", [1, 7, 50, 10_000])
async def test_deliveries_are_taken_and_the_rest_is_left(at_once: int) -> None:
    """However the bytes come, each delivery is put once and whole, and the driver sees every other frame in its order."""
    heard, put = Heard(), list[DeliveredMessage]()
    heard.wire.watchers[WATCHED] = Incoming(RAW, put.append)
    others = frames(Basic.Deliver("c", 1, False, "", "q"), ContentHeader(body_size=1), ContentBody(b"x"), channel=OTHER)
    close = frames(Channel.Close(reply_code=406, reply_text="no", class_id=0, method_id=0))
    data = (
        delivered(1, b"one", headers={"n": 1}) + others + delivered(2, b"tw", b"o") + delivered(3) + close + wires.ALIVE
    )
    assert heard.of(data, at_once=at_once) == others + close + wires.ALIVE
    assert [(one.delivery_tag, one.body) for one in put] == [(1, b"one"), (2, b"two"), (3, b"")]
    assert put[0].header.properties.headers == {"n": 1}
    assert [(one.exchange, one.routing_key) for one in put] == [("shop", "orders.ü")] * 3
    assert [one.delivery.redelivered for one in put] == [False, True, False]  # type: ignore[union-attr]


async def test_what_is_not_our_protocol_is_left_to_the_driver() -> None:
    """A broker of another version, and a frame without its end, reach the driver as they came: it says what is wrong."""
    for strange in (b"AMQP\x00\x00\x09\x01", delivered(1, b"x")[:-1] + b"\x00" + wires.ALIVE):
        heard, put = Heard(), list[DeliveredMessage]()
        heard.wire.watchers[WATCHED] = Incoming(RAW, put.append)
        seen = heard.of(strange)
        assert strange.endswith(seen)
        assert seen
        assert not put


async def test_half_a_frame_at_the_end_is_told() -> None:
    """The driver hears of a connection that ended in the midst of a frame."""
    heard = Heard()
    assert heard.of(b"\x01\x00") == b""
    heard.reader.feed_eof()
    assert await heard.reader.read() == b"\x01\x00"


async def test_the_driver_knows_that_the_connection_lives() -> None:
    """It sees nothing of a thousand deliveries, so it is told now and then: else it would take the connection for dead."""
    heard = Heard()
    heard.wire.watchers[WATCHED] = Incoming(RAW, lambda _: None)
    now = [1000.0]
    heard.reader._time = lambda: now[0]
    heard.reader._alive_at = now[0]
    seen = []
    for _ in range(30):
        now[0] += 0.1
        seen.append(heard.of(delivered(1, b"x")))
    assert set(seen) == {b"", wires.ALIVE}
    assert 2 <= seen.count(wires.ALIVE) <= 3


class Sending:
    """A channel with confirms, and what went out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, patience_seconds: float = 60) -> None:
        self.heard = Heard()
        self.sent = list[bytes]()
        monkeypatch.setattr(self.heard.wire, "send", self.sent.append)
        self.out = ConfirmingChannel(self.heard.wire, RAW, patience_seconds)
        self.heard.wire.watchers[WATCHED] = self.out

    def send(self, body: bytes = b"x", **properties: Any) -> "asyncio.Future[Published | None]":
        return self.out.send(Basic.Properties(**properties), body, "q")


async def test_each_confirm_finds_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time or many in one word, in any order, taken or refused."""
    sending = Sending(monkeypatch)
    answers = [sending.send() for _ in range(6)]
    assert sending.heard.of(frames(Basic.Ack(2), Basic.Nack(6), Basic.Ack(4, multiple=True), Basic.Nack(5))) == b""
    confirmed, refused = Published.CONFIRMED, Published.REFUSED
    assert [await one for one in answers] == [confirmed, confirmed, confirmed, confirmed, refused, refused]
    assert sending.heard.of(frames(Basic.Ack(3))) == b"", "a confirm for nobody is no harm"


async def test_what_comes_back_is_unroutable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that came back is unroutable when its confirm is there; those around it are not."""
    sending = Sending(monkeypatch)
    answers = [sending.send(), sending.send(b"longer", message_id="m-2"), sending.send()]
    sending.heard.of(returned("m-2", b"longer") + frames(Basic.Ack(3, multiple=True)))
    assert [await one for one in answers] == [Published.CONFIRMED, Published.UNROUTABLE, Published.CONFIRMED]


async def test_a_return_that_nobody_knows_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was would otherwise count as confirmed by the word that follows."""
    sending = Sending(monkeypatch)
    sending.send(message_id="m-1")
    with pytest.raises(UnknownReturnError):
        sending.heard.of(returned("m-2", b"x"))


async def test_what_cannot_be_sent_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no number: the next message's confirm would else be taken for another's."""
    sending = Sending(monkeypatch)
    with pytest.raises((TypeError, ValueError)):
        sending.send(headers={"what": object()})
    answer = sending.send()
    sending.heard.of(frames(Basic.Ack(1)))
    assert await answer is Published.CONFIRMED


async def test_a_large_body_goes_in_frames_that_the_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are needed, each within the limit that was agreed, and all of the body in them."""
    sending, body = Sending(monkeypatch), bytes(range(256))
    sending.send(body, message_id="m", delivery_mode=2)
    [sent] = sending.sent
    heard, put = Heard(), list[bytes]()
    heard.wire.watchers[WATCHED] = SimpleNamespace(take=lambda kind, frame: put.append(frame) or kind == wires.BODY)  # type: ignore[func-returns-value]
    kept = heard.of(sent)
    properties = Basic.Properties(message_id="m", delivery_mode=2)
    header = ContentHeader(body_size=256, properties=properties)
    assert kept == frames(Basic.Publish(routing_key="q", mandatory=True), header)
    assert b"".join(put[2:]) == body
    assert max(map(len, put[2:])) + 8 <= 64


async def test_a_confirm_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits as long as it may and no longer, and its confirm finds nobody after that."""
    sending = Sending(monkeypatch, patience_seconds=0.01)
    first, second = sending.send(), sending.send()
    sending.heard.of(frames(Basic.Ack(1)))
    assert (await first, await second) == (Published.CONFIRMED, Published.UNCONFIRMED)
    third = sending.send()
    sending.heard.of(frames(Basic.Ack(3, multiple=True)))
    assert await third is Published.CONFIRMED


async def test_a_broker_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is sent to it, nobody waits for ever, and it goes on when it reads again."""
    sending, full, reads = Sending(monkeypatch, patience_seconds=0.01), [True], asyncio.Event()
    monkeypatch.setattr(Wire, "is_full", property(lambda _: full[0]))
    monkeypatch.setattr(sending.heard.wire, "drained", reads.wait)
    assert await sending.out.publish(aio_pika.Message(b"x"), "q") is Published.REFUSED
    assert not sending.sent
    sending.out._patience_seconds = 60
    waiting = asyncio.ensure_future(sending.out.publish(aio_pika.Message(b"x"), "q"))
    await asyncio.sleep(0)
    assert not sending.sent
    full[0] = False
    reads.set()
    while not sending.sent:
        await asyncio.sleep(0)
    sending.heard.of(frames(Basic.Ack(1)))
    assert await waiting is Published.CONFIRMED


async def test_a_session_that_ends_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody learns any more what became of what was under way."""
    sending = Sending(monkeypatch)
    answer = sending.send()
    waiting = asyncio.ensure_future(sending.out.publish(aio_pika.Message(b"x"), "q"))
    await asyncio.sleep(0)
    sending.out.lose()
    assert (await answer, await waiting) == (None, None)


async def test_one_write_for_a_turn_of_the_loop() -> None:
    """What is sent in one turn goes out together; on a connection that closes it goes nowhere."""
    wire, written, closing = Wire(), list[bytes](), [False]
    wire._writer = SimpleNamespace(write=written.append, is_closing=lambda: closing[0])  # type: ignore[assignment]
    wire.send(b"a")
    wire.send(b"b")
    await asyncio.sleep(0)
    wire.send(b"c")
    await asyncio.sleep(0)
    closing[0] = True
    wire.send(b"d")
    await asyncio.sleep(0)
    assert written == [b"ab", b"c"]


def certified(folder: Path) -> tuple[str, str]:
    """A certificate for localhost that certifies itself, and its key."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(pem)
    return str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls(tmp_path: Path, *, trusted: bool) -> None:
    """With `amqps://` the driver speaks to the broker through TLS, and to nobody whose certificate it does not trust."""
    cert, key = certified(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    greeted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.set_result(await reader.readexactly(8))
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    connection = Wire().connection(URL(f"amqps://localhost:{port}/" + (f"?cafile={cert}" if trusted else "")))
    with pytest.raises(AMQPError if trusted else (AMQPError, ssl.SSLError)):
        await connection.connect(timeout=10)
    assert greeted.done() is trusted
    if trusted:
        assert await greeted == b"AMQP\x00\x00\x09\x01"
    server.close()
