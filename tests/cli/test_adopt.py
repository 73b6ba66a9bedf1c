"""`redrive adopt` and `redrive doctor` over a table of somebody's: what does not fit is said with its remedy."""

import asyncio
from collections.abc import Callable

import pytest

from redrive.core.table import LedgerTable, Words
from redrive.errors import TableError
from redrive.ledgers.adopt.check import adopt
from redrive.ledgers.open import open_database
from tests.cli.test_commands import Run, execute

EMAILS = (
    "CREATE TABLE emails (id integer PRIMARY KEY, recipient text NOT NULL, body text NOT NULL,"
    " status text NOT NULL DEFAULT 'pending', attempts integer NOT NULL DEFAULT 0, next_attempt_at {instant}, last_error text)"
)
MAPPING = LedgerTable(
    "emails",
    due="next_attempt_at",
    count="attempts",
    last_error="last_error",
    words=Words(waiting="pending", done="sent", dead="failed"),
)
APPLICATION = """
from redrive import LedgerTable, Redrive, Words
app = Redrive({url!r})
emails = app.adopt(LedgerTable("emails", {mapping}, words=Words(waiting="pending", done="sent", dead="failed")))
@emails.handler
def send(task): ...
"""
AS_IN_THE_GUIDE = 'due="next_attempt_at", count="attempts", last_error="last_error"'


@pytest.fixture
async def emails_url(url: str, store: str) -> str:
    """A database with the table of the guide, as it is before anything was done for redrive."""
    await execute(url, EMAILS.format(instant="text" if store == "sqlite" else "timestamptz"))
    return url


async def fit(url: str) -> None:
    """Run the migration that the mapping of the guide needs."""
    database = open_database(url)
    try:
        await database.read(adopt, MAPPING)
    except TableError as error:
        await execute(url, *error.migration)
    finally:
        await database.close()


def test_the_doctor_says_what_is_never_pruned(redrive: Run, emails_url: str, application: Callable[[str], str]):
    """A table that does not tell when a task ended is kept for ever, though the settings say 30 days: the doctor says so."""
    asyncio.run(fit(emails_url))
    path = application(APPLICATION.format(url=emails_url, mapping=AS_IN_THE_GUIDE))
    found = redrive("doctor", "--app", path, "--json").json["findings"]
    [said] = [one for one in found if one["name"] == "emails" and "kept for ever" in one["said"]]
    assert said["status"] == "notice"
    assert "tasks that are done" in said["said"]
    assert "RETENTION_DAYS=0" in said["remedy"]


def test_the_doctor_says_which_foreign_key_keeps_rows(redrive: Run, emails_url: str, application: Callable[[str], str]):
    """Rows that something points at are never pruned; the doctor names it."""
    asyncio.run(fit(emails_url))
    asyncio.run(execute(emails_url, "CREATE TABLE receipts (email integer REFERENCES emails (id))"))
    path = application(APPLICATION.format(url=emails_url, mapping=AS_IN_THE_GUIDE))
    found = redrive("doctor", "--app", path, "--json").json["findings"]
    assert [one for one in found if "rows that receipts.email points at" in one["said"]]
