"""Requests to addresses that strangers gave us, and no way inside.

A name is resolved once for each connection, every address that it has is checked, and the connection is made to the very
address that was checked: a name that resolves differently the second time leads nowhere. The `Host` header and the
name in the TLS handshake stay those of the URL. Redirects are not followed, proxies of the environment are not used, the
whole exchange has one time limit, and of the answer only so much is read.

Allowed is global unicast only. Addresses that carry another one inside (IPv4-mapped, NAT64) are as good as that one;
6to4, Teredo and the like, which nobody needs, are refused.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import httpcore
import httpx

from redrive.errors import RedriveError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to its addresses, as text."""

URL_CHARS_MAX = 2048
ANSWER_BYTES_MAX = 64 * 1024
ADDRESSES_MAX = 64
TIME_LIMIT = timedelta(seconds=15)
RESOLVE_LIMIT = timedelta(seconds=5)
POOLS = 64
"""A pool looks at all of its connections for each of them at every request: a hundred in one pool took 2 ms a request."""
CONNECTIONS_PER_POOL = 156
"""Ten thousand in all."""
KEPT_PER_POOL = 4
RESOLVING_MAX = 64

_resolving = ThreadPoolExecutor(RESOLVING_MAX, thread_name_prefix="resolve")
"""Names that take long to resolve hold these threads, and not those that everything else in the process shares."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
_REFUSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.88.99.0/24",  # relays of 6to4
        "2001::/23",  # Teredo, benchmarking, ORCHID and other special uses
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_QUAD = re.compile(r"(?:0|[1-9]\d{0,2})(?:\.(?:0|[1-9]\d{0,2})){3}")
_NUMBER_LIKE = re.compile(r"(?:0x[0-9a-f]*|\d+)", re.IGNORECASE)


class TargetRefusedError(RedriveError):
    """The target cannot be used; the message says why and is meant for whoever named it."""


class UnresolvedError(RedriveError):
    """The name of the target has no address now."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the status, the headers, and how much of the body was read."""

    status: int
    headers: httpx.Headers
    body: bytes


def is_outside(address: Address) -> bool:
    """Whether the address is global unicast, also where it carries another one inside."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        inner = _inner(address)
        if inner is not None:
            return is_outside(inner)
        if address not in _UNICAST:
            return False
    if any(address.version == network.version and address in network for network in _REFUSED):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a mapped or NAT64 address stands for."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, by the system's resolver."""
    loop = asyncio.get_running_loop()
    try:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        found = await loop.run_in_executor(_resolving, look_up)
    except (OSError, UnicodeError) as error:
        raise UnresolvedError(f"{host!r} cannot be resolved") from error
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class Guard:
    """Which targets are allowed: those outside, and those in the networks that the operator allows."""

    def __init__(self, allow: Iterable[Network] = (), *, resolver: Resolver = resolve) -> None:
        self._allow = tuple(allow)
        self._resolver = resolver

    def permits(self, address: Address) -> bool:
        """Whether a connection to this address may be made."""
        inner = _inner(address) if isinstance(address, ipaddress.IPv6Address) else None
        plain = inner or address
        if any(plain.version == network.version and plain in network for network in self._allow):
            return True
        return is_outside(address)

    def check_url(self, url: str) -> httpx.URL:
        """The URL as it will be used, or a `TargetRefusedError`; its name is not resolved here."""
        if len(url) > URL_CHARS_MAX:
            raise TargetRefusedError(f"the URL is longer than {URL_CHARS_MAX} characters")
        if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in url) or "\\" in url:
            raise TargetRefusedError("the URL holds a space, a backslash or a control character")
        try:
            parsed = httpx.URL(url)
            port = parsed.port
        except (httpx.InvalidURL, UnicodeError, ValueError):
            raise TargetRefusedError("this is not a URL: write https://host/path") from None
        if parsed.scheme not in ("http", "https"):
            raise TargetRefusedError("the URL must begin with https:// or http://")
        if parsed.userinfo:
            raise TargetRefusedError("the URL must not hold a user or a password: deliveries are signed instead")
        if "#" in url:
            raise TargetRefusedError("the URL must not hold a fragment: it would never be sent")
        if port is not None and not 1 <= port <= 65535:
            raise TargetRefusedError("the port must lie between 1 and 65535")
        host = parsed.raw_host.decode("ascii")
        if not host or len(host) > 253 or host.startswith(".") or ".." in host:
            raise TargetRefusedError("the URL has no host")
        last = host.rstrip(".").rpartition(".")[2]
        if _NUMBER_LIKE.fullmatch(last) and not _QUAD.fullmatch(host):
            # Decimal, octal, hexadecimal and short forms: some resolvers read them, nobody means them.
            raise TargetRefusedError("write an IPv4 address as four decimal numbers, such as 203.0.113.7")
        return parsed

    async def check(self, url: str) -> httpx.URL:
        """The same, and every address that its name has now must be allowed."""
        parsed = self.check_url(url)
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        try:
            async with asyncio.timeout(RESOLVE_LIMIT.total_seconds()):
                await self.addresses(parsed.raw_host.decode("ascii"), port)
        except TimeoutError:
            raise UnresolvedError(f"{parsed.host!r} could not be resolved in time") from None
        return parsed

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, all of them allowed; else `TargetRefusedError`."""
        host = host.strip("[]")
        try:
            found: Sequence[str] = [str(ipaddress.ip_address(host))]
        except ValueError:
            found = (await self._resolver(host, port))[:ADDRESSES_MAX]
        if not found:
            raise UnresolvedError(f"{host!r} has no address")
        for text in found:
            try:
                permitted = self.permits(ipaddress.ip_address(text))
            except ValueError:
                permitted = False
            if not permitted:
                # Without the address: whoever named the target must not map our network by our answers.
                raise TargetRefusedError(f"{host!r} is not a public address, so nothing is sent there")
        return list(found)


class _PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the address that was checked."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failed: Exception | None = None
        addresses = await self._guard.addresses(host, port)
        each = None if timeout is None else timeout / len(addresses)
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, each, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        assert failed is not None
        raise failed

    async def connect_unix_socket(self, *_args: Any, **_kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise TargetRefusedError("nothing is sent to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _PinnedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport over a pool that connects through the guard."""

    def __init__(self, guard: Guard, context: ssl.SSLContext) -> None:
        super().__init__(trust_env=False, verify=context)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=CONNECTIONS_PER_POOL,
            max_keepalive_connections=KEPT_PER_POOL,
            keepalive_expiry=15,
            network_backend=_PinnedBackend(guard),
        )


