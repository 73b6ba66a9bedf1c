"""What time it is, by the clock that the ledger goes by."""

from datetime import datetime

from sqlalchemy import Connection, func, select

from redrive.extend import Database, Instant


def present(database: Database, connection: Connection) -> datetime:
    """The instant: the server's where the database has a clock of its own, else this process's, or a test's."""
    if not database.server_clock:
        return database.now()
    now: datetime = connection.execute(select(func.statement_timestamp(type_=Instant))).scalar_one()
    return now
