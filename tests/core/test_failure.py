"""Reading exceptions: status, Retry-After, and texts from which no secret leaves.

The sample keys below are put together from pieces, so that scanners of this repository do not take them for real ones.
"""

import base64
import email.message
import json
from datetime import timedelta
from urllib.error import HTTPError

import aiohttp
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy
from sqlalchemy.exc import IntegrityError
from yarl import URL

from redrive.core.failure import (
    ERROR_CHARS_MAX,
    ErrorClass,
    asked_patience,
    describe_error,
    http_status,
    matches,
    read_rules,
    redact,
    rule_name,
    safe_text,
    spoken_class,
)
from redrive.core.policy import Policy
from redrive.errors import BusinessError, PermanentError, PolicyError, RateLimitedError, TaskError, TransientError
from tests.breadth import WIDE

pytestmark = pytest.mark.timeout(60)

REQUEST = httpx.Request("POST", "https://example.org/hook")
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
TWO_MINUTES_LATER = "Wed, 21 Oct 2026 07:30:00 GMT"


def httpx_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    response = httpx.Response(status, headers=headers, request=REQUEST)
    return httpx.HTTPStatusError("refused", request=REQUEST, response=response)


def urllib_error(status: int, headers: dict[str, str] | None = None) -> HTTPError:
    message = email.message.Message()
    for name, value in (headers or {}).items():
        message[name] = value
    return HTTPError("https://example.org", status, "refused", message, None)


