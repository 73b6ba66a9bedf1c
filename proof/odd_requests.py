"""Requests that nobody meant, to a real service, while somebody else asks for /health: by its own description, and byte by byte.

Ids that the service answers with are asked for again, so that what was made is also looked at, changed and removed.
"""

import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from proof.ground import MEMORY, STORES, ground_on
from proof.scenario import Found, chance, scenario, sized
from proof.service import Served, serving, watching
from redrive.settings import SYSTEMS

INPUTS, SHORT = 1_000_000, 2_000
EXAMPLES = 30
"""Of each operation in each phase of schemathesis."""
RAW_SHARE = 0.2
"""How many of them are bytes that need not even be a request."""
SENDERS = 4
GROWTH_MIB_MAX = 64
HEALTH_SECONDS_MAX = 5.0
ADMIN = "rdk_" + "proof" * 8
SETTINGS = {
    "REDRIVE_ADMIN_KEY": ADMIN, "REDRIVE_SECRET_KEY": "A" * 43 + "=",
    "RATE_LIMIT_PER_MINUTE": "10000000", "DELIVERIES_PER_MINUTE": "10000000", "QUEUE_MAXSIZE": "100000",
}  # fmt: skip
"""What is refused because there is too much of it is not looked at."""
PATIENCE_SECONDS = 30.0
TEXTS = (
    "", "a", "a\0b", "%", "-1", "1e400", "NaN", "9" * 400, str(2**63), "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
    "10000-01-01T00:00:00Z", "1" * 5000, "é\u202e", "[]", "999999999999d", "\ud800", "../../etc/passwd", "'; DROP TABLE x; --",
    "<script>", "00000000-0000-7000-8000-000000000000", "\U0001f4a5", "a" * 256, "*", "5/s", "10s", "2026-11-18T00:00:00Z", "None",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 100, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308, float("nan"), float("inf"))
URLS = (
    "http://127.0.0.1:9/",
    "https://nowhere.invalid/hook",
    "http://[::1]/",
    "ftp://127.0.0.1/",
    "http://127.0.0.1:99999/",
)
"""Nobody outside hears of a proof."""


