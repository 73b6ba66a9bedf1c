"""Senders that sign: what is let in, what is refused, and what is wrong with a configuration."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from standardwebhooks import Webhook as StandardWebhook

from redrive import Redrive, seconds
from redrive.errors import SettingsError
from redrive.systems.webhooks import Source, Webhooks
from redrive.systems.webhooks.signatures import SignatureError, make_verifier
from redrive.systems.webhooks.sources import Place, load_sources
from redrive.systems.webhooks.tables import bodies
from redrive.testing import VirtualClock

from .conftest import (
    GITHUB_SECRET,
    SOURCES,
    STANDARD_SECRET,
    STRIPE_SECRET,
    client_of,
    encoded,
    error_of,
    github_headers,
    rows,
    settings,
    stripe_headers,
)

PUSH = encoded({"ref": "refs/heads/main", "repository": {"id": 7}})
PAID = encoded({"id": "evt_1", "type": "invoice.paid", "data": {"object": {"amount": 700}}})
ORDER = encoded({"type": "order.paid", "data": {"order": 7}})


@pytest.fixture
def store() -> str:
    """The database has no part in signatures: SQLite stands for both."""
    return "sqlite"


def standard_headers(body: bytes, secret: str = STANDARD_SECRET, *, at: datetime | None = None) -> dict[str, str]:
    """What a sender of Standard Webhooks sends along."""
    at = at or datetime.now(UTC)
    signature = StandardWebhook(secret).sign("msg_1", at, body.decode())
    return {
        "Content-Type": "application/json",
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": f"v1,{'A' * 44} {signature}",
    }


GOOD = {
    "github": (PUSH, lambda: github_headers(PUSH), "github:72d3162e-cc78-11e3-81ab-4c9367dc0958", "push"),
    "stripe": (PAID, lambda: stripe_headers(PAID), "stripe:evt_1", "invoice.paid"),
    "standard": (ORDER, lambda: standard_headers(ORDER), "standard:msg_1", "order.paid"),
}


@pytest.fixture
async def door(make: Any) -> Any:
    """A client from elsewhere, without a key: the signature stands in for it."""
    app, _ = make()
    async with client_of(app, client="192.0.2.7", base_url="http://hooks.example") as client:
        yield app, client


Door = tuple[Redrive, httpx.AsyncClient]


@pytest.mark.parametrize("name", GOOD)
async def test_a_signed_webhook_is_taken_in_once(door: Door, name: str):
    """It is 202, the whole body is the payload, and sent again it is 200 and no second row."""
    app, client = door
    body, headers, key, event_type = GOOD[name]
    first = await client.post(f"/webhooks/in/{name}", content=body, headers=headers())
    assert (first.status_code, first.json()["idempotency_key"]) == (202, key)
    replayed = await client.post(f"/webhooks/in/{name}", content=body, headers=headers())
    assert (replayed.status_code, replayed.json()["id"]) == (200, first.json()["id"])
    [row] = await rows(app)
    assert (row["event_type"], json.loads(row["payload"])) == (event_type, json.loads(body))


async def test_a_signed_body_under_another_identity_is_a_replay(make: Any, clock: VirtualClock):
    """GitHub signs the body alone: the same one with another delivery id is answered with the first, also after a restart.

    It is remembered for a week, and per source; another body is another webhook.
    """
    app, _ = make(clock=clock)
    other = {"X-GitHub-Delivery": "another"}
    async with client_of(app, client="192.0.2.7") as client:
        first = await client.post("/webhooks/in/github", content=PUSH, headers=github_headers(PUSH))
        again = await client.post("/webhooks/in/github", content=PUSH, headers=github_headers(PUSH) | other)
        assert (first.status_code, again.status_code) == (202, 200)
        assert again.json() == first.json()
        changed = PUSH + b" "
        assert (
            await client.post("/webhooks/in/github", content=changed, headers=github_headers(changed) | other)
        ).status_code == 202
    clock.advance(timedelta(days=6))
    app, _ = make(clock=clock)  # as after a restart
    async with client_of(app, client="192.0.2.7") as client:
        again = await client.post(
            "/webhooks/in/github", content=PUSH, headers=github_headers(PUSH) | {"X-GitHub-Delivery": "third"}
        )
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        clock.advance(timedelta(days=2))
        later = await client.post(
            "/webhooks/in/github", content=PUSH, headers=github_headers(PUSH) | {"X-GitHub-Delivery": "fourth"}
        )
        assert later.status_code == 202
    kept = await app.database.read(lambda connection: connection.execute(select(bodies)).all())
    assert [row.idempotency_key for row in kept] == ["github:fourth"]  # what is forgotten is deleted


async def test_bodies_are_remembered_only_where_the_identity_is_not_signed(url: str):
    """Not where the identity stands in the body, or in a header that is signed; and not where the source says so."""
    window = timedelta(days=7)
    assert Source.make("a", "github", [GITHUB_SECRET]).replay_window == window
    assert Source.make("a", "stripe", [STRIPE_SECRET], identity="header:X-Id").replay_window == window
    assert Source.make("a", "standard", [STANDARD_SECRET], identity="header:X-Id").replay_window == window
    for source in (
        Source.make("a", "github", [GITHUB_SECRET], identity="json:id"),
        Source.make("a", "github", [GITHUB_SECRET], replay_window=0),
        Source.make("a", "stripe", [STRIPE_SECRET]),
        Source.make("a", "standard", [STANDARD_SECRET]),
        Source.make("a", "standard", [STANDARD_SECRET], identity="header:Webhook-Id"),
    ):
        assert source.replay_window == timedelta(0)
    with pytest.raises(SettingsError, match="replay_window"):
        Source.make("a", "github", [GITHUB_SECRET], replay_window="soon")


BAD: dict[str, tuple[str, bytes, Any]] = {
    "github, another body": ("github", PUSH + b" ", lambda: github_headers(PUSH)),
    "github, another secret": ("github", PUSH, lambda: github_headers(PUSH, "another secret")),
    "github, no signature": ("github", PUSH, lambda: github_headers(PUSH) | {"X-Hub-Signature-256": ""}),
    "github, SHA-1": ("github", PUSH, lambda: github_headers(PUSH) | {"X-Hub-Signature-256": "sha1=" + "0" * 40}),
    "github, bare": (
        "github",
        PUSH,
        lambda: github_headers(PUSH) | {"X-Hub-Signature-256": github_headers(PUSH)["X-Hub-Signature-256"][7:]},
    ),
    "github, not ASCII": ("github", PUSH, lambda: github_headers(PUSH) | {"X-Hub-Signature-256": "sha256=\xe9"}),
    "stripe, another body": ("stripe", PAID + b" ", lambda: stripe_headers(PAID)),
    "stripe, another secret": ("stripe", PAID, lambda: stripe_headers(PAID, "another secret")),
    "stripe, old": ("stripe", PAID, lambda: stripe_headers(PAID, at=time.time() - 301)),
    "stripe, from the future": ("stripe", PAID, lambda: stripe_headers(PAID, at=time.time() + 310)),
    "stripe, beyond the calendar": ("stripe", PAID, lambda: stripe_headers(PAID, at=999_999_999_999)),
    "stripe, another time": (
        "stripe",
        PAID,
        lambda: {"Content-Type": "application/json"}
        | {"Stripe-Signature": f"t={int(time.time()) + 1},{stripe_headers(PAID)['Stripe-Signature'].split(',')[1]}"},
    ),
    "stripe, two times": (
        "stripe",
        PAID,
        lambda: stripe_headers(PAID)
        | {"Stripe-Signature": f"t=1,{stripe_headers(PAID)['Stripe-Signature']}"},
    ),
    "stripe, no time": ("stripe", PAID, lambda: stripe_headers(PAID) | {"Stripe-Signature": f"v1={'0' * 64}"}),
    "stripe, nonsense": ("stripe", PAID, lambda: stripe_headers(PAID) | {"Stripe-Signature": ",=,t=,v1"}),
    "stripe, only v0": (
        "stripe",
        PAID,
        lambda: stripe_headers(PAID)
        | {"Stripe-Signature": stripe_headers(PAID)["Stripe-Signature"].replace("v1=", "v2=")},
    ),
    "standard, another body": ("standard", ORDER + b" ", lambda: standard_headers(ORDER)),
    "standard, another secret": ("standard", ORDER, lambda: standard_headers(ORDER, "whsec_" + "QUJD" * 8)),
    "standard, old": ("standard", ORDER, lambda: standard_headers(ORDER, at=datetime.now(UTC) - timedelta(minutes=6))),
    "standard, too new": (
        "standard",
        ORDER,
        lambda: standard_headers(ORDER, at=datetime.now(UTC) + timedelta(minutes=6)),
    ),
    "standard, another id": ("standard", ORDER, lambda: standard_headers(ORDER) | {"webhook-id": "msg_2"}),
    "standard, nonsense": ("standard", ORDER, lambda: standard_headers(ORDER) | {"webhook-signature": "v1"}),
    "standard, no base64": ("standard", ORDER, lambda: standard_headers(ORDER) | {"webhook-signature": "v1,é"}),
    "standard, no header": ("standard", ORDER, lambda: {"Content-Type": "application/json"}),
    "standard, not UTF-8": ("standard", b"\xff", lambda: standard_headers(ORDER)),
    "of another source": ("stripe", PUSH, lambda: github_headers(PUSH)),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_or_old_signature_is_401_and_leaves_nothing(door: Door, what: str):
    """Whatever is wrong with it; and the answer does not say what would have been right."""
    app, client = door
    name, body, headers = BAD[what]
    raw = [(key.encode(), value.encode("latin-1")) for key, value in headers().items()]
    answer = await client.post(f"/webhooks/in/{name}", content=body, headers=raw)
    assert (answer.status_code, error_of(answer)["code"]) == (401, "signature_refused"), answer.text
    assert await rows(app) == []
    assert github_headers(body)["X-Hub-Signature-256"][7:] not in answer.text


async def test_the_signature_is_asked_before_the_body_is_read_as_json(door: Door):
    """A stranger learns nothing about bodies; a signed body that is no JSON object is 422."""
    app, client = door
    for body in (b"[]", b"{", b"\xff", b"[" * 100_000):
        unsigned = await client.post("/webhooks/in/github", content=body, headers={"Content-Type": "application/json"})
        assert unsigned.status_code == 401
        signed = await client.post("/webhooks/in/github", content=body, headers=github_headers(body))
        assert signed.status_code == 422, body[:10]
    assert await rows(app) == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/webhooks/in/gitlab", 404, "source_unknown"), ("/webhooks/in/github/x", 404, "not_found")],
)
async def test_an_unknown_source_is_404(door: Door, path: str, status: int, code: str):
    """Also with a signature that another source would take."""
    answer = await door[1].post(path, content=PUSH, headers=github_headers(PUSH))
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


@pytest.mark.parametrize("missing", ["X-GitHub-Delivery", "X-GitHub-Event"])
async def test_without_identity_or_type_it_is_422(door: Door, missing: str):
    """The answer says where it was expected."""
    headers = github_headers(PUSH)
    del headers[missing]
    answer = await door[1].post("/webhooks/in/github", content=PUSH, headers=headers)
    assert answer.status_code == 422
    assert missing in error_of(answer)["message"]
    long = await door[1].post("/webhooks/in/github", content=PUSH, headers=github_headers(PUSH) | {missing: "x" * 501})
    assert long.status_code == 422


async def test_forms_are_refused_with_the_remedy(door: Door):
    """GitHub can send its webhooks as forms; they are taken as JSON only."""
    headers = github_headers(PUSH) | {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await door[1].post("/webhooks/in/github", content=PUSH, headers=headers)
    assert answer.status_code == 415
    assert "application/json" in error_of(answer)["message"]


async def test_two_secrets_are_valid_while_they_rotate(url: str):
    """Signed with either it is taken, with a third it is not."""
    app = Redrive(url, durable=False)
    sources = [
        Source.make("github", "github", ["secret-new", "secret-old"]),
        Source.make("stripe", "stripe", ["secret-new", "secret-old"]),
        Source.make("standard", "standard", ["whsec_" + "bmV3" * 8, "whsec_" + "b2xk" * 8]),
    ]
    Webhooks(app, settings(), sources=sources)
    async with client_of(app) as client:
        for secret, status in (("secret-new", 202), ("secret-old", 200), ("secret-bad", 401)):
            headers = github_headers(PUSH, secret)
            assert (await client.post("/webhooks/in/github", content=PUSH, headers=headers)).status_code == status
            headers = stripe_headers(PAID, secret)
            assert (await client.post("/webhooks/in/stripe", content=PAID, headers=headers)).status_code == status
        for secret, status in (("bmV3", 202), ("b2xk", 200), ("YmFk", 401)):
            headers = standard_headers(ORDER, "whsec_" + secret * 8)
            assert (await client.post("/webhooks/in/standard", content=ORDER, headers=headers)).status_code == status
    await app.close()


async def test_sources_do_not_meet(door: Door):
    """The same identity from two sources, or from POST /webhooks, is two webhooks: nobody can take another's key away."""
    app, client = door
    body = encoded({"id": "same", "type": "a"})
    assert (await client.post("/webhooks/in/stripe", content=body, headers=stripe_headers(body))).status_code == 202
    headers = github_headers(body) | {"X-GitHub-Delivery": "same"}
    assert (await client.post("/webhooks/in/github", content=body, headers=headers)).status_code == 202
    assert [row["idempotency_key"] for row in await rows(app)] == ["stripe:same", "github:same"]


