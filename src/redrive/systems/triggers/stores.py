"""The stores of triggers, over whatever store the application has."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from redrive import Redrive
from redrive.systems.kit.secret_keeper import SecretKeeper
from redrive.systems.triggers.ports import Stores
from redrive.systems.triggers.settings import TriggerSettings
from redrive.systems.triggers.values import Change


def open_stores(
    app: Redrive,
    settings: TriggerSettings,
    keeper: SecretKeeper,
    tell: Callable[[Sequence[Change]], None],
    ledger: Callable[[], Awaitable[Any]],
) -> tuple[Stores, Mapping[str, Any]]:
    """The stores, and what the application must be told when it adopts their deliveries. What has changed is told after each commit.

    `ledger` is that of the deliveries, opened when it is first asked for.
    """
    retries_max, store = settings.max_retry_attempts, app.store
    if store.keeps_tasks:
        from redrive.systems.triggers.sql.open import open_sql_stores

        stores, beside = open_sql_stores(store.database, keeper, tell, ledger, retries_max=retries_max)
        return stores, {"beside": beside}
    from redrive.systems.triggers.aws.open import open_item_stores

    items: Any = store
    stores, kept = open_item_stores(
        items.dynamo,
        items.queue,
        items.objects,
        items.clock,
        items.keys.read_keys,
        keeper,
        tell,
        retries_max=retries_max,
    )
    return stores, {"ledger": kept}
