"""Structured logs: one event per transition, the same field names everywhere, no payloads, no secrets."""

import io
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from structlog.testing import capture_logs

from redrive.core.operation import OperationState
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Released, Snoozed
from redrive.core.states import Act
from redrive.errors import PermanentError, SettingsError
from redrive.events import (
    AttemptEnded,
    AttemptStarted,
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
from redrive.observe.logs import LogObserver, configure_logs

TASK = {"ledger": "work", "task_id": "7", "kind": "mail", "key": "mail-7"}
SECRET = "Authorization: Bearer abcdefgh12345678"


@pytest.fixture(autouse=True)
def _structlog_as_it_was():
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def logged(*events):
    with capture_logs() as lines:
        LogObserver(system="engine").observe(events)
    for line in lines:
        assert line.pop("system") == "engine"
    return lines


@pytest.mark.parametrize(
    ("outcome", "event", "level", "fields"),
    [
        (Done(), "task_done", "info", {}),
        (Released(), "task_released", "info", {"delay_seconds": 0}),
        (Snoozed(timedelta(minutes=1)), "task_snoozed", "info", {"delay_seconds": 60}),
        (Cancelled("left"), "task_cancelled", "info", {}),
        (
            Failed(ValueError("odd")),
            "retry_scheduled",
            "warning",
            {
                "failures": 1,
                "error": "ValueError: odd",
                "error_class": "transient",
                "delay_seconds": 10,
                "budget_left": 2,
            },
        ),
        (
            Failed(PermanentError("never")),
            "task_dead",
            "error",
            {"failures": 1, "error": "PermanentError: never", "error_class": "permanent", "verdict": "permanent"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_end_of_an_attempt_is_one_line(make_settlement, outcome, event, level, fields):
    """Each outcome has its event, its level and its fields."""
    common = TASK | {"attempt": 1, "failures": 0, "duration_seconds": 0.5}
    expected = common | fields | {"event": event, "log_level": level}
    assert logged(AttemptEnded("work", make_settlement(outcome))) == [expected]


def test_a_lost_worker_is_named(make_settlement):
    """The last expired lease of a task logs that it died, by which verdict, and how many workers it took with it."""
    [line] = logged(AttemptEnded("work", make_settlement(LeaseExpired(), failures=2, alone=True)))
    assert (line["event"], line["verdict"], line["attempt"]) == ("task_dead", "worker_lost", 3)
    assert line["lost_alone"] == 1


def test_a_suspect_is_named(make_settlement):
    """A task whose worker was lost while others ran beside it is not logged as a retry: nothing was charged."""
    [line] = logged(AttemptEnded("work", make_settlement(LeaseExpired())))
    assert (line["event"], line["log_level"], line["failures"]) == ("task_suspect", "warning", 0)


def test_all_other_facts_are_one_line_each(make_settlement, make_claim):
    """Every fact that the engine announces is logged with its fields and level."""
    settlement = make_settlement(Done())
    lines = logged(
        TaskAdded("work", "mail", "mail-7", 7, True),
        TaskAdded("work", "mail", "mail-7", 7, False),
        AttemptStarted("work", make_claim()),
        SettleLost("work", settlement),
        SettleFailed("work", settlement, "ValueError: odd"),
        TasksChanged("work", Act.REDRIVE, (1, 2, 3), "ada", "the bank is back"),
        OperationChanged("work", "7c2f", OperationState.RUNNING, "go", "ada"),
        OperationChanged("work", "7c2f", OperationState.HALTED, "too many failed", "redrive"),
        TasksPruned("work", 5),
        ThreadsLeft("work", ("mail", "print"), 3),
        LoopBlocked("work", ("pay",), timedelta(seconds=7.612)),
        LedgerAway("work", "gone"),
        LedgerBack("work", timedelta(seconds=1.23456)),
    )
    assert lines == [
        TASK | {"event": "task_added", "log_level": "info"},
        TASK | {"event": "task_known", "log_level": "info"},
        TASK | {"event": "attempt_started", "log_level": "debug", "attempt": 1},
        TASK | {"event": "settle_lost", "log_level": "warning", "outcome": "done"},
        TASK | {"event": "settle_failed", "log_level": "error", "error": "ValueError: odd"},
        {
            "event": "tasks_changed", "log_level": "info", "ledger": "work", "act": "redrive", "amount": 3,
            "actor": "ada", "reason": "the bank is back",
        },
        {
            "event": "operation_changed", "log_level": "info", "ledger": "work", "operation": "7c2f", "state": "running",
            "why": "go", "actor": "ada",
        },
        {
            "event": "operation_changed", "log_level": "warning", "ledger": "work", "operation": "7c2f", "state": "halted",
            "why": "too many failed", "actor": "redrive",
        },
        {"event": "tasks_pruned", "log_level": "info", "ledger": "work", "amount": 5},
        {"event": "threads_left", "log_level": "warning", "ledger": "work", "kinds": "mail, print", "amount": 3},
        {"event": "loop_blocked", "log_level": "warning", "ledger": "work", "kinds": "pay", "blocked_seconds": 7.6},
        {"event": "ledger_away", "log_level": "error", "ledger": "work", "error": "gone"},
        {"event": "ledger_back", "log_level": "info", "ledger": "work", "away_seconds": 1.235},
    ]  # fmt: skip


def test_json_lines_have_a_message(capsys):
    """Every line in JSON says what happened as `event` and as `message`, redacted alike; one that brings its own keeps it."""
    configure_logs(format="json")
    structlog.get_logger().info(f"odd {SECRET}", ledger="work")
    structlog.get_logger().warning("told", message="as told")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["message"] == first["event"] != f"odd {SECRET}"
    assert (second["event"], second["message"]) == ("told", "as told")
    configure_logs(format="pretty")
    structlog.get_logger().info("plain")
    assert "message" not in capsys.readouterr().err


def test_whatever_is_logged_is_a_line(capsys):
    """What JSON has no word for is told as Python shows it, and what UTF-8 cannot write does not keep a line back."""

    @dataclass
    class Card:
        number: str = field(default="4111", repr=False)

    configure_logs(format="json")
    structlog.get_logger().info("odd", half="\ud83d", large=2**70, card=Card(), kinds={"mail"}, nested={1: (2, None)})
    [shown] = capsys.readouterr().err.splitlines()
    line = json.loads(shown)
    assert (line["large"], line["kinds"], line["nested"]) == (2**70, "{'mail'}", {"1": [2, None]})
    assert line["card"].endswith("Card()")
    assert "4111" not in shown


def test_a_line_has_the_time_at_which_it_was_said(capsys):
    """To the microsecond, in order, and across the end of a second."""
    configure_logs(format="json")
    before = datetime.now(UTC)
    for _ in range(5):
        structlog.get_logger().info("now")
    after = datetime.now(UTC)
    times = [json.loads(line)["@timestamp"] for line in capsys.readouterr().err.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", one) for one in times)
    told = [datetime.fromisoformat(one) for one in times]
    assert told == sorted(told)
    assert before <= told[0] <= told[-1] <= after


def test_payloads_are_never_logged(make_settlement, make_claim):
    """Whatever happens to a task, what it carries stays out of the logs."""
    payload = {"card": "4111111111111111"}
    lines = logged(
        AttemptStarted("work", make_claim(payload=payload)),
        AttemptEnded("work", make_settlement(Done(), payload=payload)),
        AttemptEnded("work", make_settlement(Failed(ValueError("odd")), payload=payload)),
        SettleLost("work", make_settlement(Done(), payload=payload)),
        SettleFailed("work", make_settlement(Done(), payload=payload), "odd"),
    )
    assert len(lines) == 5
    assert "4111" not in json.dumps(lines)


def test_errors_are_redacted(make_settlement):
    """A secret in an exception does not reach the log."""
    [line] = logged(AttemptEnded("work", make_settlement(Failed(ValueError(SECRET)))))
    assert "abcdefgh" not in line["error"]
    assert "[redacted]" in line["error"]


def configured(capsys, write, **options):
    configure_logs(**options)
    write()
    return capsys.readouterr().err


def test_json_lines_carry_service_level_and_time(capsys):
    """The service's own configuration writes one JSON object per line to standard error."""
    shown = configured(capsys, lambda: structlog.get_logger().info("hello", amount=3), service="billing")
    line = json.loads(shown)
    assert line.pop("@timestamp").endswith("Z")
    assert line == {"event": "hello", "message": "hello", "amount": 3, "level": "info", "service": "billing"}


def test_the_last_gate_redacts_whatever_is_logged(capsys):
    """Also what a caller logs without thinking is redacted, the event and exceptions included."""

    def write():
        log = structlog.get_logger()
        log.info("calling with " + SECRET, url="postgresql://app:hunter2@db/x")
        try:
            raise ValueError(SECRET)
        except ValueError:
            log.exception("failed")

    shown = configured(capsys, write)
    assert "abcdefgh" not in shown
    assert "hunter2" not in shown
    assert shown.count("[redacted]") >= 3


def test_pretty_logs_are_for_people(capsys):
    """The pretty format is not JSON but says the same."""
    shown = configured(capsys, lambda: structlog.get_logger().warning("hello", amount=3), format="pretty")
    assert "hello" in shown
    assert "amount" in shown
    assert not shown.startswith("{")


def test_the_level_is_a_floor(capsys):
    """Events below the level are not written."""

    def write():
        structlog.get_logger().info("quiet")
        structlog.get_logger().warning("loud")

    shown = configured(capsys, write, level="WARNING")
    assert "loud" in shown
    assert "quiet" not in shown


def test_an_observer_made_before_the_configuration_follows_it(capsys):
    """It does not matter whether the application or its logs are set up first."""
    observer = LogObserver()
    shown = configured(capsys, lambda: observer.observe([TasksPruned("work", 5)]))
    assert json.loads(shown)["event"] == "tasks_pruned"


@pytest.mark.parametrize("wrong", [{"level": "loud"}, {"format": "xml"}], ids=str)
def test_unknown_settings_are_refused(wrong):
    """A level or format that does not exist is refused with the ones that do."""
    with pytest.raises(SettingsError, match="must be"):
        configure_logs(**wrong)


def test_a_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch):
    """With its end: what a command says in another thread at that moment cannot come between."""
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr("sys.stderr", Stream())
    configure_logs(format="json")
    structlog.get_logger().info("one")
    structlog.get_logger().info("two")
    assert [json.loads(text)["event"] for text in written] == ["one", "two"]
    assert all(text.endswith("\n") for text in written)


def test_lines_say_where_it_failed(make_settlement):
    """Every failed try names the line; the whole stack comes with the first of its sort, and when a task dies of it."""

    def raised(kind: type[Exception]) -> Failed:
        try:
            raise kind("odd")
        except Exception as error:
            return Failed(error)

    first, again = (AttemptEnded("work", make_settlement(raised(ValueError))) for _ in range(2))
    dead, still = (AttemptEnded("work", make_settlement(raised(PermanentError))) for _ in range(2))
    lines = logged(first, again, dead, still)
    assert {line["error_at"] for line in lines} == {lines[0]["error_at"]}
    assert lines[0]["error_at"].startswith("tests/observe/test_logs.py:")
    assert ["error.stack" in line for line in lines] == [True, False, True, True]
    assert lines[0]["error_at"] in lines[0]["error.stack"]
    assert 'raise kind("odd")' in lines[0]["error.stack"]


def test_short_texts_are_redacted_whenever_they_are_said(capsys):
    """A text that was looked through before is redacted all the same; ids in hexadecimal digits stay as they are."""
    configure_logs()
    told = "019c12f0-8a80-7000-8000-00000000abcd"
    for _ in range(2):
        structlog.get_logger().info("said", word="token=hunter2", hidden="a\x1b[2Jb", id=told, amount=7)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    said = [(line["word"], line["hidden"], line["id"], line["amount"]) for line in lines]
    assert said == [("token=[redacted]", r"a\x1b[2Jb", told, 7)] * 2
