"""For a system that writes SQL of its own and must be fast: many callers in one commit, many rows in one statement.

`Gather` joins callers, `Batch` and `one_of` take lists of any length in statements that are planned once, and a statement that is
`Compiled` is written once and run by the driver; `portions` says how much of what may be large goes into one. `comparable` orders times
as instants however they are stored, and `Instant` stores them small; `JsonText` keeps JSON on SQLite as it was written. `run_within` and `sync_connection` work in a caller's own
transaction, `after_commit` says what is durable, `Changes` what was written since, `may_show` finds candidates for a text in redacted errors, and `uuid7` and `uuid7s` make ids that
sort by their time.
"""

from redrive.ledgers.gather import Gather
from redrive.ledgers.sql.batches import Batch
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.conditions import may_show
from redrive.ledgers.sql.database import Changes, after_commit, run_within, sync_connection
from redrive.ledgers.sql.ids import uuid7, uuid7s
from redrive.ledgers.sql.json_text import JsonText
from redrive.ledgers.sql.lists import one_of
from redrive.ledgers.sql.portions import portions
from redrive.ledgers.sql.times import Instant, comparable

__all__ = [
    "Batch",
    "Changes",
    "Compiled",
    "Gather",
    "Instant",
    "JsonText",
    "after_commit",
    "comparable",
    "may_show",
    "one_of",
    "portions",
    "run_within",
    "sync_connection",
    "uuid7",
    "uuid7s",
]
