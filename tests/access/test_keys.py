"""API keys: shown once, kept as a hash, refused at once."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import select

from redrive.access.keys import AUDITED, ApiKey, Scope, digest
from redrive.access.ports import Keys
from redrive.errors import UsageError
from redrive.ledgers.sql import schema
from redrive.ports import Actor
from redrive.testing import VirtualClock
from tests.kept import Kept
from tests.kept import kept as kept
from tests.kept import kept_in_items as kept_in_items
from tests.kept import store as store


@pytest.fixture
def keys(kept: Kept) -> Keys:
    return kept.keys


async def written(kept: Kept) -> str:
    """All that is stored, as a text."""
    if kept.dynamo is not None:
        return str((await kept.dynamo._client.scan(TableName=kept.dynamo.table))["Items"])
    assert kept.database is not None
    return str(await kept.database.read(lambda connection: connection.execute(select(schema.key)).all()))


async def test_only_the_hash_is_stored(keys: Keys, kept: Kept):
    """A key can be found by its text, but the text is nowhere in the store nor in a repr."""
    made = await keys.create("grafana", ["viewer"])
    assert made.secret.startswith("rdk_")
    assert len(made.secret) > 40
    assert await keys.find(made.secret) == made.key
    stored = await written(kept)
    assert made.secret not in stored
    assert digest(made.secret) in stored
    assert made.secret not in repr(made)


async def test_an_expired_key_is_refused_at_once(keys: Keys, clock: VirtualClock):
    """A key is good until the very instant at which it expires."""
    made = await keys.create("job", ["operator"], expires=timedelta(days=30))
    clock.advance(timedelta(days=30) - timedelta(microseconds=1))
    assert await keys.find(made.secret) is not None
    clock.advance(timedelta(microseconds=1))
    assert await keys.find(made.secret) is None


async def test_a_revoked_key_is_refused_at_once(keys: Keys, clock: VirtualClock):
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
async def test_strange_texts_are_no_keys(keys: Keys, secret: str):
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
async def test_what_no_key_can_be_is_refused(keys: Keys, owner: str, scopes: list[str], expires: timedelta | None):
    """Owner, scopes and expiry are checked before anything is written."""
    with pytest.raises(UsageError):
        await keys.create(owner, scopes, expires=expires)
    assert await keys.list() == []


async def test_first_key_is_made_once(keys: Keys):
    """However many processes start at once on an empty store, one admin key is made and shown."""
    made = [secret for secret in await asyncio.gather(*(keys.ensure_first() for _ in range(8))) if secret]
    assert len(made) == 1
    [key] = await keys.list()
    assert key.scopes == (Scope.ADMIN,)
    assert await keys.find(made[0]) == key
    assert await keys.ensure_first() is None


async def test_no_first_key_where_there_was_one(keys: Keys):
    """A store whose only key was revoked does not get a new one by itself: somebody meant it."""
    made = await keys.create("me", ["viewer"])
    await keys.revoke(made.key.id)
    assert await keys.ensure_first() is None


async def test_given_admin_key_replaces_the_one_before(keys: Keys):
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


async def test_given_admin_key_that_was_revoked_stays_so(keys: Keys):
    """A restart does not undo what a person revoked."""
    await keys.ensure_first("a-secret-from-outside")
    [key] = await keys.list()
    await keys.revoke(key.id)
    await keys.ensure_first("a-secret-from-outside")
    assert await keys.find("a-secret-from-outside") is None


async def test_other_keys_outlive_a_changed_admin_key(keys: Keys):
    """Only the environment's own earlier key is replaced."""
    made = await keys.create("me", ["viewer"])
    await keys.ensure_first("a-secret-from-outside")
    await keys.ensure_first("another-from-outside")
    assert await keys.find(made.secret) == made.key


async def test_pages_hold_each_key_once_in_the_order_of_ids(keys: Keys):
    """Of all owners or of one; revoked ones are on no page, and neither is what lies before the place."""
    made = [(await keys.create(owner, ["viewer"])).key for owner in ("ann", "bob", "ann", "ann", "bob")]
    await keys.revoke(made[2].id)
    for owner, places in ((None, (0, 1, 3, 4)), ("ann", (0, 3)), ("bob", (1, 4)), ("eve", ())):
        found: list[ApiKey] = []
        after = None
        while page := await keys.page(owner=owner, after=after, limit=1):
            found += page
            after = page[-1].id
        assert found == sorted((made[place] for place in places), key=lambda key: key.id)
    assert await keys.get(made[0].id) == made[0]
    assert await keys.get(made[2].id) is None
    assert await keys.get("nobody") is None


async def test_a_change_holds_for_the_next_request(keys: Keys, clock: VirtualClock):
    """What a key is good for and until when, each by itself; nothing asked changes nothing."""
    made = await keys.create("job", ["viewer"], expires=timedelta(days=1))
    assert await keys.change(made.key.id) == made.key
    assert (await keys.change(made.key.id, scopes=["operator"])) == await keys.find(made.secret)
    found = await keys.find(made.secret)
    assert found is not None
    assert (found.scopes, found.expires_at) == ((Scope.OPERATOR,), made.key.expires_at)
    await keys.change(made.key.id, forever=True)
    clock.advance(timedelta(days=9))
    assert await keys.find(made.secret) is not None
    await keys.change(made.key.id, expires_at=clock.now())
    assert await keys.find(made.secret) is None
    assert await keys.change("nobody", forever=True) is None


async def test_changes_at_once_are_all_made_and_recorded(keys: Keys, kept: Kept):
    """Two people who change one key overwrite nothing of each other's."""
    made = await keys.create("job", ["viewer"])
    until = kept.clock.advance(timedelta(seconds=1)) + timedelta(days=1)
    await asyncio.gather(
        keys.change(made.key.id, scopes=["operator"]), keys.change(made.key.id, expires_at=until), keys.list()
    )
    found = await keys.get(made.key.id)
    assert found is not None
    assert (found.scopes, found.expires_at) == ((Scope.OPERATOR,), until)
    assert [one.act for one in (await kept.audit.page()).items] == ["changed", "changed", "created"]


async def test_who_made_changed_and_revoked_a_key_is_on_the_audit(keys: Keys, kept: Kept):
    """Each with who it was and from where, in the commit of the change; what changed nothing is not."""
    ada = Actor(name="ada", reason="from 192.0.2.7")
    acts: list[tuple[str, ...]] = []

    async def told(act: str, scopes: str) -> None:
        kept.clock.advance(timedelta(seconds=1))
        acts.insert(0, (AUDITED, made.key.id, act, "ada", f"for bob: {scopes}; from 192.0.2.7"))

    made = await keys.create("bob", ["viewer"], by=ada)
    await told("created", "viewer")
    await keys.change(made.key.id, scopes=["operator"], by=ada)
    await told("changed", "operator")
    for _ in range(2):
        await keys.revoke(made.key.id, by=ada)
    await told("revoked", "operator")
    await keys.change(made.key.id, scopes=["admin"], by=ada)
    found = (await kept.audit.page()).items
    assert [(one.ledger, one.task_id, one.act, one.actor, one.reason) for one in found] == acts
