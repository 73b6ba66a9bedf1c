"""Keeping the books that charts are drawn from: counting every ledger when it is due, and folding what grows old.

Any number of services may do this side by side on one database: turns see to it that each chore is done once.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from redrive.ledgers.sql.database import Database
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.operator.census import Census
from redrive.operator.figures import Figures
from redrive.operator.headcount import Headcount, sample
from redrive.operator.turns import take_turn

EVERY = timedelta(seconds=1)
"""How often a bookkeeper looks whether something is due."""
FOLD_EVERY = timedelta(minutes=1)


class Bookkeeper:
    """The books of one database. `ledgers` gives those that are worked on here, each with what is counted there besides its tasks."""

    def __init__(
        self, database: Database, ledgers: Callable[[], Awaitable[Sequence[tuple[SqlLedger, Headcount | None]]]]
    ) -> None:
        self._database = database
        self._ledgers = ledgers

    async def round(self) -> int:
        """Do what is due; how many ledgers were counted. One that cannot be counted does not keep the others waiting."""
        counted, problem = 0, None
        for ledger, headcount in await self._ledgers():
            try:
                if await Census(ledger).take_if_due():
                    counted += 1
                    if headcount is not None:
                        await sample(self._database, headcount, await ledger.oldest_due())
            except Exception as error:  # told after the others had their turn
                problem = error
        if await take_turn(self._database, "fold", FOLD_EVERY):
            now = await self._database.read(self._database.present)
            await Figures(self._database).fold(now)
        if problem is not None:
            raise problem
        return counted
