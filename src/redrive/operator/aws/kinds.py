"""Kinds on DynamoDB: nothing is counted of them, since all tasks there are deliveries."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from redrive.engine.tally import KindCounts
from redrive.operator.kinds import NOT_COUNTED, KindsSeen, KindSums, VersionSeen


class NoKinds:
    """See `CountedKinds`: none are counted."""

    note: str | None = NOT_COUNTED

    async def write(self, counts: Sequence[KindCounts], *, worker: str, version: str | None) -> None:
        """See `CountedKinds.write`: nothing is kept."""

    async def look(self) -> KindsSeen:
        """See `CountedKinds.look`."""
        return KindsSeen()

    async def sums(self, span: timedelta) -> dict[tuple[str, str], KindSums]:  # noqa: ARG002
        """See `CountedKinds.sums`."""
        return {}

    async def versions(self, ledger: str, kind: str, **_: object) -> list[VersionSeen]:  # noqa: ARG002
        """See `CountedKinds.versions`."""
        return []

    async def fold(self, now: datetime) -> int:  # noqa: ARG002
        """See `CountedKinds.fold`."""
        return 0
