"""A command bus: send a command, a worker somewhere handles it, and everything is on record. See docs/systems/commands.md."""

from redrive.systems.commands.errors import (
    BusinessRuleError,
    CommandBusError,
    CommandNotFoundError,
    DuplicateBatchError,
    DuplicateCommandError,
    HandlerAlreadyRegisteredError,
    InvalidOperationError,
    PermanentCommandError,
    TransientCommandError,
)
from redrive.systems.commands.policy import RetryPolicy
from redrive.systems.commands.registry import Registry, handler, handles, register
from redrive.systems.commands.settings import CommandSettings
from redrive.systems.commands.system import Commands
from redrive.systems.commands.values import (
    AuditEvent,
    BatchRecord,
    BatchStatus,
    Command,
    CommandRecord,
    CommandStatus,
    NewCommand,
    Outcome,
    Reply,
)
from redrive.systems.commands.work import CommandContext
from redrive.systems.commands.worker import CommandWorker

__all__ = [
    "AuditEvent",
    "BatchRecord",
    "BatchStatus",
    "BusinessRuleError",
    "Command",
    "CommandBusError",
    "CommandContext",
    "CommandNotFoundError",
    "CommandRecord",
    "CommandSettings",
    "CommandStatus",
    "Commands",
    "DuplicateBatchError",
    "DuplicateCommandError",
    "HandlerAlreadyRegisteredError",
    "InvalidOperationError",
    "NewCommand",
    "Outcome",
    "PermanentCommandError",
    "Registry",
    "Reply",
    "RetryPolicy",
    "TransientCommandError",
    "CommandWorker",
    "handler",
    "handles",
    "register",
]