def aiohttp_error(status: int, headers: dict[str, str] | None = None) -> aiohttp.ClientResponseError:
    url = URL("https://example.org")
    info = aiohttp.RequestInfo(url, "POST", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(info, (), status=status, headers=CIMultiDict(headers or {}))


CLIENTS = pytest.mark.parametrize("make", [httpx_error, urllib_error, aiohttp_error])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransientError(), ErrorClass.TRANSIENT),
        (RateLimitedError(), ErrorClass.RATE_LIMITED),
        (PermanentError(), ErrorClass.PERMANENT),
        (BusinessError(), ErrorClass.BUSINESS),
        (type("Mine", (PermanentError,), {})(), ErrorClass.PERMANENT),
        (TaskError(), None),
        (ValueError(), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_task_error_names_its_class(error, expected):
    """The four errors for handlers, and what derives from them, speak for themselves; nothing else does."""
    assert spoken_class(error) is expected


@CLIENTS
def test_the_status_is_found_where_each_client_keeps_it(make):
    """httpx, urllib and aiohttp keep the HTTP status in different places; all are read."""
    assert http_status(make(503)) == 503


@pytest.mark.parametrize(
    "attributes",
    [{}, {"code": "gkpj"}, {"status": True}, {"status": None}, {"code": lambda: 5}, {"response": {"a": 1}}],
)
def test_what_is_no_status_is_none(attributes):
    """Only whole numbers are taken for a status."""
    error = RuntimeError("boom")
    error.__dict__.update(attributes)
    assert http_status(error) is None


@CLIENTS
@pytest.mark.parametrize(
    ("headers", "expected_seconds"),
    [
        ({"Retry-After": "120"}, 120),
        ({"retry-after": " 7 "}, 7),
        ({"Retry-After": "0"}, 0),
        ({"Retry-After": TWO_MINUTES_LATER, "Date": DATE}, 120),
        ({"Retry-After": DATE, "Date": TWO_MINUTES_LATER}, 0),
        ({"Retry-After": TWO_MINUTES_LATER}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "²"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
    ids=str,
)
def test_retry_after_headers(make, headers, expected_seconds):
    """Seconds and HTTP dates (measured by the response's own Date) are read from every client, nonsense is not."""
    if make is httpx_error and "²" in headers.values():
        headers = {"Retry-After": "x2"}  # httpx does not build a header that is not ASCII
    asked = asked_patience(make(429, headers))
    assert asked == (None if expected_seconds is None else timedelta(seconds=expected_seconds))


@pytest.mark.parametrize(
    ("retry_after", "expected"),
    [
        (timedelta(seconds=5), timedelta(seconds=5)),
        (timedelta(seconds=-5), timedelta(0)),
        (30, timedelta(seconds=30)),
        (0.5, timedelta(milliseconds=500)),
        (-3, timedelta(0)),
        ("15", timedelta(seconds=15)),
        ("2m", timedelta(minutes=2)),
        (" 250ms ", timedelta(milliseconds=250)),
        ("soon", None),
        (float("nan"), None),
        (True, None),
        (object(), None),
        (None, None),
    ],
)
def test_retry_after_attributes(retry_after, expected):
    """An exception may carry its own `retry_after` as a span, a number or text; what cannot be meant is ignored."""
    error = RuntimeError("busy")
    error.retry_after = retry_after
    assert asked_patience(error) == expected


@pytest.mark.parametrize("asked", ["9" * 4000, 1e300, float("inf"), timedelta.max], ids=lambda value: str(value)[:9])
def test_a_monstrous_retry_after_is_no_error(asked):
    """However large the number, it becomes a span that the policy can then bound."""
    assert asked_patience(TaskError(retry_after=asked)) >= timedelta(days=366)


def test_the_attribute_beats_the_header():
    """What the exception says itself goes before what its response says."""
    error = httpx_error(429, {"Retry-After": "120"})
    error.retry_after = 5
    assert asked_patience(error) == timedelta(seconds=5)


class Refuses:
    """Headers that raise when asked."""

    def get(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "headers", [Refuses(), "text", 5, ["Retry-After", "5"]], ids=lambda value: type(value).__name__
)
def test_strange_headers_ask_for_nothing(headers):
    """Headers of any other shape are passed over."""
    error = RuntimeError("boom")
    error.response = type("Response", (), {"headers": headers})()
    assert asked_patience(error) is None


def test_an_httpx_error_without_request_is_readable():
    """A property that raises, as httpx has them, does not break the reading of an error."""
    assert http_status(httpx.ConnectError("refused")) is None
    assert asked_patience(httpx.ConnectError("refused")) is None


JWT = ".".join(
    base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
    for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "name": "Ann"}, "signature-of-it")
)
BODY = "MIIEpAIBAAKCAQEA7bq9example"
PEM = "-----BEGIN RSA " + f"PRIVATE KEY-----\n{BODY}\nxyzzy+/lines==\n-----END RSA " + "PRIVATE KEY-----"
STRIPE = "sk_" + "live_51H8example0123456789abcd"
GITHUB = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
SLACK = "xoxb-" + "123456789012-1234567890123-AbCdEfGhIjKlMnOp"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
OURS = "rdk_" + "9f8e7d6c5b4a39281706"

SECRETS = [
    # passwords in URLs and DSNs
    ("cannot reach postgresql://app:hunter2@db:5432/app", "hunter2"),
    ("cannot reach postgresql+asyncpg://app:p%40ss-w0rd@db/app?ssl=1", "p%40ss-w0rd"),
    ("redis://:hunter2@cache:6379/0 refused", "hunter2"),
    ("AMQP://guest:hunter2@localhost:5672//", "hunter2"),
    ("mysql://root:hun/ter2@h/db", "hun/ter2"),
    ("postgres://app:p@ss2word@db/app", "ss2word"),
    ("postgres://app:a:b:hunter2@db/app", "hunter2"),
    ("postgres://ann@tenant:hunter2@tenant.example.org/app", "hunter2"),
    ("hosts amqp://a:hunter2@h1,amqp://a:hunter3@h2", "hunter3"),
    ("https://ann:hunter2@example.org/path?x=1", "hunter2"),
    ("mongodb://ann:12345@h1:27017,h2:27017/db", "12345"),
    ('{"url":"https://ann:hunter2@example.org"}', "hunter2"),
    ("connection failed: host=db user=app password=hunter2 dbname=app", "hunter2"),
    ("Server=db;Uid=app;Pwd=hunter2;", "hunter2"),
    # Authorization headers
    ("Authorization: Bearer abc123", "abc123"),
    ("authorization: bearer   s3cr3t.to-ken~x/y==", "s3cr3t.to-ken~x/y"),
    ("AUTHORIZATION=Basic YW5uOmh1bnRlcjI=", "YW5uOmh1bnRlcjI"),
    ("{'Authorization': 'Bearer abc123'}", "abc123"),
    ('{"authorization": "Token abc123"}', "abc123"),
    ('{"Authorization":"abc123"}', "abc123"),
    ("headers {b'Authorization': b'Bearer abc123'}", "abc123"),
    ("[('authorization', 'abc 123'), ('accept', '*/*')]", "abc 123"),
    ("[(b'x-api-key', b'abc123')]", "abc123"),
    ("Proxy-Authorization: Basic YW5u", "YW5u"),
    ("Authorization: ApiKey abc123", "abc123"),
    ('Authorization: Digest username="ann", realm="r", response="6629fae49393a053"', "6629fae49393a053"),
    (f"Authorization: AWS4-HMAC-SHA256 Credential={AWS}/20260101/s3, SignedHeaders=host, Signature=fe5f80", "fe5f80"),
    (r"{\"Authorization\": \"Bearer abc123\"}", "abc123"),
    ("curl -H Bearer abcdefgh12345678", "abcdefgh12345678"),
    ("sent Basic dXNlcjpwYXNz to it", "dXNlcjpwYXNz"),
    ("Cookie: sid=abc123; theme=dark", "abc123"),
    ('"Set-Cookie": "session=abc123; HttpOnly"', "abc123"),
    # names that say secret
    ("GET /v1?api_key=abc123&page=2", "abc123"),
    ("apikey: abc123", "abc123"),
    ("X-API-Key: abc123", "abc123"),
    ("API-KEY = 'abc 123'", "abc 123"),
    ('{"token": "abc123"}', "abc123"),
    ('{"token":"abc\\"123"}', "123"),
    ('{"access_token": "two words"}', "two words"),
    ('{"refreshToken":"abc123","user":"ann"}', "abc123"),
    (r'"{\"password\": \"two words\", \"user\": \"ann\"}"', "two words"),
    ("{'client_secret': 'abc123'}", "abc123"),
    ('client_secret => "abc123"', "abc123"),
    ("secret_key := abc123", "abc123"),
    ("DB_PASSWORD=hunter2 was refused", "hunter2"),
    ("passwd:hunter2", "hunter2"),
    ("password='hunter2", "hunter2"),
    ("passphrase: hunter2", "hunter2"),
    ("user[password]=hunter2&user[name]=ann", "hunter2"),
    ("<password>hunter2</password>", "hunter2"),
    ("token: Bearer abc", "abc"),
    ("sessionid=abc123; path=/", "abc123"),
    ("https://x.s3.amazonaws.com/a?X-Amz-Signature=fe5f80&X-Amz-Expires=60", "fe5f80"),
    ("https://x.blob.core.windows.net/a?sv=2026&sig=fe5f80%3D", "fe5f80"),
    ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=fe5f80==;", "fe5f80"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "wJalrXUtnFEMI"),
    ("signing_key=abc123", "abc123"),
    # keys that are known by their look
    (f"no such key {OURS}", OURS),
    (f"key for {OURS}_with-more.", "with-more"),
    (f"No such customer for {STRIPE}", STRIPE),
    (f"restricted {STRIPE.replace('sk_', 'rk_')}", STRIPE[3:]),
    ("verify with whsec_" + "C2FVsBQIhrscChlQIMV+b5sSYspob7oD", "C2FVsBQIhrsc"),
    (f"git push with {GITHUB} failed", GITHUB),
    ("github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz", "11ABCDEFG0"),
    ("glpat-" + "abcDEF123456ghiJKL78", "abcDEF123456"),
    (f"slack said no to {SLACK}", SLACK),
    ("posting to https://hooks.slack.com/services/T000/B000/" + "XXXXabcd1234", "XXXXabcd1234"),
    (f"The AWS Access Key Id {AWS} does not exist", AWS),
    ("session ASIA" + "IOSFODNN7EXAMPLE expired", "IOSFODNN7EXAMPLE"),
    ("google said AIza" + "SyA1234567890abcdefghijklmnopqrstuv is bad", "SyA1234567890"),
    ("Incorrect key provided: sk-" + "proj-abcDEF1234567890abcdef", "abcDEF1234567890"),
    (f"bad signature on {JWT}", JWT.split(".")[1]),
    (f"jwt {JWT} expired", JWT.split(".")[2]),
    # private keys
    (f"cannot load {PEM}", BODY),
    (f"private_key={PEM}", BODY),
    (f"private_key: {PEM} is wrong", "xyzzy"),
    (json.dumps({"private_key": PEM}), BODY),
    (f"cannot load {PEM[:80]}", BODY),
    (PEM.replace("RSA ", "ENCRYPTED "), BODY),
    (PEM.replace("KEY-", "KEY BLOCK-").replace("RSA", "PGP"), BODY),
]

INNOCENT = [
    "",
    "boom",
    "division by zero",
    "[Errno 111] Connect call failed ('127.0.0.1', 5432)",
    'duplicate key value violates unique constraint "pk_customers"',
    'violates unique constraint "users_email_key" DETAIL: Key (email)=(ann@example.org) already exists.',
    "KeyError: 'token'",
    "missing field 'password'",
    "the password is wrong",
    'password authentication failed for user "app"',
    "Basic authentication is required",
    "Bearer authentication failed",
    "basic configuration missing",
    "invalid token",
    "token expired at 2026-01-01T00:00:00Z",
    "Unexpected token < in JSON at position 0",
    "maximum context length is 8192 tokens, max_tokens: 4096 is too large",
    '{"prompt_tokens": 12, "completion_tokens": 40}',
    "tokenizer=cl100k not found",
    "webhook signature mismatch",
    "Authorization header missing",
    "credentials were rejected",
    "no session for this user",
    "GET https://example.org:8443/a/b?page=2 answered 503",
    "https://example.org/@ann and mailto:ann@example.org",
    "http://localhost:4873/@scope/package not found",
    '{"url":"http://localhost:8080","mail":"ann@example.org"}',
    "http://[::1]:8080/users/ann@example.org",
    "postgresql://app@db:5432/app is away",
    "see https://example.org/docs: it says so",
    "idempotency_key=abc123 was seen before",
    "primary key: 42",
    "no secret:\nthe next line is another matter",
    "foreign_key=orders_id",
    "task-1234567890abcdef1234567890 is dead",
    "risk-1234567890abcdef1234567890 is high",
    "the sk_ prefix and the pk_test_ prefix",
    "eyJ is how base64 of JSON begins",
    "ASIAN markets and AKIA",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "ghp_ tokens are long",
    "3 of 5 workers; retry in 00:05:00; cpu=93%; path=/var/lib/x",
    "naïve café ☕ 東京",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[f"{number}" for number in range(len(SECRETS))])
def test_no_secret_survives(text, secret):
    """Each text of the corpus loses its secret, and says that something was there."""
    assert secret in text
    for kept in (redact(text), safe_text(text), describe_error(RuntimeError(text))):
        assert secret not in kept
        assert "[redacted]" in kept


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_texts_stay_as_they_are(text):
    """What holds no secret is kept to the letter."""
    assert redact(text) == text
    assert safe_text(text) == text


def test_the_corpora_are_large_enough_to_mean_something():
    """At least forty secrets of all families and forty innocent texts are tried."""
    assert len(SECRETS) >= 40
    assert len(INNOCENT) >= 40


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cannot reach postgresql://app:hunter2@db:5432/app now",
            "cannot reach postgresql://app:[redacted]@db:5432/app now",
        ),
        ("GET /v1?api_key=abc123&page=2 failed", "GET /v1?api_key=[redacted]&page=2 failed"),
        ('{"token": "abc123", "user": "ann"}', '{"token": [redacted], "user": "ann"}'),
        ('{"Authorization": "Bearer abc123", "a": 1}', '{"Authorization": "[redacted]", "a": 1}'),
        ("host=db password=hunter2 dbname=app", "host=db password=[redacted] dbname=app"),
        (f"key {OURS} is revoked", "key [redacted] is revoked"),
        (f"before\n{PEM}\nafter", "before\n[redacted]\nafter"),
    ],
)
def test_what_stands_around_a_secret_stays(text, expected):
    """Only the secret goes; the rest of the message still says what happened."""
    assert redact(text) == expected


