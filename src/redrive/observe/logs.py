"""Structured logs: one event per transition, with the same field names everywhere. Payloads are never logged."""

import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, assert_never

import orjson
import structlog

from redrive.core.decide import SUSPECT, Settlement
from redrive.core.failure import describe_error, redact
from redrive.core.operation import OperationState
from redrive.core.stack import Stack, read_stack, stack_lines
from redrive.core.states import State
from redrive.core.task import Claim
from redrive.core.visible import visible
from redrive.errors import SettingsError
from redrive.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    LedgerAway,
    LedgerBack,
    LoopBlocked,
    OperationChanged,
    SettleFailed,
    SettleLost,
    TaskAdded,
    TasksChanged,
    TasksPruned,
    ThreadsLeft,
)

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS = ("json", "pretty")
STACKS_MAX = 1000
HEXADECIMAL = "0123456789abcdef-"
WORD_CHARS_MAX = 64
WORDS_REMEMBERED_MAX = 2048
NAMES_REMEMBERED_MAX = 1024
TIME_OF_LINE = "@timestamp"
"""A line that tells of a change brings the time of the change itself; all others get the present."""


def configure_logs(*, service: str = "redrive", level: str = "info", format: str = "json") -> None:
    """Set structlog up for a service of ours. A library user configures structlog as they like and does not call this."""
    if level.lower() not in LEVELS:
        raise SettingsError(f"LOG_LEVEL must be one of {', '.join(LEVELS)}, not {level!r}")
    if format not in FORMATS:
        raise SettingsError(f"LOG_FORMAT must be json or pretty, not {format!r}")
    render: Any = (
        _as_json
        if format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), timestamp_key=TIME_OF_LINE)
    )
    structlog.configure(
        # What we say ourselves, such as our name, needs no looking through.
        processors=[_completed(visible(redact(service))), render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level.lower()]),
        # A line and its end in one write: others write there too, from other threads.
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    # It prints a traceback for each broken connection that it throws away; an outage is one `ledger_away` instead.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    _take_in_the_rest()


class ToStructlog(logging.Handler):
    """Lines of the standard library's logging, ours and those of libraries, in the form of all others."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        try:
            log: Any = structlog.get_logger(system="engine" if record.name == "redrive" else record.name)
            log.log(record.levelno, "warned", message=record.getMessage(), exc_info=record.exc_info or None)
        except Exception:
            self.handleError(record)


def _take_in_the_rest() -> None:
    """Let nothing else of this process reach the log in a form of its own. Loggers that the application sets up stay as they are."""
    handler = ToStructlog(logging.WARNING)
    for name in ("redrive", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    logging.lastResort = handler
    logging.captureWarnings(True)
    sys.excepthook = _crashed
    threading.excepthook = lambda told: _crashed(told.exc_type, told.exc_value, told.exc_traceback)


def _crashed(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    log: Any = structlog.get_logger(system="engine")
    log.critical("crashed", error=describe_error(error or kind()), exc_info=(kind, error, trace))


def is_json() -> bool:
    """Whether log lines are JSON, and all else that this process says must be too."""
    return structlog.get_config()["processors"][-1] is _as_json


def said_json(message: str, level: str) -> str:
    """What is said to people at the terminal as a line of the log: whatever the level, and with the key that is shown this once."""
    said = {"system": "cli", "event": "said", "message": visible(message), "level": level}
    at = {"@timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return json.dumps(said | structlog.contextvars.get_contextvars() | at, ensure_ascii=False)


def _completed(service: str) -> structlog.typing.Processor:
    """All that a line has beside what is said, in one step: to call seven takes as long as what they do.

    The service is in every line, whichever thread writes it: a thread does not have the context of the one that started it.
    """

    def complete(logger: Any, method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for variable, value in copy_context().items():
            name = _bound_name(variable)
            if name is not None and value is not Ellipsis:
                fields.setdefault(name, value)
        if "exc_info" in fields:
            fields = structlog.processors.format_exc_info(logger, method, fields)
        _redact(fields)
        fields.setdefault("service", service)
        structlog.processors.add_log_level(logger, method, fields)
        if TIME_OF_LINE not in fields:
            second, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
            fields[TIME_OF_LINE] = f"{_second(second)}.{nanoseconds // 1000:06}Z"
        return fields

    return complete


@lru_cache(maxsize=NAMES_REMEMBERED_MAX)
def _bound_name(variable: ContextVar[Any]) -> str | None:
    """What `structlog.contextvars` has bound under this variable; None where it is somebody else's."""
    prefix = structlog.contextvars.STRUCTLOG_KEY_PREFIX
    return variable.name.removeprefix(prefix) if variable.name.startswith(prefix) else None


