"""Sessions: kept as a hash, over at their time, and as good as their key."""

from datetime import timedelta

from tests.kept import Kept
from tests.kept import kept as kept
from tests.kept import kept_in_items as kept_in_items
from tests.kept import store as store

HOUR = timedelta(hours=1)


async def test_a_session_is_that_of_its_key(kept: Kept):
    """Whoever has the token has the key's rights, as they are now, until the session ends."""
    made, now = await kept.keys.create("ann", ["viewer"]), kept.clock.now()
    await kept.sessions.start("token", made.key.id, now, now + HOUR)
    assert await kept.sessions.find("token") == (made.key, now + HOUR)
    assert await kept.sessions.find("another") is None
    changed = await kept.keys.change(made.key.id, scopes=["operator"])
    assert await kept.sessions.find("token") == (changed, now + HOUR)
    await kept.sessions.end("token")
    assert await kept.sessions.find("token") is None


async def test_a_session_that_has_ended_opens_nothing(kept: Kept):
    """At the very instant, whether or not it was forgotten by then."""
    made, now = await kept.keys.create("ann", ["viewer"]), kept.clock.now()
    await kept.sessions.start("token", made.key.id, now, now + HOUR)
    kept.clock.advance(HOUR)
    found = await kept.sessions.find("token")
    assert found is None or found[1] <= kept.clock.now()


async def test_a_session_ends_with_its_key(kept: Kept):
    """A key that was revoked is shown as such; one that is gone has no sessions."""
    made, now = await kept.keys.create("ann", ["viewer"]), kept.clock.now()
    await kept.sessions.start("token", made.key.id, now, now + HOUR)
    revoked = await kept.keys.revoke(made.key.id)
    assert await kept.sessions.find("token") == (revoked, now + HOUR)
    await kept.keys.ensure_first("a-secret-from-outside")
    [first] = [key for key in await kept.keys.list() if key.id != made.key.id]
    await kept.sessions.start("first", first.id, now, now + HOUR)
    await kept.keys.ensure_first("another-from-outside")
    assert await kept.sessions.find("first") is None
