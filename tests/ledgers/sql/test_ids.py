"""Ids that redrive makes, where a table has a column for them and makes none itself."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import LedgerTable, Redrive
from redrive.errors import TableError
from redrive.lane import make_task
from redrive.ledgers.sql.ids import uuid7, uuid7s
from redrive.ledgers.sql.migrate import migrate
from tests.ledgers.homes import execute

INBOX = LedgerTable("inbox", key="name", id="id", kind="kind", payload="body", counts="attempts", count="attempts")


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(9990, 1, 1), timezones=st.just(UTC)),
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=1000)),
    st.integers(0, 65_534),
)
def test_their_order_is_the_order_of_time(at: datetime, span: timedelta, serial: int):
    """A later instant gives a larger id, and so does the next of the same instant; as numbers and as text."""
    earlier, following, later = uuid7(at, serial), uuid7(at, serial + 1), uuid7(at + span)
    assert earlier < following < later
    assert str(earlier) < str(following) < str(later)
    assert (earlier.version, earlier.variant) == (7, "specified in RFC 4122")


def test_no_two_are_the_same():
    """Also of the same instant and place: processes know nothing of each other."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert len({uuid7(at) for _ in range(10_000)}) == 10_000


def test_many_are_made_as_one_is():
    """In the order of their serial numbers, beside those that were made one by one, and none is the same as another."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    made = uuid7s(at, range(1, 1001))
    assert sorted(made) == made
    assert len(set(made)) == 1000
    assert uuid7(at, 0) < made[0] < uuid7(at, 2) < made[2]
    assert {(one.version, one.variant) for one in made} == {(7, "specified in RFC 4122")}
    assert uuid7s(at, ()) == []


@pytest.mark.parametrize("type_", ["text", "uuid", "default"])
async def test_a_table_without_a_default_gets_ids(empty_url: str, store: str, type_: str):
    """In the form of its column and in the order of adding; a default of the table's own is left to it."""
    own = "uuid" if store == "postgres" else "char(36)"  # SQLite has no type for it
    column = {"text": "text PRIMARY KEY", "uuid": f"{own} PRIMARY KEY", "default": "text PRIMARY KEY DEFAULT 'mine'"}[
        type_
    ]
    app = Redrive(empty_url, durable=False)
    try:
        await migrate(app.database)
        await execute(
            app.database,
            [f"CREATE TABLE inbox (id {column}, name text NOT NULL UNIQUE, kind text NOT NULL, body text NOT NULL)"],
        )
        lane = app.adopt(INBOX)
        with pytest.raises(TableError) as caught:
            await app.open()
        await execute(app.database, caught.value.migration)
        if type_ == "default":
            assert (await lane.add("a", key="k")).id == "mine"
            return
        added = await lane.add_many([make_task("a", key=f"k{number}") for number in range(50)])
        ids = [one.id for one in added]
        assert all(isinstance(one, UUID if (store, type_) == ("postgres", "uuid") else str) for one in ids)
        assert ids == sorted(ids)
        again = await lane.add("a", key="k7")
        assert (again.new, again.id) == (False, ids[7])
        assert (await lane.get_by_id(ids[7])).key == "k7"
    finally:
        await app.close()
