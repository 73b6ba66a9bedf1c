"""E-mails in a table that was there before redrive, with a status and a count of its own: `python -m examples.adopted`.

`docs/guides/adopt.md` walks through it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing

from sqlalchemy import make_url

from redrive import LedgerTable, Redrive, Task, Words
from redrive.errors import TableError
from redrive.testing import VirtualClock, drain, temporary_url

TABLE = """
CREATE TABLE emails (
    id integer PRIMARY KEY,
    recipient text NOT NULL,
    status text NOT NULL DEFAULT 'pending',   -- pending, sent, failed
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at text,
    last_error text
)
"""
EMAILS = LedgerTable(
    "emails",
    due="next_attempt_at",
    count="attempts",
    last_error="last_error",
    words=Words(waiting="pending", done="sent", dead="failed"),
)


async def main(say: Callable[[str], None] = print) -> None:
    """Three mails: one is sent at once, one at its second try, one never."""
    url, clock = temporary_url(), VirtualClock()
    with closing(sqlite3.connect(str(make_url(url).database), isolation_level=None)) as shop:
        shop.execute(TABLE)
        shop.executemany("INSERT INTO emails (recipient) VALUES (?)", [["ada"], ["bob"], ["nobody"]])
        await _adopt(url, shop, say)

        app = Redrive(url, clock=clock)
        emails = app.adopt(EMAILS)

        @emails.handler(retries=2, wait="30s")
        async def send(task: Task) -> None:
            recipient = task.payload["recipient"]
            if recipient == "nobody" or (recipient == "bob" and task.failures == 0):
                raise ConnectionError(f"no server for {recipient}")

        async with app:
            await drain(app, clock=clock)
        for row in shop.execute("SELECT recipient, status, attempts, last_error FROM emails ORDER BY id"):
            say(f"{row[0]}: {row[1]}, {row[2]} failed tries, {row[3]}")


async def _adopt(url: str, shop: sqlite3.Connection, say: Callable[[str], None]) -> None:
    """Run the migration that redrive asks for. It adds columns and indexes and updates no row; yours belongs with your own migrations."""
    app = Redrive(url)
    app.adopt(EMAILS)
    try:
        await app.open()
    except TableError as missing:
        for statement in missing.migration:
            say(" ".join(statement.split()).partition("(")[0].strip())
            shop.execute(statement)
    finally:
        await app.close()


if __name__ == "__main__":
    asyncio.run(main())
