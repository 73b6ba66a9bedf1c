"""How long a look at a ledger may take: whoever waits for a page is refused early, code that asks for all of it is not."""

from collections.abc import Callable
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from redrive.ledgers.sql.database import Database

LOOK_WITHIN = timedelta(seconds=2)
"""How long a page may take: an index answers in milliseconds, and whoever waits longer should search in the background."""
COUNT_WITHIN = timedelta(seconds=10)

P = ParamSpec("P")
R = TypeVar("R")


class Reads:
    """Reads of one database, each limited in time, or none of them."""

    def __init__(self, database: Database, *, limited: bool) -> None:
        self._database = database
        self.limited = limited

    async def page(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Read some rows; `TooSlowError` if that takes too long."""
        if not self.limited:
            return await self._database.read(run, *args, **kwargs)
        return await self._database.look(LOOK_WITHIN, run, *args, **kwargs)

    async def count(self, run: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Count rows; `TooSlowError` if that takes too long."""
        if not self.limited:
            return await self._database.read(run, *args, **kwargs)
        return await self._database.look(COUNT_WITHIN, run, *args, **kwargs)
