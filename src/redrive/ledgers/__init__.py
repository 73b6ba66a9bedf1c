"""The homes of tasks, behind the ledger port.

`sql` is the one implementation, over any table; `sqlite` and `postgres` hold what differs between the two databases, behind
`sql/seam.py`; `pgmq` is a queue as a ledger; `adopt` reads a stranger's table. `aws` is a ledger of its own, over items
of DynamoDB.
"""

# Both dialects teach SQLAlchemy how to spell the expressions of `sql/times.py`: tables and indexes of either database may be
# compiled wherever anything of this room was imported. Neither needs its driver for that.
from redrive.ledgers.postgres import dialect as _postgres  # noqa: F401
from redrive.ledgers.sqlite import dialect as _sqlite  # noqa: F401
