"""The door for systems that keep what they own in items of DynamoDB: heads, their parts, what follows from them, and items beside them.

What a `Beside` writes in the commits of a ledger over SQL, a `Follower` answers as values, and the ledger writes it in the same write.
`Update`, `put` and their like build requests; `Dynamo` sends them, and asks again where that is right.
"""

from redrive.ledgers.aws.attributes import Item, Key, decode, from_iso, from_item, to_iso
from redrive.ledgers.aws.client import Dynamo, RefusedError
from redrive.ledgers.aws.expressions import Action, Delete, Update, delete, put, put_new, put_over, query
from redrive.ledgers.aws.follow import Change as HeadChange
from redrive.ledgers.aws.follow import FailedPart, Followed, Follower
from redrive.ledgers.aws.heads import Head, Part, head_from, head_key, part_number, split_id, task_id
from redrive.ledgers.aws.history import MINUTE_SHARDS, act_action, audit_action, minute_action
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.objects import NAMES_MAX, Objects
from redrive.ledgers.aws.owner import Amendment, Farewell
from redrive.ledgers.aws.queue import Queue
from redrive.ledgers.gather import Gather

__all__ = [
    "Action",
    "Amendment",
    "Delete",
    "Dynamo",
    "DynamoLedger",
    "FailedPart",
    "Farewell",
    "Followed",
    "Follower",
    "Gather",
    "Head",
    "HeadChange",
    "Item",
    "Key",
    "MINUTE_SHARDS",
    "NAMES_MAX",
    "Objects",
    "Part",
    "Queue",
    "RefusedError",
    "Update",
    "act_action",
    "audit_action",
    "decode",
    "delete",
    "from_iso",
    "from_item",
    "head_from",
    "head_key",
    "minute_action",
    "part_number",
    "put",
    "put_new",
    "put_over",
    "query",
    "split_id",
    "task_id",
    "to_iso",
]