@pytest.mark.parametrize("text", [text for text, _ in SECRETS], ids=[f"{number}" for number in range(len(SECRETS))])
def test_redacting_twice_is_redacting_once(text):
    """A text that was redacted already is not changed again, so it may pass several filters."""
    assert redact(redact(text)) == redact(text)


FRAGMENTS = [
    "token", "token=", "token: ", '"', "'", "\\", '\\"', "authorization:", "Authorization: Digest a=", "://", "a://b:",
    "@", ":", "=", ",", "cookie: ", "bearer ", "basic ", "[redacted]", "-----BEGIN ", "eyJ", " ", "\n", "(",
    "('token', ", "<password>", "{", "}", "secret", "api_key",
]  # fmt: skip
NOISE = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=6).map("".join)


@given(NOISE, st.sampled_from(["password=X1y2Z3w4", "X-Api-Key: X1y2Z3w4", "redis://u:X1y2Z3w4@h"]), NOISE)
def test_no_neighbour_shields_a_secret(before, text, after):
    """Whatever stands before and after it on other words, a secret does not survive."""
    assert "X1y2Z3w4" not in redact(f"{before} {text} {after}")


LENGTH = 1 << (20 if WIDE else 18)
"""So long that whatever takes the square of it does not end in time."""
HOSTILE = [
    "a", "a-", "a.", "token", "token ", "token=", 'token="', "token='", 'token=\\"', "tokens ", "token= a: ",
    "password\\", "secret:", "key", "api_", "authorization", "authorization:", 'authorization: a="',
    'authorization: a, b="', "authorization ", "://", "a://", "://a:", "://a:b@", "://a:b@c", "://:", ":", "@",
    "bearer ", "basic ", "basic a", "cookie", "cookie:", "eyJ", "-eyJ", "eyJaaaaaaaa.", "-----BEGIN ",
    "-----BEGIN PRIVATE ", "-----BEGIN PRIVATE KEY-----", "sk-", "sk_live_", "xoxb-", "xox", "rdk_", "ghp_", "whsec_",
    "('token', '", "('token", '("', "<password>", "AKIA", "AKIAAAAAAAAAAAAAAAAA", "hooks.slack.com/services/", "?sig=",
    " ", "\\", '"', "\n", "\0", "\ud800", "é",
]  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_a_long_text_made_to_be_slow_is_not(piece):
    """A hostile text is redacted in linear time, and what is kept of it has its bound."""
    text = (piece * (LENGTH // len(piece) + 1))[:LENGTH]
    for hostile in (text, f"token{text}", f"Authorization: {text}", f"a://b:{text}", f'password="{text}'):
        assert len(safe_text(hostile)) <= ERROR_CHARS_MAX
    assert len(redact(text)) <= 3 * LENGTH


@given(st.lists(st.characters() | st.sampled_from("\0\ud800"), max_size=50).map("".join), st.integers(0, 500))
@example("\ud800", 1)
@example("a\0b", 1)
def test_what_is_kept_can_be_stored(text, times):
    """A kept text has no NUL, encodes as UTF-8 and keeps its bound, and says when it was shortened."""
    kept = safe_text(text * times)
    kept.encode()
    assert "\0" not in kept
    assert len(kept) <= ERROR_CHARS_MAX
    if len(kept) == ERROR_CHARS_MAX < len(text * times):
        assert kept.endswith("…")


def test_the_bound_is_exact():
    """A text as long as the bound stays whole; one more character shortens it."""
    assert safe_text("x" * ERROR_CHARS_MAX) == "x" * ERROR_CHARS_MAX
    assert safe_text("x" * (ERROR_CHARS_MAX + 1)) == "x" * (ERROR_CHARS_MAX - 1) + "…"


@pytest.mark.parametrize("hidden", ["password=" + "z" * 7000, PEM.replace(BODY, "M" * 7000)], ids=["name", "pem"])
def test_no_cut_leaves_half_a_secret(hidden):
    """Wherever a long message is cut before it is looked at, no part of a password that stood there is kept."""
    for dots in range(700, 1100):
        text = f"{hidden} {'.' * dots} postgres://app:hunter2hunter2@db/app {'.' * 9000}"
        assert "hun" not in safe_text(text)
        assert safe_text(text).endswith("…")


class UnreadableError(Exception):
    def __str__(self):
        raise RuntimeError("no text for you")


class WordlessError(Exception):
    def __str__(self):
        return 5


class EndlessError(Exception):
    def __str__(self):
        return str(self)


@pytest.mark.parametrize(
    "error", [UnreadableError("x"), WordlessError("x"), EndlessError("x")], ids=lambda error: type(error).__name__
)
def test_an_exception_that_cannot_be_printed_is_still_described(error):
    """An exception whose text raises is kept under its type."""
    assert describe_error(error) == f"{type(error).__name__}: (its text cannot be read)"


RAISING = ("__class__", "__cause__", "__context__", "__notes__", "args", "code", "headers", "orig", "response", "retry_after",
           "statement", "status", "status_code")  # fmt: skip


def hostile(name: str, raised: BaseException) -> Exception:
    """An exception that raises when it is asked for this."""

    def refuse(self):
        raise raised

    return type("HostileError", (Exception,), {name: property(refuse)})("the disk is full")


@pytest.mark.parametrize("raised", [RuntimeError("no"), SystemExit(1)], ids=lambda raised: type(raised).__name__)
@pytest.mark.parametrize("name", RAISING)
def test_an_exception_whose_properties_raise_is_still_described(name, raised):
    """Whatever an exception raises when it is asked about itself, its failure is told, classed and asks for no patience."""
    error = hostile(name, raised)
    assert describe_error(error) == "HostileError: the disk is full"
    assert Policy(permanent=[503, OSError]).classify(error) == (ErrorClass.TRANSIENT, "otherwise")
    assert asked_patience(error) is None


@pytest.mark.parametrize("name", ["__str__", "__repr__"])
def test_an_exception_whose_text_ends_the_process_is_still_described(name):
    """A text that raises `SystemExit` is a text that cannot be read."""

    def leave(self):
        raise SystemExit(1)

    error = type("LeavingError", (Exception,), {name: leave})("gone")
    text = "(its text cannot be read)" if name == "__str__" else "gone"
    assert describe_error(error) == f"LeavingError: {text}"


def test_an_error_of_a_database_says_what_its_driver_said():
    """Neither the statement nor its parameters get into errors that people and groups are shown."""
    error = IntegrityError("INSERT INTO orders VALUES (?)", ("Ada's card",), ValueError("orders.id is taken"))
    assert describe_error(error) == "IntegrityError: orders.id is taken"


def test_an_exception_is_described_by_type_and_text():
    """The type goes first; an exception without text is its type alone."""
    assert describe_error(ValueError("bad id")) == "ValueError: bad id"
    assert describe_error(ValueError()) == "ValueError"
    assert describe_error(KeyError("id")) == "KeyError: 'id'"
    assert describe_error(ExceptionGroup("many", [ValueError("a")])) == "ExceptionGroup: many (1 sub-exception)"


def test_a_huge_exception_is_short_when_kept():
    """A message of many megabytes is kept as two thousand characters."""
    assert len(describe_error(ValueError("x" * (8 << 20)))) == ERROR_CHARS_MAX


class GettingError(Exception):
    def __getattr__(self, name):
        if name == "retry_after":
            return timedelta(seconds=7)
        raise AttributeError(name)


class CatchingError(Exception):
    def __getattribute__(self, name):
        return timedelta(seconds=7) if name == "retry_after" else super().__getattribute__(name)


class Mixed:
    retry_after = timedelta(seconds=7)


class SlottedError(Exception):
    __slots__ = ("retry_after",)


def said(kind, *, own):
    error = kind("busy")
    if own:
        error.retry_after = timedelta(seconds=7)
    return error


@pytest.mark.parametrize(
    "make",
    [
        lambda: said(ValueError, own=True),
        lambda: said(SlottedError, own=True),
        lambda: said(type("Bare", (Exception,), {}), own=True),
        lambda: said(type("OfClass", (Exception,), {"retry_after": timedelta(seconds=7)}), own=False),
        lambda: said(type("Asked", (Exception,), {"retry_after": property(lambda _: timedelta(seconds=7))}), own=False),
        lambda: said(type("Mixing", (Mixed, Exception), {}), own=False),
        lambda: said(type("Child", (GettingError,), {}), own=False),
        lambda: said(CatchingError, own=False),
    ],
)
def test_a_fact_is_found_wherever_an_exception_has_it(make):
    """What is skipped for exceptions that have nothing but their text is not skipped for any other."""
    assert asked_patience(ValueError("busy")) is None
    assert asked_patience(make()) == timedelta(seconds=7)


@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_each_name_of_a_status_is_read(name):
    """With the response or with the error itself; what is a status by its first name goes before the others."""
    error = RuntimeError("boom")
    setattr(error, name, 503)
    assert http_status(error) == 503
    error.response = type("Response", (), {name: 429})()
    assert http_status(error) == 429


def test_headers_are_asked_for_by_their_usual_names():
    """Where they are an ordinary dict, which knows one spelling."""
    error = RuntimeError("busy")
    error.headers = {"Retry-After": "5"}
    assert asked_patience(error) == timedelta(seconds=5)
    error.headers = {"Retry-After": TWO_MINUTES_LATER, "Date": DATE}
    assert asked_patience(error) == timedelta(minutes=2)


def broken(error):
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (503, True),
        (504, False),
        (RuntimeError, True),
        (OSError, False),
        (lambda error: str(error) == "boom", True),
        (lambda error: 0, False),
        (lambda error: "yes", True),
        (broken, False),
    ],
)
def test_what_a_rule_holds_for(rule, holds):
    """A status, a class or a function of the error; a function that raises holds for nothing."""
    error = RuntimeError("boom")
    error.status = 503
    assert matches(rule, error) is holds


