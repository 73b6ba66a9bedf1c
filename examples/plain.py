"""Orders in a program without an event loop: `python -m examples.plain`. `docs/guides/sync.md` walks through it."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing

from sqlalchemy import make_url

from redrive import Redrive, Task
from redrive.testing import drain, temporary_url


def order(app: Redrive, shop: sqlite3.Connection, number: int) -> None:
    """An order and its invoice, both or neither."""
    with shop:  # commits at the end of the block, and rolls back if it raises
        shop.execute("INSERT INTO orders VALUES (?)", [number])
        app.add_sync("send_invoice", {"order": number}, key=f"invoice-{number}", within=shop)
        if number == 13:
            raise ValueError("we do not sell that")


def main(say: Callable[[str], None] = print) -> None:
    """Two orders, of which one is refused, and a task that stands alone."""
    url = temporary_url()
    app = Redrive(url)

    @app.handler
    def send_invoice(task: Task) -> None:
        say(f"invoice of order {task.payload['order']}")

    @app.handler
    def close_day(_task: Task) -> None:
        say("the day is closed")

    app.add_sync(close_day, key="2030-01-01", delay=0)
    with closing(sqlite3.connect(str(make_url(url).database))) as shop:
        shop.execute("CREATE TABLE orders (number integer PRIMARY KEY)")
        order(app, shop, 7)
        try:
            order(app, shop, 13)
        except ValueError as error:
            say(str(error))
    asyncio.run(_work(app))  # in real life a process of its own: `redrive worker shop:app`


async def _work(app: Redrive) -> None:
    async with app:
        await drain(app)


if __name__ == "__main__":
    main()
