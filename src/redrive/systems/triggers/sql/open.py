"""All stores of triggers over one database."""

from collections.abc import Awaitable, Callable, Sequence

from redrive.extend import Beside, Database, Gated
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers.ports import Stores
from redrive.systems.triggers.sql.beside import EventStatus
from redrive.systems.triggers.sql.desk import SqlEndpointBook
from redrive.systems.triggers.sql.endpoints import SqlEndpoints
from redrive.systems.triggers.sql.inbox import SqlInbox
from redrive.systems.triggers.sql.intake import SqlIntake
from redrive.systems.triggers.sql.limits import SqlCursorSecret, SqlRateLimits
from redrive.systems.triggers.sql.looks import SqlLoads, SqlLooks
from redrive.systems.triggers.sql.parked import ParkedEvents
from redrive.systems.triggers.values import Change


def open_sql_stores(
    database: Database, keeper: SecretKeeper, tell: Callable[[Sequence[Change]], None],
    ledger: Callable[[], Awaitable[Gated]], *, retries_max: int,
) -> tuple[Stores, Beside]:  # fmt: skip
    """The stores, and what the ledger of deliveries must write beside them. What has changed is told after each commit.

    `ledger` is that of the deliveries, opened when it is first asked for.
    """
    status = EventStatus(database, tell)
    parked = ParkedEvents(database, status, ledger)
    stores = Stores(
        clock=database,
        intake=SqlIntake(database, status, ledger, retries_max=retries_max),
        inbox=SqlInbox(database, status),
        loads=SqlLoads(database),
        endpoints=SqlEndpoints(database, status, keeper, ledger),
        book=SqlEndpointBook(database),
        looks=SqlLooks(database),
        limits=SqlRateLimits(database),
        cursor_secret=SqlCursorSecret(database),
        queue_parked=parked.queue,
        parked=parked.amounts,
    )
    return stores, status