async def test_stripes_tolerance_is_five_minutes(clock: VirtualClock):
    """To the second, on both sides, by the clock of the store."""
    verify = make_verifier("stripe", [STRIPE_SECRET])
    for age, fits in ((0, True), (300, True), (301, False), (-300, True), (-301, False)):
        headers = stripe_headers(PAID, at=clock.now().timestamp() - age)
        if fits:
            verify(PAID, headers, clock.now())
        else:
            with pytest.raises(SignatureError):
                verify(PAID, headers, clock.now())
    with pytest.raises(SignatureError, match="old"):
        verify(PAID, stripe_headers(PAID, at=clock.now().timestamp()), clock.now() + seconds(301))


# --- configuration ----------------------------------------------------------------------------------------------------


def test_sources_come_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A few lines for each; secrets by the names of variables; places have defaults and can be said."""
    monkeypatch.setenv("GITHUB_SECRET", GITHUB_SECRET)
    monkeypatch.setenv("SHOP_SECRET", "a-secret-of-the-shop")
    file = tmp_path / "redrive.toml"
    file.write_text(
        '[webhooks.sources.github]\nscheme = "github"\nsecrets = ["GITHUB_SECRET"]\n'
        '[webhooks.sources.shop]\nscheme = "stripe"\nsecrets = ["SHOP_SECRET"]\n'
        'identity = "json:meta.id"\nevent_type = "header:X-Shop-Event"\n'
    )
    sources = load_sources(file)
    assert set(sources) == {"github", "shop"}
    assert sources["github"].identity == SOURCES[0].identity
    assert sources["shop"].identity == Place(path=("meta", "id"))
    assert sources["shop"].event_type == Place(header="X-Shop-Event")
    assert GITHUB_SECRET not in repr(sources)


def test_a_secret_may_stand_in_the_env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As every other variable; the environment goes before it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("SOME_SECRET=from-the-file\n")
    file = tmp_path / "redrive.toml"
    file.write_text('[webhooks.sources.a]\nscheme = "github"\nsecrets = ["SOME_SECRET"]\n')
    now = datetime.now(UTC)
    load_sources(file)["a"].verify(PUSH, github_headers(PUSH, "from-the-file"), now)
    monkeypatch.setenv("SOME_SECRET", "from-the-environment")
    load_sources(file)["a"].verify(PUSH, github_headers(PUSH, "from-the-environment"), now)


def test_without_a_file_there_are_no_sources(tmp_path: Path):
    """A service needs none."""
    assert load_sources(tmp_path / "redrive.toml") == {}


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("scheme = 'github'", "secrets"),
        ("scheme = 'github'\nsecrets = []", "secrets"),
        ("scheme = 'github'\nsecrets = 'GOOD_SECRET'", "secrets"),
        ("scheme = 'github'\nsecrets = ['NOT_SET']", "NOT_SET is not set"),
        ("scheme = 'github'\nsecrets = ['SHORT_SECRET']", "8 characters"),
        ("scheme = 'github'\nsecrets = ['hunter2-the-secret-itself']", "names of environment variables"),
        ("scheme = 'gitlab'\nsecrets = ['GOOD_SECRET']", "standard, github, stripe"),
        ("secrets = ['GOOD_SECRET']", "scheme"),
        ("scheme = 'standard'\nsecrets = ['NOT_BASE64']", "base64"),
        ("scheme = 'github'\nsecrets = ['GOOD_SECRET']\nidentity = 'body.id'", "header:NAME or json:path"),
        ("scheme = 'github'\nsecrets = ['GOOD_SECRET']\nidentity = 7", "header:NAME or json:path"),
        ("scheme = 'github'\nsecrets = ['GOOD_SECRET']\nevent_type = 'json:a..b'", "header:NAME or json:path"),
        ("scheme = 'github'\nsecrets = ['GOOD_SECRET']\ntolerance = 5", "tolerance is unknown"),
    ],
)
def test_a_misconfigured_source_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, why: str
):
    """The error names the file, the source and the remedy, and shows no secret."""
    monkeypatch.setenv("GOOD_SECRET", "a-good-secret")
    monkeypatch.setenv("SHORT_SECRET", "short!!")
    monkeypatch.setenv("NOT_BASE64", "whsec_ä-not-base64")
    file = tmp_path / "redrive.toml"
    file.write_text(f"[webhooks.sources.shop]\n{written}\n")
    with pytest.raises(SettingsError, match=why) as caught:
        Webhooks(Redrive(f"sqlite:///{tmp_path}/a.db"), settings(redrive_config=file))
    assert "redrive.toml: [webhooks.sources.shop]" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "short!!" not in str(caught.value)


@pytest.mark.parametrize(
    "written", ["[webhooks", "webhooks = 7", "[webhooks]\nsources = [1]", "[webhooks.sources]\na = 1"]
)
def test_a_broken_file_stops_the_start(tmp_path: Path, written: str):
    """It is named, too."""
    file = tmp_path / "redrive.toml"
    file.write_text(written)
    with pytest.raises(SettingsError, match=r"redrive\.toml"):
        load_sources(file)
