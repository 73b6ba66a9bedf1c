"""No way inside: hostile targets, names that change their mind, redirects, and answers without end."""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.http.outgoing import (
    ANSWER_BYTES_MAX,
    Guard,
    Outgoing,
    TargetRefusedError,
    UnresolvedError,
    is_outside,
    resolve,
)
from tests.systems.triggers.conftest import LOOPBACK
from tests.systems.triggers.receiver import Receiver, status

INSIDE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.168.1.1", "192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.7",
    "203.0.113.7", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:7f00:1",
    "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "64:ff9b:1::8.8.8.8", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:808:808::",
    "2001::1", "2001:0:7f00:1::", "2001:0:53aa:64c:0:fbff:80ff:fffe", "2001:db8::1", "2001:10::1", "2001:20::1",
    "3fff::1", "100::1", "fc00::1", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1", "ff0e::1", "5f00::1", "4000::1",
    "fe80::5efe:127.0.0.1",
]  # fmt: skip
OUTSIDE = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700::1111",
    "2a00:1450::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
]
SPELLINGS = [
    "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "0177.1", "017700000001", "0", "00",
    "127.0.0.1.", "127.000.000.001", "127.0.0.0x1", "0x7f.1", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376",
    "169.254.43518", "10.1", "192.168.257", "4294967295", "0x0", "1", "%31%32%37.0.0.1", "127。0。0。1",
    "１２７.0.0.1", "①②⑦.0.0.1", "localhost", "LOCALHOST", "localhost.", "ip6-localhost",
]  # fmt: skip
FORMS = [
    "ftp://8.8.8.8/", "file:///etc/passwd", "gopher://8.8.8.8/", "javascript:alert(1)", "//8.8.8.8/", "8.8.8.8", "http://",
    "http:///x", "https://user:pw@8.8.8.8/", "http://8.8.8.8@127.0.0.1/", "http://127.0.0.1\\@8.8.8.8/",
    "http://8.8.8.8#@127.0.0.1/", "http://8.8.8.8/#x", "http://8.8.8.8:0/", "http://8.8.8.8:99999/", "http://8.8.8.8:x/",
    "http:// 127.0.0.1/", "http://127.0.0.1\t/", "http://8.8.8.8/\r\nHost: x", "http://[::1", "http://[::1%25lo]/",
    "http://[fe80::1%25eth0]/", "http://" + "a" * 300 + ".example/", "http://8.8.8.8/" + "a" * 2048, "", "http://..",
    "http://.8.8.8.8/", "unix:///var/run/docker.sock", "http+unix://%2fvar%2frun%2fdocker.sock/", "data:,x",
]  # fmt: skip
HOSTILE = [
    *(f"http://[{address}]:{{port}}/" if ":" in address else f"http://{address}:{{port}}/" for address in INSIDE),
    *(f"http://{spelled}:{{port}}/" for spelled in SPELLINGS),
    *FORMS,
]


def test_there_are_enough() -> None:
    """A hundred hostile targets at least, each of them once."""
    assert len(set(HOSTILE)) == len(HOSTILE) >= 100


