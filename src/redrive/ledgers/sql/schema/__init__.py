"""redrive's own tables, each in the file of its idea. Migrations create them; a test holds the two equal on both databases."""

from redrive.ledgers.sql.schema.base import NAMES, metadata
from redrive.ledgers.sql.schema.figures import cause, census, dead, failing, kind_minute, minute, sample
from redrive.ledgers.sql.schema.gates import GATE_HOLDS, gate, gate_parked, gate_rule, gate_span
from redrive.ledgers.sql.schema.operations import FATES_COUNTED, OPEN, edit, operation, operation_task
from redrive.ledgers.sql.schema.people import alert, audit, deed, key, session
from redrive.ledgers.sql.schema.tasks import EFFECT_ASKED, attempt, effect, progress, result, stack, stop, task
from redrive.ledgers.sql.schema.upkeep import partition, turn, worker, works_with

__all__ = [
    "EFFECT_ASKED",
    "FATES_COUNTED",
    "GATE_HOLDS",
    "NAMES",
    "OPEN",
    "alert",
    "attempt",
    "audit",
    "cause",
    "census",
    "dead",
    "deed",
    "edit",
    "effect",
    "failing",
    "gate",
    "gate_parked",
    "gate_rule",
    "gate_span",
    "key",
    "kind_minute",
    "metadata",
    "minute",
    "operation",
    "operation_task",
    "partition",
    "progress",
    "result",
    "sample",
    "session",
    "stack",
    "stop",
    "task",
    "turn",
    "worker",
    "works_with",
]
