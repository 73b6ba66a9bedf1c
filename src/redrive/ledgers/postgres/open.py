"""From a URL to the form of PostgreSQL that it asks for."""

from redrive.ledgers.postgres.address import read_address
from redrive.ledgers.postgres.database import PostgresDatabase
from redrive.ports import Clock


def open_postgres(url: str, *, clock: Clock | None = None) -> PostgresDatabase:
    """The database behind a URL; nothing is connected yet."""
    address = read_address(url)
    if not address.portable:
        return PostgresDatabase(address, clock=clock)
    from redrive.ledgers.postgres.portable import PortableDatabase

    return PortableDatabase(address, clock=clock)
