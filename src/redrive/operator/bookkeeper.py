"""Keeping the books that charts are drawn from: counting every ledger when it is due, and folding what grows old. And linking the audit.

Any number of services may do this side by side on one store: turns see to it that each chore is done once.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

from redrive.core.durations import format_duration
from redrive.errors import UsageError
from redrive.operator.headcount import Headcount
from redrive.operator.ports import Census, Chain, CountedKinds, Figures, Gates, OperatorLedger, Roster, Turns
from redrive.ports import Actor

EVERY = timedelta(seconds=1)
"""How often a bookkeeper looks whether something is due."""
FOLD_EVERY = timedelta(minutes=1)
PRUNE_AUDIT_EVERY = timedelta(days=1)
"""Each time leaves a line."""


class Books(Protocol):
    """What a bookkeeper needs of a store."""

    @property
    def figures(self) -> Figures:
        """Where the minutes are folded."""
        ...

    @property
    def roster(self) -> Roster:
        """Who works."""
        ...

    @property
    def kinds(self) -> CountedKinds:
        """What is counted of kinds."""
        ...

    @property
    def chain(self) -> Chain:
        """Where lines of the audit get their place."""
        ...

    @property
    def turns(self) -> Turns:
        """Whose turn it is."""
        ...

    def census(self, ledger: OperatorLedger) -> Census:
        """Who counts a ledger."""
        ...

    def gates(self, ledger: OperatorLedger) -> Gates:
        """Who writes down what its gates do; `UsageError` where it has none."""
        ...

    async def present(self) -> datetime:
        """The instant."""
        ...


class Bookkeeper:
    """The books of one store. `ledgers` gives those that are worked on here, each with what is counted there besides its tasks.

    Lines of the audit go when they are older than `audit_kept`; None keeps them for ever.
    """

    def __init__(
        self,
        books: Books,
        ledgers: Callable[[], Awaitable[Sequence[tuple[OperatorLedger, Headcount | None]]]],
        *,
        audit_kept: timedelta | None = None,
    ) -> None:
        self._books = books
        self._ledgers = ledgers
        self._audit_kept = audit_kept

    async def round(self) -> int:
        """Do what is due; how many ledgers were counted. One that cannot be counted does not keep the others waiting."""
        counted, problem = 0, None
        for ledger, headcount in await self._ledgers():
            try:
                with suppress(UsageError):
                    await self._books.gates(ledger).record()
                if await self._books.census(ledger).take_if_due():
                    counted += 1
                    if headcount is not None:
                        amounts, oldest = await headcount.amounts(), await ledger.oldest_due()
                        await self._books.figures.sample(headcount.name, amounts, oldest)
            except Exception as error:  # told after the others had their turn
                problem = error
        try:
            await self._keep_audit()
        except Exception as error:
            problem = error
        if await self._books.turns.take("fold", FOLD_EVERY):
            await self._books.figures.fold(await self._books.present())
            await self._books.kinds.fold(await self._books.present())
            await self._books.roster.forget()
            await self._books.turns.forget()
        if problem is not None:
            raise problem
        return counted

    async def _keep_audit(self) -> None:
        await self._books.chain.link()
        if self._audit_kept is not None and await self._books.turns.take("prune audit", PRUNE_AUDIT_EVERY):
            by = Actor(name="keeper", reason=f"older than {format_duration(self._audit_kept)}")
            with suppress(UsageError):  # there is no chain here
                await self._books.chain.prune(self._audit_kept, by=by)