class Fuzzer:
    """Requests by the description of the service, at times right, mostly with something odd in them."""

    def __init__(self, described: dict[str, Any], rng: random.Random) -> None:
        self._schemas = described.get("components", {}).get("schemas", {})
        self._operations = [
            (method.upper(), path, operation)
            for path, operations in sorted(described["paths"].items())
            for method, operation in sorted(operations.items())
            if isinstance(operation, dict)
        ]
        self._rng = rng
        self.known: deque[str] = deque(maxlen=500)
        """Ids that the service has told."""

    def request(self) -> bytes:
        """The bytes of one request."""
        rng = self._rng
        method, path, operation = rng.choice(self._operations)
        query: list[tuple[str, str]] = []
        for parameter in operation.get("parameters", ()):
            schema, name = parameter.get("schema", {}), parameter["name"]
            if parameter["in"] == "path":
                given = rng.choice(self.known) if self.known and rng.random() < 0.6 else self._text()
                path = re.sub(rf"{{{re.escape(name)}(:path)?}}", quote(_plain(given), safe="") or "%20", path)
            elif parameter["in"] == "query" and rng.random() < 0.4:
                value = self._value(schema) if rng.random() < 0.6 else self._text()
                query.append((name, value if isinstance(value, str) else json.dumps(value)))
        body, headers = b"", [f"X-API-Key: {ADMIN}", "Host: 127.0.0.1"]
        content = operation.get("requestBody", {}).get("content", {})
        if content or rng.random() < 0.02:
            kind = (
                rng.choice([*content])
                if content and rng.random() < 0.95
                else rng.choice(["text/plain", "multipart/form-data", ""])
            )
            body = self._body(content.get(kind, {}).get("schema", {}))
            headers += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        if rng.random() < 0.05:
            headers.append(
                f"{rng.choice(['If-None-Match', 'Accept', 'Accept-Language', 'Range', 'Origin', 'traceparent', 'Idempotency-Key'])}: {_header(self._text())}"
            )
        if rng.random() < 0.03:
            headers[0] = f"X-API-Key: {_header(self._text())}"
        told = urlencode([(name, _plain(value)) for name, value in query])
        line = f"{method} {path}{'?' + told if told else ''} HTTP/1.1"
        return "\r\n".join([line, *headers, "", ""]).encode("latin-1", "replace") + body

    def learn(self, answer: bytes) -> None:
        """Remember the ids of an answer."""
        if len(self.known) < 500 or self._rng.random() < 0.01:
            self.known.extend(
                found.decode()
                for found in re.findall(rb'"(?:id|key|event_id|name)": ?"?([\w:.-]{1,64})', answer[:5000])[:3]
            )

    def _body(self, schema: dict[str, Any]) -> bytes:
        rng = self._rng
        odd = rng.random()
        if odd < 0.03:
            return rng.choice(
                [b"", b"{", b"[" * 5_000, b"\xff\xfe", b'{"a": 1' + b"0" * 5_000 + b"}", b"null", b"x" * 70_000]
            )
        value = self._value(schema) if odd < 0.9 else self._anything()
        raw = json.dumps(value).encode()
        if odd > 0.97 and raw:
            at = rng.randrange(len(raw))
            raw = raw[:at] + rng.randbytes(rng.randrange(3)) + raw[at + 1 :]
        return raw

    def _value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """What the schema asks for; one value in six is something else."""
        rng = self._rng
        while "$ref" in schema:
            schema = self._schemas.get(schema["$ref"].rsplit("/", 1)[1], {})
        if depth > 6 or rng.random() < 0.15:
            return self._anything()
        for part in ("anyOf", "oneOf", "allOf"):
            if schema.get(part):
                return self._value(rng.choice(schema[part]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return rng.choice(schema["enum"])
        if schema.get("examples") and rng.random() < 0.7:
            return rng.choice(schema["examples"])
        match schema.get("type"):
            case "object":
                needed = {*schema.get("required", ())}
                fields = schema.get("properties", {})
                chosen = {
                    name: self._value(one, depth + 1)
                    for name, one in fields.items()
                    if name in needed or rng.random() < 0.4
                }
                return chosen or ({} if fields else {"a": self._anything()})
            case "array":
                return [self._value(schema.get("items", {}), depth + 1) for _ in range(rng.choice([0, 1, 2, 2, 30]))]
            case "integer":
                return rng.choice([schema.get("minimum", 0), schema.get("maximum", 10), 1, 7])
            case "number":
                return rng.choice([0, 1, 0.5])
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
            case "string":
                if "url" in json.dumps(schema).lower():
                    return rng.choice(URLS)
                return (
                    rng.choice(self.known)
                    if self.known and rng.random() < 0.4
                    else rng.choice(["a", "a.b", "2026-11-18T00:00:00Z", "10s"])
                )
        return self._anything()

    def _anything(self) -> Any:
        rng = self._rng
        sort = rng.randrange(7)
        if sort < 2:
            return self._text()
        if sort == 2:
            return rng.choice(NUMBERS)
        if sort == 3:
            return rng.choice([None, True, False])
        if sort == 4:
            return [self._text()] * rng.choice([0, 1, 3])
        return {self._text(): self._text()} if sort == 5 else rng.choice(URLS)

    def _text(self) -> str:
        return self._rng.choice(TEXTS)


def _plain(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _header(text: str) -> str:
    return re.sub(r"[\r\n\0]", "", _plain(text))[:2000]


HEADS = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 0x5", b"Content-Length: 5, 5",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: \x0bchunked", b"Expect: 100-continue",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13", b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
    b"Connection: close", b"Connection: keep-alive, \xff", b"Host: a\r\nHost: b", b"X: " + b"a" * 9_000, b"X" * 9_000 + b": a", b" folded: a",
    b"NoColon", b": empty", b"X\0Y: a", b"X: \0", b"Cookie: " + b"a=b; " * 500, b"X-Forwarded-For: " + b"1.2.3.4," * 200, b"Range: bytes=0-,-1,5-2",
    b"Content-Type: application/json; charset=\xff", b"Accept-Encoding: " + b"gzip," * 300, b"Authorization: Basic \xff", b"If-None-Match: W/\"",
)  # fmt: skip
METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"get",
    b"G\0T",
    b"",
    b"X" * 300,
)
TARGETS = (
    b"/", b"*", b"//", b"/health", b"/webhooks", b"/api/tasks?limit=1", b"/v1/events", b"http://a/health", b"/%00", b"/%ff%fe", b"/../../etc/passwd",
    b"/static/..%2f..%2fapp.py", b"/static/%2e%2e/", b"/" + b"a" * 9_000, b"/?" + b"a=b&" * 2_000, b"/\xff", b"/a b", b"", b"/#", b"?", b"/tasks/redrive/%0d%0aX: y",
)  # fmt: skip
BODIES = (
    b"",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"-1\r\n",
    b"5;x=y\r\nhello\r\n0\r\nT: a\r\n\r\n",
    b"zz\r\n",
    b"hello",
    b"x" * 20_000,
)


def raw_bytes(rng: random.Random) -> bytes:
    """Bytes that are nearly a request."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(1, 2_000))
    version = rng.choice(
        [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"", b"http/1.1"]
    )
    end = b"\r\n" if rng.random() < 0.95 else rng.choice([b"\n", b"\r", b"\r\r\n"])
    heads = rng.sample(HEADS, rng.randrange(4))
    if rng.random() < 0.7:
        heads.insert(0, b"Host: 127.0.0.1")
    said = end.join([b" ".join([rng.choice(METHODS), rng.choice(TARGETS), version]), *heads, b"", b""]) + rng.choice(
        BODIES
    )
    if rng.random() < 0.3:
        at = rng.randrange(len(said) + 1)
        said = said[:at] + rng.randbytes(rng.randrange(4)) + said[at + rng.randrange(3) :]
    return said if rng.random() < 0.9 else said[: rng.randrange(len(said) + 1)]


@scenario("bad requests hurt nobody")
def odd_requests(short: bool) -> Iterator[Found]:
    """A million requests by the service's own description and byte by byte; memory and /health are watched."""
    amount = (SHORT if short else sized(INPUTS)) // len(STORES)
    for store in STORES:
        with _served(store) as served:
            yield from try_odd_requests(store, served, chance(), amount)


@scenario("bad requests hurt nobody: schemathesis")
def schemathesis(short: bool) -> Iterator[Found]:
    """All phases of it, the stateful one among them, over the whole description."""
    for store in STORES:
        with _served(store) as served:
            yield _by_schemathesis(store, served, chance().getrandbits(31), 1 if short else sized(EXAMPLES))


@contextmanager
def _served(store: str) -> Iterator[Served]:
    systems = [name for name in SYSTEMS if name != "relay"]
    with ground_on(store, systems, in_memory=True) as ground, serving(url=ground.url, environment=SETTINGS) as served:
        yield served


def try_odd_requests(store: str, served: Served, rng: random.Random, amount: int) -> Iterator[Found]:
    """So many requests to a service."""
    described = httpx.get(_description(served), timeout=PATIENCE_SECONDS).json()
    raw = int(amount * RAW_SHARE)
    seeds = [rng.getrandbits(64) for _ in range(SENDERS)]

    def by_description(number: int) -> Counter[str]:
        return _by_description(served, described, seeds[number], (amount - raw) // SENDERS)

    def by_bytes(number: int) -> Counter[str]:
        return _by_bytes(served, seeds[number], raw // SENDERS)

    yield _sent(store, served, amount - raw, "requests by its description", by_description)
    yield _sent(store, served, raw, "times bytes that need not be a request", by_bytes)


def _sent(store: str, served: Served, amount: int, what: str, send: Callable[[int], Counter[str]]) -> Found:
    answers: Counter[str] = Counter()
    lock = threading.Lock()

    def sending(number: int) -> None:
        told = send(number)
        with lock:
            answers.update(told)

    memory: list[float] = []
    with watching(served) as watched:
        threads = [threading.Thread(target=sending, args=(number,)) for number in range(SENDERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            memory.append(served.memory_mib)
        for thread in threads:
            thread.join()
        time.sleep(0.5)
    faults = {answer: often for answer, often in answers.items() if answer.startswith(("5", "no answer", "stopped"))}
    for one, often in [*faults.items()][:20]:
        print(f"   {often} times {one}")
    tenths = ", ".join(f"{memory[number * len(memory) // 10]:.0f}" for number in range(10))
    print(f"  memory at each tenth of the way: {tenths}, {memory[-1]:.0f} MiB", flush=True)
    begun, grown = _grown(memory)
    statuses = Counter[str]()
    for answer, often in answers.items():
        statuses[answer[:3] if answer[0].isdigit() else "closed without one"] += often
    told = ", ".join(f"{status}: {often:,}" for status, often in sorted(statuses.items()))
    return Found(
        tried=f"{store}: {amount:,} {what}, {SENDERS} connections",
        figure=f"{sum(faults.values())} answers of 5xx or none at all; {told}; memory {begun:.0f} MiB, {grown:+.0f} after its first fifth; "
        f"/health {watched.slowest * 1000:.0f} ms at most beside waiting for a processor, {watched.failed} of {len(watched.seconds)} failed",
        holds=not faults and grown <= GROWTH_MIB_MAX and watched.slowest <= HEALTH_SECONDS_MAX and not watched.failed,
    )


def _grown(memory: list[float]) -> tuple[float, float]:
    """What it took after a fifth of the way, and how much more at the end."""
    first = max(memory[: len(memory) // 5 + 1])
    return first, memory[-1] - first


def _by_description(served: Served, described: dict[str, Any], seed: int, amount: int) -> Counter[str]:
    """Send requests on one connection, and count the answers; what is a fault has its request beside it."""
    fuzzer, answers = Fuzzer(described, random.Random(seed)), Counter[str]()
    connection = served.connect()
    for _ in range(amount):
        asked = fuzzer.request()
        try:
            connection.sendall(asked)
            status, answer, open_ = _answer(connection, head=asked.startswith(b"HEAD"))
        except OSError:
            status, answer, open_ = 0, b"", False
        if status >= 500 and not asked.startswith(b"GET /ready"):
            answers[f"{status} {asked.replace(ADMIN.encode(), b'')[:300]!r}"] += 1
        else:
            answers[str(status) if status else "closed"] += 1
        fuzzer.learn(answer)
        if not open_:
            connection.close()
            connection = served.connect()
    connection.close()
    return answers


def _answer(connection: socket.socket, *, head: bool) -> tuple[int, bytes, bool]:
    """The status, the body, and whether the connection is still good; 0 where it was closed."""
    connection.settimeout(PATIENCE_SECONDS)
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(65536)
        if not part:
            return 0, b"", False
        read += part
    top, _, body = read.partition(b"\r\n\r\n")
    lower = top.lower()
    status = int(top[9:12])
    if status in (204, 304) or head or 100 <= status < 200:
        return status, b"", b"connection: close" not in lower
    if (found := re.search(rb"content-length: *(\d+)", lower)) is not None:
        length = int(found[1])
        while len(body) < length:
            part = connection.recv(65536)
            if not part:
                break
            body += part
        return status, body, b"connection: close" not in lower
    return status, body, False  # parts of unknown length: the next one goes on a connection of its own


def _by_bytes(served: Served, seed: int, amount: int) -> Counter[str]:
    """Send bytes, each on a connection of its own, and read what comes until it is closed."""
    rng, answers = random.Random(seed), Counter[str]()
    for _ in range(amount):
        said, read = raw_bytes(rng), b""
        try:
            with served.connect() as connection:
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(PATIENCE_SECONDS)
                while part := connection.recv(65536):
                    read += part
        except TimeoutError:
            answers[f"no answer and no end to {said[:200]!r}"] += 1
            continue
        except OSError:
            pass
        statuses = [int(one) for one in re.findall(rb"^HTTP/1\.[01] (\d{3})", read, re.MULTILINE)]
        if any(status >= 500 for status in statuses):
            answers[f"{max(statuses)} {said[:300]!r}"] += 1
        else:
            answers[str(statuses[0]) if statuses else "closed"] += 1
    return answers


def _description(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}/openapi.json"


def _by_schemathesis(store: str, served: Served, seed: int, examples: int) -> Found:
    """Endpoints are left out, whose addresses it would make up."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", _description(served), "--header", f"X-API-Key: {ADMIN}", "--checks", "not_a_server_error",
        "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", str(examples), "--seed", str(seed), "--exclude-path-regex", "endpoints",
        "--exclude-path", "/ready", "--no-color", "--request-timeout", "30", "--continue-on-failure",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=MEMORY if MEMORY.is_dir() else None)
    said = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    summary = next(
        (line for line in reversed(said) if "generated" in line or "test cases" in line.lower()),
        said[-1] if said else ran.stderr[-200:],
    )
    if ran.returncode:
        print("\n".join(said[-80:]))
    return Found(
        tried=f"{store}: schemathesis, all phases, {examples} examples each",
        figure=f"{summary} (seed {seed})",
        holds=ran.returncode == 0,
    )
