"""The homes of tasks, behind the ledger port.

`sql` is the one implementation, over any table; `sqlite` and `postgres` hold what differs between the two databases, behind
`sql/seam.py`; `pgmq` is a queue as a ledger; `adopt` reads a stranger's table. `aws` is a ledger of its own, over items
of DynamoDB.
"""

# Tables and indexes of either database may be compiled wherever anything of this room was imported: SQLAlchemy is taught both
# spellings at once. What else a dialect needs is imported when a database of its kind is opened.
from redrive.ledgers.postgres import spelling as _postgres  # noqa: F401
from redrive.ledgers.sqlite import spelling as _sqlite  # noqa: F401
