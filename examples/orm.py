"""Rows of an SQLAlchemy model that are tried until they are sent: `python -m examples.orm`.

`docs/guides/sqlalchemy.md` walks through it.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from sqlalchemy import DateTime, Enum, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from redrive import LedgerTable, Redrive, Task
from redrive.errors import TableError
from redrive.ports import Clock
from redrive.testing import VirtualClock, drain, temporary_url


class Base(DeclarativeBase):
    """The models of this application. Times have a zone."""

    type_annotation_map = {datetime: DateTime(timezone=True)}


class Email(Base):
    """A mail to be sent: as many applications have it, with a status, a count and a due time."""

    __tablename__ = "email"

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str]
    status: Mapped[str] = mapped_column(Enum("pending", "sent", "failed"), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    send_after: Mapped[datetime | None]
    last_error: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    claim_id: Mapped[UUID | None]


EMAILS = LedgerTable.of(Email)


def build(url: str, deliver: Callable[[str], None], *, clock: Clock | None = None) -> Redrive:
    """The application: the model's table is the queue."""
    app = Redrive(url, clock=clock)
    emails = app.adopt(EMAILS)

    @emails.handler(retries=3, wait=[1, 5, 15])
    def send(task: Task) -> None:
        deliver(task.payload["recipient"])

    return app


async def migrate(app: Redrive) -> None:
    """Make the indexes that redrive asks for. With Alembic, put the statements into a migration of yours instead."""
    try:
        await app.open()
    except TableError as missing:
        async with Redrive(app.store.url) as other, other.database.transaction() as transaction:
            for statement in missing.migration:
                await transaction.connection.execute(text(statement))


async def main(say: Callable[[str], None] = print) -> None:
    """One mail whose server is down at first."""
    url, clock, tries = temporary_url(), VirtualClock(), list[str]()
    engine = create_engine(url)
    Base.metadata.create_all(engine)

    def deliver(recipient: str) -> None:
        tries.append(recipient)
        if len(tries) == 1:
            raise ConnectionError("mail server down")

    app = build(url, deliver, clock=clock)
    await migrate(app)
    with Session(engine) as session:  # your own code, as before
        session.add(Email(recipient="ada@example.org"))
        session.commit()
    async with app:
        await drain(app, clock=clock)
    with Session(engine) as session:
        mail = session.get_one(Email, 1)
        say(f"{mail.recipient}: {mail.status} after {len(tries)} tries, the first failed with {mail.last_error}")
    engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
