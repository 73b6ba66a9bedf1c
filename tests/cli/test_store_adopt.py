"""`redrive adopt` and `redrive doctor` over a table of somebody's: what does not fit is said with its remedy."""

import asyncio
import re
from collections.abc import Callable

import pytest

from redrive.core.table import LedgerTable, Words
from redrive.errors import TableError
from redrive.ledgers.adopt.check import adopt
from redrive.ledgers.open import open_database

from .said import Said, execute

Run = Callable[..., Said]
ORDERS = """
    CREATE TABLE orders (
        id integer PRIMARY KEY, status text NOT NULL CHECK (status IN ('pending', 'done', 'failed')),
        retry_count integer NOT NULL DEFAULT 0
    )"""
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


def test_adopt_guesses_only_what_is_sure(redrive: Run, emails_url: str):
    """The table of the guide: its body is not JSON, so it is not the payload, and no statement updates a row."""
    asyncio.run(execute(emails_url, "INSERT INTO emails (id, recipient, body) VALUES (1, 'ada@example.com', 'Hello')"))
    said = redrive("adopt", "emails", "--database", emails_url, "--json")
    assert said.code == 1
    assert "payload" not in said.json["mapping"]
    assert "waiting='pending'" in said.json["mapping"]
    assert [doubt for doubt in said.json["doubts"] if "means done and dead is not known" in doubt]
    assert not [statement for statement in said.json["migration"] if "UPDATE" in statement.upper()]
    assert "# yours to say" in redrive("adopt", "emails", "--database", emails_url).out


def test_adopt_asks_for_words_instead_of_inventing_them(redrive: Run, url: str):
    """Numbers mean nothing to anybody else: the words stay open, and neither an index nor a notice is made of words that nobody said."""
    asyncio.run(execute(url, "CREATE TABLE sms (id integer PRIMARY KEY, status integer, due_at text)", "INSERT INTO sms (id, status) VALUES (1, 0), (2, NULL)"))  # fmt: skip
    said = redrive("adopt", "sms", "--database", url, "--json").json
    assert "words=Words(waiting=..., done=..., dead=...)" in said["mapping"]
    assert not [one for one in said["migration"] if "'waiting'" in one or "_first_idx" in one]
    assert [one for one in said["problems"] if "they hold your words" in one]
    assert said["notices"] == ["rows without a 'status' (NULL) are left alone"]


def test_adopt_checks_what_an_application_declares(redrive: Run, emails_url: str, application: Callable[[str], str]):
    """A wrong mapping is printed as it should be, with the migration that it needs then; a right one fits."""
    asyncio.run(execute(emails_url, "INSERT INTO emails (id, recipient, body) VALUES (1, 'ada@example.com', 'Hello')"))
    wrong = 'due="due_at", count="tries", payload="body", last_error="last_error"'
    path = application(APPLICATION.format(url=emails_url, mapping=wrong))
    said = redrive("adopt", "--app", path, "--json")
    assert said.code == 1
    [emails] = said.json
    assert "column 'due_at' (due) is missing" in emails["problems"]
    assert "due='next_attempt_at'" in emails["mapping"]
    assert "count='attempts'" in emails["mapping"]
    assert "payload" not in emails["mapping"]
    assert [notice for notice in emails["notices"] if "holds text that is not JSON" in notice]
    asyncio.run(execute(emails_url, *emails["migration"]))
    assert "the mapping as it should be" in redrive("adopt", "--app", path).out


def test_adopt_says_that_a_declared_mapping_fits(redrive: Run, emails_url: str, application: Callable[[str], str]):
    """What the application declares is right: exit code 0."""
    asyncio.run(fit(emails_url))
    path = application(APPLICATION.format(url=emails_url, mapping=AS_IN_THE_GUIDE))
    said = redrive("adopt", "--app", path)
    assert (said.code, "emails fits" in said.out) == (0, True)


def test_adopt_needs_something_to_look_at(redrive: Run, emails_url: str, application: Callable[[str], str]):
    """Neither a table nor an application, or a table that the application does not adopt, is a usage error."""
    nothing = redrive("adopt", "--database", emails_url)
    assert (nothing.code, "name a table, or your application with --app" in nothing.err) == (2, True)
    path = application(APPLICATION.format(url=emails_url, mapping=AS_IN_THE_GUIDE))
    other = redrive("adopt", "letters", "--app", path)
    assert (other.code, "adopts no such table" in other.err) == (2, True)


def test_the_doctor_says_which_rows_are_left_alone(redrive: Run, emails_url: str, application: Callable[[str], str]):
    """A word that nobody mapped is no problem, and is said."""
    asyncio.run(fit(emails_url))
    asyncio.run(execute(emails_url, "INSERT INTO emails (id, recipient, body, status) VALUES (1, 'a', 'b', 'bounced')"))
    path = application(APPLICATION.format(url=emails_url, mapping=AS_IN_THE_GUIDE))
    found = redrive("doctor", "--app", path, "--json").json["findings"]
    assert [one["status"] for one in found if "rows whose 'status' is 'bounced' are left alone" in one["said"]] == [
        "notice"
    ]


@pytest.fixture
async def orders_url(url: str) -> str:
    """A database with a table of somebody's."""
    await execute(url, ORDERS)
    return url


def test_adopt_prints_what_is_missing_until_it_fits(redrive: Run, orders_url: str):
    """The printed migration, run as it stands, makes the table fit."""
    first = redrive("adopt", "orders", "--database", orders_url, "--json")
    assert first.code == 1
    assert first.json["fits"] is False
    assert "LedgerTable(" in first.json["mapping"]
    for _ in range(3):  # columns first, then what stands on them
        said = redrive("adopt", "orders", "--database", orders_url, "--json").json
        if said["fits"]:
            break
        asyncio.run(execute(orders_url, *said["migration"]))
    fits = redrive("adopt", "orders", "--database", orders_url)
    assert fits.code == 0
    assert "orders fits" in fits.out


def test_adopt_in_words(redrive: Run, orders_url: str):
    """For people: the mapping to paste, what is missing, the migration."""
    said = redrive("adopt", "orders", "--database", orders_url)
    assert said.code == 1
    assert "-- column 'lease_until' (lease_until) is missing" in said.out
    assert re.search(r"^ALTER TABLE orders ADD COLUMN .*;$", said.out, re.MULTILINE)


def test_adopt_of_no_table(redrive: Run, url: str):
    """A table that is not there is a problem in one line."""
    said = redrive("adopt", "nothing", "--database", url)
    assert said.code == 1
    assert "there is no such table" in said.err
