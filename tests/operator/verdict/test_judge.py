"""What the first screen says of the night that the pages were drawn for."""

from dataclasses import replace
from datetime import timedelta

from redrive.core.operation import Course, FateTally, OperationState, Ramp
from redrive.core.states import State
from redrive.operator.operations import BY_ITSELF, Operation
from redrive.operator.verdict import LedgerNow, Rank, Verdict, judge, plain, verdict_json
from redrive.operator.verdict.facts import Facts
from redrive.operator.verdict.values import LinkTo, Subject, Target
from redrive.web.pages.verdict import trouble_row
from tests.operator.verdict.story import CALM, LEDGER, NOW, SUNDAY


def said(verdict: Verdict) -> list[str]:
    return [plain(one.told) for one in verdict.troubles]


def test_the_night_is_told_worst_first() -> None:
    """Dying now, held back, healing, dead but ready; each in one paragraph, and only the first needs a person."""
    verdict = judge(SUNDAY)
    assert verdict.title == "One thing needs you"
    assert plain(verdict.summary) == (
        "Two problems are recovering by themselves, and 1,318 dead tasks are ready to come back. 2 of 15 kinds are affected."
    )
    assert [one.rank for one in verdict.troubles] == [Rank.DYING, Rank.HELD, Rank.HEALS, Rank.READY]
    assert said(verdict) == [
        "mail.send has been failing since 21:35:40: 100% of 812 tries, AttributeError: 'NoneType' object has no attribute 'body' at "
        "shop/mail.py:23 (version 4f2a, deployed 21:34). 81 dead, 120 waiting; other kinds are fine.",
        "Gate bank:DE has been holding payment.capture back since 21:29:05. ConnectionRefusedError: pay.example:443 on all 25 probes. "
        "1,204 parked, no try charged.",
        "Worker app-3:2217 has been lost since 21:38:12, holding 6 tasks. No goodbye, so it was killed or cut off. "
        "The other 7 workers have room.",
        "crm.sync recovered at 21:12:20; 1,318 tasks had died by then. HTTPStatusError: 503 Service Unavailable at shop/crm.py:61. "
        "1,318 dead between 20:41 and 21:12. Since then 0 of 1,074 tries failed.",
    ]


def test_the_night_says_what_happens_by_itself_and_what_is_safe() -> None:
    """Each trouble answers both, and a button is there only where pressing it is advised."""
    failing, gate, lost, ready = judge(SUNDAY).troubles
    assert [plain(one.by_itself) for one in (failing, gate, lost, ready)] == [
        "Nothing recovers. Each task gets 6 tries in about 4 minutes: the 120 waiting will be dead by 21:46, and 32 more follow each minute.",
        "One probe every 30 s, next at 21:42:05. When one succeeds, all are through in about 65 s.",
        "Its leases end by 21:42:34; then the other workers take the 6 tasks.",
        "Nothing: dead tasks stay dead until a person brings them back.",
    ]
    assert failing.button is not None
    assert failing.button.words == "Pause mail.send"
    assert failing.beside is not None
    assert failing.beside.warning == "This will most likely fail."
    assert (gate.button, lost.button) == (None, None)
    assert plain(gate.safe) == plain(lost.safe) == "Nothing to press."
    assert ready.button is not None
    assert ready.button.words == "Try one first"


def test_a_pause_is_one_quiet_line() -> None:
    """What a person did on purpose is no trouble."""
    [line] = judge(SUNDAY).quiet
    assert plain(line) == (
        "On purpose: gate endpoint:acme is paused by ada until 22:30, “acme moves its server”. 86 parked."
    )


def test_the_strip_has_eight_figures_in_one_order() -> None:
    """The numbers are always in the same place."""
    strip = judge(SUNDAY).strip
    assert [(one.name, one.value) for one in strip] == [
        ("Dead", "1,399"), ("Waiting", "188"), ("Parked", "1,290"), ("Running", "37"), ("Done", "41,286"), ("Oldest due", "4 s"),
        ("Last settled", "0.4 s ago"), ("Workers", "7 of 8"),
    ]  # fmt: skip
    assert plain(strip[-1].note) == "1 lost"