class Outgoing:
    """A client for such requests. One for the whole process: it keeps connections alive, and opens anew after `close`."""

    def __init__(
        self,
        guard: Guard,
        *,
        user_agent: str,
        time_limit: timedelta = TIME_LIMIT,
    ) -> None:
        self.guard = guard
        self._time_limit = time_limit
        self._headers = {"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": "identity"}
        self._pools: list[_Pool] = []

    def _free(self) -> "_Pool":
        """The pool with the least to do."""
        # Not before the first request: reading the certificates takes 20 ms, and not every process sends.
        if not self._pools:
            context = httpx.create_ssl_context(trust_env=False)
            self._pools = [_Pool(_PinnedTransport(self.guard, context)) for _ in range(POOLS)]
        return min(self._pools, key=_Pool.load)

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, time_limit: timedelta | None = None
    ) -> Answer:
        """Send a body and read the answer. Raises `TimeoutError` when the whole takes too long."""
        checked = self.guard.check_url(url)
        limit = min(time_limit or self._time_limit, self._time_limit)
        timeouts = httpx.Timeout(limit.total_seconds()).as_dict()
        request = httpx.Request(
            "POST", checked, content=body, headers={**self._headers, **headers}, extensions={"timeout": timeouts}
        )
        pool = self._free()
        pool.under_way += 1
        try:
            async with asyncio.timeout(limit.total_seconds()):
                return await _exchange(pool.transport, request)
        finally:
            pool.under_way -= 1

    async def close(self) -> None:
        """Let go of all connections."""
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.transport.aclose()


@dataclass(slots=True)
class _Pool:
    transport: httpx.AsyncBaseTransport
    under_way: int = 0

    def load(self) -> int:
        return self.under_way


async def _exchange(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> Answer:
    """One request and its answer. Below httpx's client, which would add redirects, cookies and the environment."""
    response = await transport.handle_async_request(request)
    try:
        read = bytearray()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        async for part in response.stream:  # as it came: a small answer may unpack to a huge one
            read += part
            if len(read) >= ANSWER_BYTES_MAX:
                break
        return Answer(response.status_code, response.headers, bytes(read[:ANSWER_BYTES_MAX]))
    finally:
        await response.aclose()  # which closes the connection, too, unless all was read