@lru_cache(maxsize=2)
def _second(since_1970: int) -> str:
    """Most lines are of the same second as the one before."""
    return datetime.fromtimestamp(since_1970, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _redact(fields: structlog.typing.EventDict) -> None:
    """The last gate: whatever text a caller logged, no secret passes, and nothing that a terminal would act on."""
    for name, value in fields.items():
        # Ids of ours are digits of the hexadecimal system, in which no secret is known by its look.
        if isinstance(value, str) and value.strip(HEXADECIMAL):
            fields[name] = _clean_word(value) if len(value) <= WORD_CHARS_MAX else visible(redact(value))


@lru_cache(maxsize=WORDS_REMEMBERED_MAX)
def _clean_word(text: str) -> str:
    """Short text is mostly said again and again: names of events, systems, kinds, paths."""
    return visible(redact(text))


def _as_json(_logger: Any, _method: str, fields: structlog.typing.EventDict) -> str:
    # What happened under the name that most collectors of logs look for, beside ours.
    fields.setdefault("message", fields.get("event"))
    try:
        return orjson.dumps(fields, default=repr, option=orjson.OPT_PASSTHROUGH_DATACLASS).decode()
    except orjson.JSONEncodeError:  # half a character, or a number beyond 64 bits
        return json.dumps(fields, default=repr)


class LogObserver:
    """Writes each fact to structlog."""

    def __init__(self, *, system: str = "engine") -> None:
        # Not bound yet: whoever configures structlog after this is heard too.
        self._log: Any = structlog.get_logger(system=system)
        self._told: set[str] = set()

    def observe(self, events: Sequence[Event]) -> None:
        for event in events:
            self._write(event)

    def _write(self, event: Event) -> None:
        log = self._log
        match event:
            case TaskAdded(ledger, kind, key, id_, new):
                log.info("task_added" if new else "task_known", ledger=ledger, task_id=str(id_), kind=kind, key=key)
            case AttemptStarted(ledger, claim):
                log.debug("attempt_started", ledger=ledger, **self._task(claim), attempt=claim.number)
            case AttemptEnded(ledger, settlement):
                self._ended(ledger, settlement)
            case SettleLost(ledger, settlement):
                log.warning("settle_lost", ledger=ledger, **self._task(settlement.claim), outcome=settlement.outcome)
            case SettleFailed(ledger, settlement, error):
                log.error("settle_failed", ledger=ledger, **self._task(settlement.claim), error=error)
            case TasksChanged(ledger, act, ids, actor, reason):
                log.info("tasks_changed", ledger=ledger, act=act.value, amount=len(ids), actor=actor, reason=reason)
            case OperationChanged(ledger, id_, state, why, actor):
                level = log.warning if state is OperationState.HALTED else log.info
                level("operation_changed", ledger=ledger, operation=id_, state=state.value, why=why, actor=actor)
            case TasksPruned(ledger, amount):
                log.info("tasks_pruned", ledger=ledger, amount=amount)
            case ThreadsLeft(ledger, kinds, amount):
                log.warning("threads_left", ledger=ledger, kinds=", ".join(kinds), amount=amount)
            case LoopBlocked(ledger, kinds, span):
                seconds = round(span.total_seconds(), 1)
                log.warning("loop_blocked", ledger=ledger, kinds=", ".join(kinds), blocked_seconds=seconds)
            case LedgerAway(ledger, error):
                log.error("ledger_away", ledger=ledger, error=error)
            case LedgerBack(ledger, after):
                log.info("ledger_back", ledger=ledger, away_seconds=round(after.total_seconds(), 3))
            case _:
                assert_never(event)

    def _ended(self, ledger: str, settlement: Settlement) -> None:
        fields: dict[str, Any] = {
            "ledger": ledger,
            **self._task(settlement.claim),
            "attempt": settlement.claim.number,
            "failures": settlement.failures,
            "duration_seconds": round(settlement.elapsed.total_seconds(), 6),
        }
        explained = settlement.explanation
        if explained is None:
            if settlement.state is State.WAITING and settlement.delay is not None:
                fields["delay_seconds"] = settlement.delay.total_seconds()
            self._log.info(f"task_{settlement.outcome}", **fields)
            return
        fields |= {"error_class": explained.error_class.value, "error": settlement.error}
        if explained.stack is not None:
            fields |= self._where(explained.stack, always=settlement.delay is None)
        if settlement.delay is None:
            if explained.lost_alone:
                fields["lost_alone"] = explained.lost_alone
            self._log.error("task_dead", **fields, verdict=explained.verdict)
        elif explained.verdict == SUSPECT:
            self._log.warning("task_suspect", **fields)
        else:
            self._log.warning(
                "retry_scheduled",
                **fields,
                delay_seconds=round(settlement.delay.total_seconds(), 3),
                budget_left=explained.budget_left,
            )

    def _where(self, stack: Stack, *, always: bool) -> dict[str, Any]:
        """Where an error came from; its whole stack when it ends a task, and when this process sees it for the first time."""
        where: dict[str, Any] = {} if stack.at is None else {"error_at": stack.at}
        if always or stack.id not in self._told:
            if len(self._told) >= STACKS_MAX:
                self._told.clear()
            self._told.add(stack.id)
            where["error.stack"] = "\n".join(stack_lines(read_stack(stack.text)))
        return where

    def _task(self, claim: Claim) -> dict[str, Any]:
        """What tells of which task a line is."""
        return {"task_id": str(claim.task.id), "kind": claim.task.kind, "key": claim.task.key}