class Nameless:
    def __call__(self, error):
        return True

    def __repr__(self):
        return "a rule without a name"


def test_rules_are_named_in_explanations():
    """By the status, by the name of the class or function, else as they print themselves."""
    assert rule_name(503) == "HTTP 503"
    assert rule_name(ValueError) == "ValueError"
    assert rule_name(broken) == "broken"
    assert rule_name(Nameless()) == "a rule without a name"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (99, "permanent: 99 is not an HTTP status"),
        (600, "permanent: 600 is not an HTTP status"),
        (True, "permanent: True is not an HTTP status"),
        ([ValueError, int], "permanent: int is not an exception"),
        ("503", "permanent: '503' is neither an exception type, an HTTP status nor a function"),
    ],
)
def test_a_rule_that_never_holds_is_refused(given, said):
    """With its name and the rule."""
    with pytest.raises(PolicyError) as refused:
        read_rules("permanent", given)
    assert str(refused.value) == said


def test_one_rule_or_many():
    """The first and the last HTTP status are rules; one rule alone is a tuple of one."""
    assert read_rules("permanent", 100) == (100,)
    assert read_rules("permanent", (599, OSError, broken)) == (599, OSError, broken)


class OddError(Exception):
    """It has what SQLAlchemy's errors have, but no statement."""

    orig = ValueError("something else")


def test_an_error_without_a_statement_speaks_for_itself():
    """Only where a statement would be told are the driver's words taken."""
    assert describe_error(OddError("my own words")) == "OddError: my own words"


def test_the_last_word_before_a_cut_is_dropped():
    """It may be half a secret. What stood before it stays, and where nothing did nothing is kept."""
    assert safe_text("a b password=" + "z" * 7000 + " cc " + "d" * 2000) == "a b password=[redacted] cc …"
    assert safe_text("password=" + "z" * 9000) == " …"
    hidden = "password=" + "z" * (4 * ERROR_CHARS_MAX - 9 - 1 - 1980)
    assert safe_text(f"{hidden} {'d' * 1980}") == f"password=[redacted] {'d' * 1980}"
    assert safe_text(f"{hidden} {'d' * 2080}") == "password=[redacted] …"
