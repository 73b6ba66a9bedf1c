"""All stored secrets are sealed anew, however often that is broken off, and what others change meanwhile stays theirs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Column, Connection, MetaData, Table, Text, insert, select, update

from redrive.access.secret_box import SecretBox, new_key
from redrive.access.sql import stored_secrets
from redrive.access.sql.stored_secrets import look_at_secrets, rotate_secrets
from redrive.ledgers.sql.database import Database

kept = Table(
    "kept", MetaData(), Column("owner", Text, primary_key=True), Column("name", Text, primary_key=True),
    Column("secret", Text), Column("older", Text),
)  # fmt: skip
COLUMNS = (kept.c.secret, kept.c.older)
OLD, NEW = SecretBox([one := new_key()]), SecretBox([new_key(), one])


@pytest.fixture
async def store_of_secrets(database: Database) -> AsyncIterator[Database]:
    """Seven rows: some secrets in the clear, some sealed with the old key, one with the new one, and one that is not there."""
    await database.write(kept.metadata.create_all)
    values = ["plain 0", OLD.seal("old 1"), NEW.seal("new 2"), "plain 3", OLD.seal("old 4"), None, "plain 6"]
    rows = [
        {"owner": f"o{number // 2}", "name": f"n{number}", "secret": value, "older": None if number else "plain x"}
        for number, value in enumerate(values)
    ]
    await database.write(lambda connection: connection.execute(insert(kept), rows))
    yield database


async def opened(database: Database, box: SecretBox) -> list[str | None]:
    """All secrets of the first column, as this box opens them."""
    rows = await database.read(lambda connection: connection.execute(select(kept.c.secret).order_by(kept.c.name)).all())
    return [None if row.secret is None else box.open(row.secret) for row in rows]


EVERYTHING = ["plain 0", "old 1", "new 2", "plain 3", "old 4", None, "plain 6"]


async def test_all_are_sealed_with_the_first_key(store_of_secrets: Database, monkeypatch: pytest.MonkeyPatch):
    """In blocks of any size, with progress; a second time there is nothing left to do."""
    monkeypatch.setattr(stored_secrets, "ROWS_AT_ONCE", 2)
    before = await look_at_secrets(store_of_secrets, COLUMNS, NEW)
    assert (before.total, before.plain, before.older, before.unreadable, before.changed) == (7, 4, 2, 0, 0)
    blocks: list[int] = []
    done = await rotate_secrets(store_of_secrets, COLUMNS, NEW, blocks.append)
    assert (done.total, done.changed, blocks) == (7, 6, [2, 2, 2, 1])
    assert await opened(store_of_secrets, NEW) == EVERYTHING
    after = await look_at_secrets(store_of_secrets, COLUMNS, NEW)
    assert (after.plain, after.older, after.unreadable) == (0, 0, 0)
    assert (await rotate_secrets(store_of_secrets, COLUMNS, NEW)).changed == 0


async def test_one_that_was_broken_off_is_begun_again(store_of_secrets: Database, monkeypatch: pytest.MonkeyPatch):
    """What was sealed before stays so, and the rest follows."""
    monkeypatch.setattr(stored_secrets, "ROWS_AT_ONCE", 1)
    seen = 0

    def broken(amount: int) -> None:
        nonlocal seen
        seen += amount
        if seen == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await rotate_secrets(store_of_secrets, COLUMNS, NEW, broken)
    left = await look_at_secrets(store_of_secrets, COLUMNS, NEW)
    assert 0 < left.plain + left.older < 6
    assert await opened(store_of_secrets, NEW) == EVERYTHING
    assert (await rotate_secrets(store_of_secrets, COLUMNS, NEW)).changed == left.plain + left.older
    assert await opened(store_of_secrets, NEW) == EVERYTHING


async def test_a_secret_that_changes_meanwhile_is_left_alone(
    store_of_secrets: Database, monkeypatch: pytest.MonkeyPatch
):
    """Whoever sets another one between the look and the write has the last word."""
    replace = stored_secrets._replace

    def late(connection: Connection, *given: Any) -> int:
        connection.execute(update(kept).where(kept.c.name == "n0").values(secret="another"))
        return replace(connection, *given)

    monkeypatch.setattr(stored_secrets, "_replace", late)
    await rotate_secrets(store_of_secrets, [kept.c.secret], NEW)
    assert await opened(store_of_secrets, NEW) == ["another", *EVERYTHING[1:]]


async def test_what_no_key_opens_is_counted_and_left(store_of_secrets: Database):
    """The others are sealed all the same."""
    stranger = SecretBox([new_key()])
    done = await rotate_secrets(store_of_secrets, COLUMNS, stranger)
    assert (done.unreadable, done.changed) == (3, 4)
    assert (await look_at_secrets(store_of_secrets, COLUMNS, None)).unreadable == 7
    assert (await look_at_secrets(store_of_secrets, COLUMNS, NEW)).unreadable == 4
