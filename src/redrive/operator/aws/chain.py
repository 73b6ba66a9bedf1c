"""The chain of the audit over items: there is none."""

from datetime import timedelta

from redrive.errors import UsageError
from redrive.operator.chain import ChainHead, ChainVerdict
from redrive.operator.ports import ReadProgress
from redrive.ports import Actor

NO_CHAIN = (
    "the audit is not a chain on DynamoDB: its index lists lines a little late and in no order that two processes agree on; "
    "send the table's stream to where nobody can change it"
)


class NoChain:
    """See `Chain`."""

    async def link(self) -> int:
        """See `Chain.link`: there is nothing to do."""
        return 0

    async def head(self) -> ChainHead:
        """See `Chain.head`: refused."""
        raise UsageError(NO_CHAIN)

    async def unlinked(self) -> int:
        """See `Chain.unlinked`: refused."""
        raise UsageError(NO_CHAIN)

    async def verify(self, *, head: str | None = None, progress: ReadProgress | None = None) -> ChainVerdict:  # noqa: ARG002
        """See `Chain.verify`: refused."""
        raise UsageError(NO_CHAIN)

    async def prune(self, older_than: timedelta, *, by: Actor) -> int:  # noqa: ARG002
        """See `Chain.prune`: refused."""
        raise UsageError(NO_CHAIN)