@pytest.mark.parametrize("address", INSIDE)
def test_inside_addresses(address: str) -> None:
    """None of these is global unicast, whatever it carries inside."""
    assert not is_outside(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", OUTSIDE)
def test_outside_addresses(address: str) -> None:
    """These are."""
    assert is_outside(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_in_another_is_as_good_as_itself(address: ipaddress.IPv4Address) -> None:
    """Mapped and NAT64 forms of an address are inside exactly if it is."""
    for form in (f"::ffff:{address}", f"64:ff9b::{address}"):
        assert is_outside(ipaddress.ip_address(form)) == is_outside(address)


@given(st.ip_addresses())
def test_every_address_has_an_answer(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """And what is private, loopback, link-local or multicast by Python's own tables is never outside."""
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        mapped = getattr(address, "ipv4_mapped", None)
        assert not is_outside(mapped or address)


async def test_no_connection_to_a_hostile_target(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused when it is named and when it is sent to; no socket is ever connected."""
    connected: list[object] = []
    loop = asyncio.get_running_loop()

    async def connect(*target: object, **named: object) -> object:
        connected.append((target, named))
        raise OSError("no connection in this test")

    outgoing = Outgoing(Guard(), user_agent="test")
    try:
        monkeypatch.setattr(loop, "create_connection", connect)
        monkeypatch.setattr(loop, "sock_connect", connect)
        for target in HOSTILE:
            url = target.replace("{port}", str(receiver.port))
            with pytest.raises((TargetRefusedError, UnresolvedError)):
                await outgoing.guard.check(url)
            with pytest.raises((TargetRefusedError, UnresolvedError)):
                await outgoing.post(url, b"{}", {})
    finally:
        monkeypatch.undo()
        await outgoing.close()
    assert connected == []
    assert receiver.connections == 0


class Resolver:
    """Names with answers that change: each look-up takes the next."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_a_name_that_resolves_differently_the_second_time(receiver: Receiver) -> None:
    """Public when it is created, inside when it is delivered to: refused, without a connection."""
    resolver = Resolver(["93.184.216.34"], ["127.0.0.1"])
    outgoing = Outgoing(Guard(resolver=resolver), user_agent="test")
    url = f"http://rebind.example:{receiver.port}/"
    await outgoing.guard.check(url)
    with pytest.raises(TargetRefusedError):
        await outgoing.post(url, b"{}", {})
    await outgoing.close()
    assert (resolver.asked, receiver.connections) == (2, 0)


async def test_one_inside_address_among_others_is_enough(receiver: Receiver) -> None:
    """A name with several addresses is used only if all of them are outside."""
    for answers in (["93.184.216.34", "127.0.0.1"], ["::1", "93.184.216.34"], [], ["no address"]):
        outgoing = Outgoing(Guard(resolver=Resolver(answers)), user_agent="test")
        with pytest.raises((TargetRefusedError, UnresolvedError)):
            await outgoing.post(f"http://mixed.example:{receiver.port}/", b"{}", {})
        await outgoing.close()
    assert receiver.connections == 0


async def test_the_checked_address_is_the_connected_one(receiver: Receiver) -> None:
    """A connection asks for the name once; a second answer is never looked at. Host stays the name."""
    resolver = Resolver(["127.0.0.1"], ["10.255.255.1"])
    outgoing = Outgoing(Guard([LOOPBACK], resolver=resolver), user_agent="test")
    url = f"http://shop.example:{receiver.port}/hook"
    for _ in range(2):  # the second goes over the same connection
        assert (await outgoing.post(url, b"{}", {})).status == 200
    await outgoing.close()
    assert (resolver.asked, receiver.connections) == (1, 1)
    assert receiver.received[0].headers["host"] == f"shop.example:{receiver.port}"


async def test_redirects_are_not_followed(receiver: Receiver) -> None:
    """A redirect is an answer like any other."""
    receiver.answer = lambda _: status(302, f"Location: http://127.0.0.1:{receiver.port}/inside")
    outgoing = Outgoing(Guard([LOOPBACK]), user_agent="test")
    assert (await outgoing.post(receiver.url, b"{}", {})).status == 302
    await outgoing.close()
    assert [got.path for got in receiver.received] == ["/hook"]


async def test_proxies_and_cookies_are_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor another user's endpoint has a say in what is sent."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    receiver.answer = lambda _: status(200, "Set-Cookie: a=b; Path=/")
    outgoing = Outgoing(Guard([LOOPBACK]), user_agent="test")
    for _ in range(2):
        assert (await outgoing.post(receiver.url, b"{}", {})).status == 200
    await outgoing.close()
    assert all("cookie" not in got.headers for got in receiver.received)


async def test_answers_are_read_to_a_limit(receiver: Receiver) -> None:
    """An answer without end is cut, and its connection is not used again."""
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"x" * (ANSWER_BYTES_MAX * 3)
    receiver.answer = lambda _: endless
    outgoing = Outgoing(Guard([LOOPBACK]), user_agent="test")
    for _ in range(2):
        answer = await outgoing.post(receiver.url, b"{}", {})
        assert (answer.status, len(answer.body)) == (200, ANSWER_BYTES_MAX)
    await outgoing.close()
    assert receiver.connections == 2


async def test_the_whole_exchange_has_one_limit() -> None:
    """An answer that drips byte by byte ends with the limit, however fast each byte comes."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    outgoing = Outgoing(Guard([LOOPBACK]), user_agent="test", time_limit=timedelta(seconds=0.3))
    with pytest.raises(TimeoutError):
        await outgoing.post(f"http://127.0.0.1:{port}/", b"{}", {})
    await outgoing.close()
    server.close()
    await asyncio.sleep(0.05)
    await server.wait_closed()


async def test_slow_names_hold_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """While many names are being looked up, the threads that all share are free."""
    answered = threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        answered.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    looks = [asyncio.create_task(resolve(f"slow-{number}.example", 80)) for number in range(50)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: "free") == "free"
        assert not any(look.done() for look in looks)
    finally:
        answered.set()
        await asyncio.gather(*looks)


def test_the_systems_resolver_reads_odd_spellings() -> None:
    """Why the spelling is checked too: what getaddrinfo takes for an address of this machine."""
    assert socket.getaddrinfo("127.1", 80)[0][4][0] == "127.0.0.1"
