"""Who did what, newest first, in every store."""

from datetime import timedelta

import pytest

from redrive.access.keys import AUDITED, SESSIONS_AUDITED
from redrive.core.table import TASKS
from redrive.errors import UsageError
from redrive.ports import Actor
from tests.kept import Kept, audit_of
from tests.kept import kept as kept
from tests.kept import kept_in_items as kept_in_items
from tests.kept import store as store
from tests.ledgers.aws.homes import DELIVERIES
from tests.ledgers.homes import Home

ADA = Actor(name="ada", reason="tidy")


async def walk(kept: Kept, ledger: str | None, limit: int) -> list[str]:
    """What all pages say, one after the other."""
    said, cursor = [], None
    for _ in range(100):
        page = await kept.audit.page(ledger, cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        said += [f"{one.act} {one.task_id}" for one in page.items]
        if page.cursor is None:
            return said
        cursor = str(page.cursor)
    raise AssertionError("the pages do not end")


async def test_pages_hold_each_deed_once_newest_first(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    """However small the pages, and however many months lie between two deeds; also where the store reads a few at a time."""
    monkeypatch.setattr("redrive.operator.aws.audit.READ_AT_ONCE", 2)
    done: list[str] = []
    for pause in (0, 1, 40, 0, 400):
        made = await kept.keys.create("bob", ["viewer"], by=ADA)
        kept.clock.advance(timedelta(seconds=1))
        await kept.keys.revoke(made.key.id, by=ADA)
        done = [f"revoked {made.key.id}", f"created {made.key.id}", *done]
        kept.clock.advance(timedelta(days=pause, seconds=1))
    assert await kept.audit.page(limit=1) != await kept.audit.page(limit=2)
    for limit in (1, 3, 100):
        assert await walk(kept, None, limit) == done
    assert await walk(kept, AUDITED, 3) == done
    assert await walk(kept, "something else", 3) == []
    [newest] = (await kept.audit.page(limit=1)).items
    assert (newest.ledger, newest.actor, newest.reason) == (AUDITED, "ada", "for bob: viewer; tidy")


async def test_a_look_for_one_ledger_goes_past_so_many_of_others(kept_in_items: Kept, monkeypatch: pytest.MonkeyPatch):
    """A page that found nothing then has a cursor all the same, and the next one goes on. Tables have an index for it."""
    monkeypatch.setattr("redrive.operator.aws.audit.LOOKED_AT_MAX", 2)
    monkeypatch.setattr("redrive.operator.aws.audit.READ_AT_ONCE", 2)
    for _ in range(5):
        await kept_in_items.keys.create("bob", ["viewer"])
        kept_in_items.clock.advance(timedelta(seconds=1))
    page = await kept_in_items.audit.page("something else")
    assert page.items == []
    assert page.cursor is not None
    assert await walk(kept_in_items, "something else", 10) == []
    assert len(await walk(kept_in_items, AUDITED, 10)) == 5


async def test_logging_in_and_out_is_told(kept: Kept):
    """By whom and from where, in the commit of the session; ending what is not there tells nothing."""
    made, now = (await kept.keys.create("ada", ["viewer"])).key, kept.clock.now()
    ada = Actor(name="ada", origin="browser, 192.0.2.7")
    await kept.sessions.start("token", made.id, now, now + timedelta(hours=1), by=ada)
    kept.clock.advance(timedelta(seconds=1))
    await kept.sessions.end("token", by=ada)
    await kept.sessions.end("token", by=ada)
    found = (await kept.audit.page(SESSIONS_AUDITED)).items
    assert [(one.act, one.task_id, one.actor, one.origin) for one in found] == [
        ("logged out", made.id, "ada", "browser, 192.0.2.7"),
        ("logged in", made.id, "ada", "browser, 192.0.2.7"),
    ]


async def test_an_act_can_be_looked_up(kept: Kept):
    """By the id that a page names; others are not there."""
    made = (await kept.keys.create("bob", ["viewer"], by=ADA)).key
    [entry] = (await kept.audit.page()).items
    assert await kept.audit.get(str(entry.id)) == entry
    assert (await kept.audit.things(str(entry.id))).items == [made.id]
    unknown = f"{entry.id}9" if isinstance(entry.id, int) else f"{entry.id}/x"
    assert await kept.audit.get(unknown) is None
    assert (await kept.audit.things(unknown)).items == []


@pytest.mark.parametrize("cursor", ["", "x", "%", "-1", "1e9", "\0", "bnVsbA", "WyI5OTk5LTEzIiwgIm4iLCAibyIsICJwIl0"])
async def test_what_is_no_cursor_is_refused(kept: Kept, cursor: str):
    """With a sentence that says what to do."""
    with pytest.raises(UsageError, match="begin again"):
        await kept.audit.page(cursor=cursor)


async def test_a_cursor_that_somebody_made_up_does_no_harm(kept_in_items: Kept):
    """A month far ahead is where the present begins; one that is long past is the end."""
    import base64
    import json

    for month, found in (("9999-12", 1), ("1970-01", 0)):
        made_up = base64.urlsafe_b64encode(json.dumps([month, "a", "b", "c"]).encode()).decode()
        if found:
            await kept_in_items.keys.create("bob", ["viewer"])
        assert len((await kept_in_items.audit.page(cursor=made_up)).items) == found


@pytest.mark.homes(lambda table: table.name in (TASKS.name, DELIVERIES.table.name))
async def test_an_act_over_several_commits_is_one_entry(home: Home, monkeypatch: pytest.MonkeyPatch):
    """On every ledger: with how many tasks it changed, all of which it names; what changed nothing is not there."""
    monkeypatch.setattr("redrive.ledgers.sql.acts.IDS_MAX", 2)
    ids = await home.put(5)
    assert len(await home.ledger.cancel(ids, ADA)) == 5
    assert await home.ledger.cancel(ids, ADA) == []
    audit = audit_of(home)
    [entry] = (await audit.page(home.ledger.name)).items
    assert (entry.act, entry.actor, entry.reason, entry.amount, entry.ledger) == (
        "cancel", "ada", "tidy", 5, home.ledger.name,
    )  # fmt: skip
    named, cursor = list[str](), None
    for _ in range(3):
        page = await audit.things(str(entry.id), cursor=cursor, limit=2)
        named, cursor = named + page.items, None if page.cursor is None else str(page.cursor)
    assert cursor is None
    assert sorted(named) == sorted(str(id_) for id_ in ids)