def test_kinds_come_by_trouble_then_by_how_busy_they_are() -> None:
    """Whoever looks sees first what is wrong."""
    kinds = judge(SUNDAY).kinds
    assert [(one.kind, one.health) for one in kinds[:5]] == [
        ("mail.send", "Failing"), ("payment.capture", "Held by bank:DE"), ("crm.sync", "Ready to redrive"),
        ("order.confirm", "Fine"), ("webhook.deliver", "Fine"),
    ]  # fmt: skip
    assert kinds[0].share == 1.0


def test_a_calm_morning_says_so_and_since_when() -> None:
    """All is well, with the last time when it was not."""
    verdict = judge(CALM)
    assert verdict.is_well
    assert verdict.title == "All is well"
    assert plain(verdict.summary) == (
        "15 kinds and 8 workers: nothing fails, nothing is late, nothing is dead. Quiet since yesterday 22:04."
    )
    assert verdict.calm_since == CALM.last_trouble_at


def test_the_whole_is_json() -> None:
    """Every sentence is there as text and in pieces that name what they link to."""
    shown = verdict_json(judge(SUNDAY))
    first = shown["troubles"][0]
    assert first["wrong"][0]["pieces"][0] == {
        "text": "mail.send",
        "link": {"to": "kind", "ledger": "redrive_task", "name": "mail.send"},
    }
    assert first["wrong"][0]["pieces"][2] == {
        "text": "21:35:40",
        "at": "2026-03-15T21:35:40.000000Z",
        "to_seconds": True,
    }
    assert first["button"]["act"] == "pause_kind"
    assert shown["kinds"][0]["share"] == 1.0
    assert shown["kinds"][0]["begun_a_minute"] == 0


def test_dead_tasks_that_nobody_has_grouped_are_told() -> None:
    """Where no service has taken a census, nobody is told that nothing is dead; one that has just counted speaks of causes."""
    ledger = LedgerNow(ledger=LEDGER, amounts={State.DEAD: 3}, is_counted=False)
    verdict = judge(replace(CALM, ledgers=[ledger]))
    assert verdict.title == "3 dead tasks are ready to come back"
    [trouble] = verdict.troubles
    assert plain(trouble.wrong[0]) == f"3 tasks of {LEDGER} are dead."
    assert (trouble.button, trouble.rank) == (None, Rank.READY)
    assert judge(replace(CALM, ledgers=[replace(ledger, is_counted=True)])).is_well


def test_an_effect_that_nobody_has_answered_for_needs_a_person() -> None:
    """How many, since when, that nothing runs them meanwhile, and a link to where it is answered."""
    ledger = LedgerNow(
        ledger=LEDGER, amounts={State.DEAD: 3}, unanswered=3, unanswered_since=NOW - timedelta(minutes=2)
    )
    [one] = judge(Facts(now=NOW, ledgers=[ledger])).troubles
    assert (one.needs_you, one.subject, one.button) == (True, Subject.UNANSWERED, None)
    assert plain(one.wrong[0]) == "Nobody knows whether the effect of 3 tasks happened."
    assert "not run again before somebody answers" in plain(one.by_itself)
    assert one.view == Target(to=LinkTo.EFFECTS, ledger=LEDGER)


def test_an_operation_that_stopped_by_itself_needs_a_person() -> None:
    """How many failed again, how many are held back, and a link to where it goes on."""
    course = Course(state=OperationState.HALTED, ramp=Ramp())
    operation = Operation(
        id="957a1bea-0000", ledger=LEDGER, course=course, tally=FateTally(total=8, released=1, failed=1), asked={}, until=NOW, started_by="ada",
        reason="fixed", started_at=NOW, changed_by=BY_ITSELF, changed_at=NOW - timedelta(minutes=2),
    )  # fmt: skip
    verdict = judge(replace(CALM, now=NOW, halted=[operation]))
    [one] = verdict.troubles
    assert (verdict.title, one.subject, one.button) == ("One thing needs you", Subject.OPERATION, None)
    assert plain(one.told) == (
        f"Operation 957a1bea stopped: 1 of 1 failed again. In {LEDGER}, since 21:39:52: 7 tasks held back."
    )
    assert one.view == Target(to=LinkTo.OPERATION, ledger=LEDGER, name="957a1bea-0000")
    row = trouble_row(one)
    assert (row.view, row.view_words) == ("/operations/957a1bea-0000", "View operation")
