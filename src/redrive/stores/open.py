"""From a URL to a store."""

from redrive.errors import SettingsError, needs_extra
from redrive.ledgers.open import open_database
from redrive.ports import Clock
from redrive.stores.port import Store
from redrive.stores.sql import SqlStore

ITEMS = "dynamodb://"


def open_store(url: str, *, clock: Clock | None = None, durable: bool = True) -> Store:
    """The store behind a URL; nothing is connected yet. `clock` and `durable` as in `open_database`."""
    if not isinstance(url, str):
        raise SettingsError(f"the URL of a store is text, such as sqlite:///work.db, not {url!r}")
    if url.startswith(ITEMS):
        with needs_extra("DynamoDB", "aws"):
            from redrive.stores.aws import ItemStore
        return ItemStore(url, clock=clock)
    return SqlStore(open_database(url, clock=clock, durable=durable))
