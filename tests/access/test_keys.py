"""API keys: shown once, kept as a hash, refused at once."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select

from redrive.access.keys import AUDITED, ApiKey, Scope, digest
from redrive.access.sql.keys import SqlKeys
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.database import Database
from redrive.ports import Actor
from redrive.testing import VirtualClock


@pytest.fixture
def keys(database: Database) -> SqlKeys:
    return SqlKeys(database)


async def test_only_the_hash_is_stored(keys: SqlKeys, database: Database):
    """A key can be found by its text, but the text is nowhere in the database nor in a repr."""
    made = await keys.create("grafana", ["viewer"])
    assert made.secret.startswith("rdk_")
    assert len(made.secret) > 40
    assert await keys.find(made.secret) == made.key
    [row] = await database.read(lambda connection: connection.execute(select(schema.key)).all())
    assert made.secret not in str(row)
    assert row.sha256 == digest(made.secret)
    assert made.secret not in repr(made)


async def test_an_expired_key_is_refused_at_once(keys: SqlKeys, clock: VirtualClock):
    """A key is good until the very instant at which it expires."""
    made = await keys.create("job", ["operator"], expires=timedelta(days=30))
    clock.advance(timedelta(days=30) - timedelta(microseconds=1))
    assert await keys.find(made.secret) is not None
    clock.advance(timedelta(microseconds=1))
    assert await keys.find(made.secret) is None


async def test_a_revoked_key_is_refused_at_once(keys: SqlKeys, clock: VirtualClock):
    """Revoking holds for the next request, is listed, and happens once."""
    made = await keys.create("job", ["operator"])
    first = await keys.revoke(made.key.id)
    assert first is not None
    assert await keys.find(made.secret) is None
    clock.advance(timedelta(hours=1))
    again = await keys.revoke(made.key.id)
    assert again == first
    assert [key.revoked_at for key in await keys.list()] == [first.revoked_at]
    assert await keys.revoke("nobody") is None


@pytest.mark.parametrize("secret", ["", "rdk_", "rdk_" + "a" * 43, "\0", "\ud800", "%"])
async def test_strange_texts_are_no_keys(keys: SqlKeys, secret: str):
    """Whatever is sent as a key, it is looked up by its hash and refused."""
    await keys.create("somebody", ["admin"])
    assert await keys.find(secret) is None


@pytest.mark.parametrize("held", list(Scope))
@pytest.mark.parametrize("asked", list(Scope))
def test_scopes_imply_each_other_as_documented(held: Scope, asked: Scope, clock: VirtualClock):
    """admin is good for everything, operator for viewer, any other for itself alone."""
    key = ApiKey(id="1", owner="o", scopes=(held,), created_at=clock.now())
    allowed = held is asked or held is Scope.ADMIN or (held is Scope.OPERATOR and asked is Scope.VIEWER)
    assert key.allows(asked) is allowed


@pytest.mark.parametrize(
    ("owner", "scopes", "expires"),
    [
        ("", ["viewer"], None),
        ("x" * 201, ["viewer"], None),
        ("x", [], None),
        ("x", ["root"], None),
        ("x", ["viewer"], timedelta(0)),
        ("x", ["viewer"], timedelta(days=-1)),
    ],
)
async def test_what_no_key_can_be_is_refused(keys: SqlKeys, owner: str, scopes: list[str], expires: timedelta | None):
    """Owner, scopes and expiry are checked before anything is written."""
    with pytest.raises(UsageError):
        await keys.create(owner, scopes, expires=expires)
    assert await keys.list() == []


async def test_first_key_is_made_once(keys: SqlKeys):
    """However many processes start at once on an empty store, one admin key is made and shown."""
    made = [secret for secret in await asyncio.gather(*(keys.ensure_first() for _ in range(8))) if secret]
    assert len(made) == 1
    [key] = await keys.list()
    assert key.scopes == (Scope.ADMIN,)
    assert await keys.find(made[0]) == key
    assert await keys.ensure_first() is None


async def test_no_first_key_where_there_was_one(keys: SqlKeys):
    """A store whose only key was revoked does not get a new one by itself: somebody meant it."""
    made = await keys.create("me", ["viewer"])
    await keys.revoke(made.key.id)
    assert await keys.ensure_first() is None


async def test_given_admin_key_replaces_the_one_before(keys: SqlKeys):
    """REDRIVE_ADMIN_KEY is stored hashed; changing it ends the old one, going back brings it back."""
    for given, other in (
        ("first-secret-00000", "second-secret-0000"),
        ("second-secret-0000", "first-secret-00000"),
    ) * 2:
        assert await keys.ensure_first(given) is None
        found = await keys.find(given)
        assert found is not None
        assert found.allows(Scope.ADMIN)
        assert await keys.find(other) is None
    assert len(await keys.list()) == 1


async def test_given_admin_key_that_was_revoked_stays_so(keys: SqlKeys):
    """A restart does not undo what a person revoked."""
    await keys.ensure_first("a-secret-from-outside")
    [key] = await keys.list()
    await keys.revoke(key.id)
    await keys.ensure_first("a-secret-from-outside")
    assert await keys.find("a-secret-from-outside") is None


async def test_other_keys_outlive_a_changed_admin_key(keys: SqlKeys):
    """Only the environment's own earlier key is replaced."""
    made = await keys.create("me", ["viewer"])
    await keys.ensure_first("a-secret-from-outside")
    await keys.ensure_first("another-from-outside")
    assert await keys.find(made.secret) == made.key


async def test_who_made_changed_and_revoked_a_key_is_on_the_audit(database: Database):
    """Each with who it was and from where, in the commit of the change; what changed nothing is not."""
    keys, ada = SqlKeys(database), Actor(name="ada", reason="from 192.0.2.7")
    made = await keys.create("bob", ["viewer"], by=ada)
    await keys.change(made.key.id, scopes=["operator"], by=ada)
    for _ in range(2):
        await keys.revoke(made.key.id, by=ada)
    await keys.change(made.key.id, scopes=["admin"], by=ada)
    d = schema.deed
    asked = select(d.c.ledger, d.c.task_id, d.c.act, d.c.actor, d.c.reason).order_by(d.c.id)
    assert await database.read(lambda connection: [tuple(row) for row in connection.execute(asked)]) == [
        (AUDITED, made.key.id, "created", "ada", "for bob: viewer; from 192.0.2.7"),
        (AUDITED, made.key.id, "changed", "ada", "for bob: operator; from 192.0.2.7"),
        (AUDITED, made.key.id, "revoked", "ada", "for bob: operator; from 192.0.2.7"),
    ]
