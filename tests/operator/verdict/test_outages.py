"""Five outages, each answered by the first sentence: what, since when, why with file and line, what happens by itself, what is safe."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from redrive.core.states import State
from redrive.operator.roster import SILENT_AFTER
from redrive.operator.verdict import (
    CauseFacts,
    Facts,
    KindFacts,
    LedgerNow,
    Rank,
    StoreNow,
    Subject,
    Tone,
    Trouble,
    Verdict,
    judge,
    plain,
)
from tests.operator.verdict.story import CALM, CRM, LEDGER, MAIL, NOW, SUNDAY, at, worker

QUIET = replace(SUNDAY, causes=(), held=(), workers=SUNDAY.workers[1:8])
"""The same night without any trouble."""


def only(verdict: Verdict) -> Trouble:
    [found] = verdict.troubles
    return found


def down(**given: object) -> CauseFacts:
    """A destination that refuses connections: nobody is dead yet, since the waits are 1, 5 and 15 minutes."""
    facts = {
        "ledger": LEDGER, "id": "c0ffee", "kind": "payment.capture", "error": "ConnectError: pay.example:443 refused", "since": at("21:41:30"),
        "last_failure": at("21:41:50"), "failures": 10, "tries": 10, "lately": 10, "points": (0, 10), "waiting": 10,
        "at": "shop/pay.py:9 in capture", "last_version": "4f2a", "tries_max": 4, "lasts": timedelta(minutes=21), "arrives": 25,
    }  # fmt: skip
    return CauseFacts(**(facts | given))  # type: ignore[arg-type]


def test_a_destination_that_is_down_is_named_at_the_tenth_failure() -> None:
    """Before anybody is dead: with the kind, the error, and until when the waiting ones live."""
    assert judge(replace(QUIET, causes=[down(failures=9, tries=9)])).is_well
    one = only(judge(replace(QUIET, causes=[down()])))
    assert one.rank is Rank.DYING
    assert plain(one.wrong[-1]).endswith("; other kinds are fine.")
    alone = only(judge(replace(QUIET, causes=[down()], kinds=QUIET.kinds[:1])))
    assert plain(alone.wrong[-1]).endswith("10 waiting."), "there is no other kind that could be fine"
    assert plain(one.told) == (
        "payment.capture has been failing since 21:41:30: 100% of 10 tries, ConnectError: pay.example:443 refused at shop/pay.py:9 "
        "(version 4f2a, deployed 21:34). 0 dead, 10 waiting; other kinds are fine."
    )
    assert plain(one.by_itself) == (
        "Tries go on. Each task gets 4 tries in about 21 minutes: if it answers, the 10 waiting are done; if not, dead by 22:03, "
        "and 25 more follow each minute."
    )
    assert plain(one.safe) == (
        "Pause it: tasks wait, and no try is charged. Redriving now repeats the failure: wait until it answers."
    )
    assert one.button is not None
    assert one.button.words == "Pause payment.capture"
    assert one.beside is None  # nobody is dead whom one could try
    assert [piece.link for piece in one.wrong[-1] if piece.text == "0 dead"] == [None]


def test_between_two_tries_a_destination_that_is_down_stays_down() -> None:
    """Waits of a quarter of an hour are no recovery: as long as tasks wait and nothing was done since, it fails."""
    later = replace(QUIET, causes=[down(since=at("21:20"), last_failure=at("21:26"), lately=0)])
    assert only(judge(later)).subject is Subject.FAILING


def test_a_destination_that_answers_again_is_over_at_once() -> None:
    """After ten tries without a failure nothing is wrong any more, unless somebody is dead."""
    back = down(recovered_at=at("21:41:51"), tries_since=10)
    assert judge(replace(QUIET, causes=[back])).is_well
    assert only(judge(replace(QUIET, causes=[replace(back, dead=3)]))).rank is Rank.READY


def test_two_bugs_with_the_same_words_are_two_sentences() -> None:
    """Poison beside an outage: each cause has its line and its own button, and says that the others of its kind are fine."""
    poison = [
        replace(MAIL, id=f"p{line}", kind=kind, error="KeyError: 'total'", at=f"shop/{kind}.py:{line} in run", failures=30, tries=600,
                died_lately=10, dead=10, waiting=20, recovered_at=NOW)
        for kind, line in (("order", 7), ("invoice", 40))
    ]  # fmt: skip
    first, second, third = judge(replace(QUIET, causes=[down(), *poison])).troubles
    assert [one.kind for one in (first, second, third)] == ["order", "invoice", "payment.capture"]
    assert plain(first.wrong[0]) == "order has been failing since 21:35:40: 5% of 600 tries."
    assert [plain(one.wrong[1]) for one in (first, second)] == [
        "KeyError: 'total' at shop/order.py:7", "KeyError: 'total' at shop/invoice.py:40",
    ]  # fmt: skip
    assert first.button is not None
    assert second.button is not None
    assert (first.button.kind, second.button.kind) == ("order", "invoice")


def test_a_deploy_that_broke_a_kind_names_its_version_and_line() -> None:
    """While the version that fails runs, the button is a pause; once a newer one runs it is one task, tried first."""
    fails = replace(QUIET, causes=[MAIL])
    one = only(judge(fails))
    assert (one.version, one.at) == ("4f2a", "shop/mail.py:23")
    assert "Version 4f2a, deployed 21:34." in plain(one.wrong[2])
    assert one.button is not None
    assert one.button.words == "Pause mail.send"
    newer = [*fails.workers, worker("app-5:1", started="21:41:40", version="51bd")]
    fixed = only(judge(replace(fails, workers=newer)))
    assert fixed.button is not None
    assert fixed.button.words == "Try one first"
    assert plain(fixed.safe) == "Try one task: version 51bd runs now, and they failed in 4f2a."


def test_who_died_of_a_bug_of_a_few_is_told_that_the_same_version_runs() -> None:
    """A redrive would most likely fail again: nothing is advised, and one task may be tried with a warning."""
    few = replace(CRM, failures=30, tries=900, last_version="4f2a", recovered_at=at("21:20"))
    one = only(judge(replace(QUIET, causes=[few])))
    assert plain(one.wrong[0]) == "1,318 tasks of crm.sync died; its other tasks are fine."
    assert (one.rank, one.subject, one.button) == (Rank.DEAD, Subject.DEAD, None)
    assert one.beside is not None
    assert one.beside.warning == "This will most likely fail. Version 4f2a, in which they failed, still runs."


def test_a_few_that_fail_each_time_are_not_ready() -> None:
    """Four of four failed in the version that runs: too few to call a person for, and no reason to redrive them."""
    broken = down(failures=4, tries=4, waiting=0, dead=4, died_lately=4, error="KeyError: 'card'")
    verdict = judge(replace(QUIET, causes=[broken]))
    one = only(verdict)
    assert (verdict.title, one.rank.words, one.button) == (
        "4 tasks are dead, not recovered",
        "Dead, not recovered",
        None,
    )
    assert plain(one.safe).startswith("Fix the code first. Version 4f2a, in which they failed, still runs.")
    [health] = [kind for kind in verdict.kinds if kind.kind == "payment.capture"]
    assert health.health == "Dead, not recovered"
    newer = [*QUIET.workers, worker("app-5:1", started="21:41:40", version="51bd")]
    assert only(judge(replace(QUIET, causes=[broken], workers=newer))).rank is Rank.READY
    unknown = replace(broken, last_version=None)
    assert only(judge(replace(QUIET, causes=[unknown]))).rank is Rank.DEAD
    assert only(judge(replace(QUIET, causes=[replace(unknown, last_failure=at("20:00"))]))).rank is Rank.READY


def test_a_killed_worker_heals_by_itself_and_is_then_one_quiet_line() -> None:
    """With what it held and by when that is free; nobody else working makes it a person's business."""
    lost = worker(
        "app-3:2217", started="21:34:40", seen=NOW - timedelta(seconds=40), held=6, lease=timedelta(seconds=60)
    )
    one = only(judge(replace(QUIET, workers=[lost, *QUIET.workers])))
    assert one.rank is Rank.HEALS
    assert plain(one.by_itself) == "Its leases end by 21:42:14; then the other workers take the 6 tasks."
    past = replace(lost, lease=timedelta(seconds=10))
    verdict = judge(replace(QUIET, workers=[past, *QUIET.workers]))
    assert verdict.is_well
    assert [plain(line) for line in verdict.quiet] == [
        "Worker app-3:2217 was lost at 21:41:12; the 6 tasks that it held came back."
    ]
    alone = only(judge(replace(QUIET, workers=[lost])))
    assert (alone.rank, plain(alone.safe)) == (Rank.STOPPED, "Start a worker: redrive worker MODULE:APP.")


def test_a_killed_worker_may_hold_more_than_its_last_sign_told_of() -> None:
    """A worker that was killed between two signs may have claimed in between, so nobody says that no task waits for it."""
    lost = worker(
        "app-3:2217", started="21:34:40", seen=NOW - timedelta(seconds=40), held=0, lease=timedelta(seconds=60)
    )
    one = only(judge(replace(QUIET, workers=[lost, *QUIET.workers])))
    assert plain(one.by_itself) == (
        "No task was held at the last sign of life; one claimed after it comes back when its lease ends."
    )
    quiet = judge(replace(QUIET, workers=[replace(lost, lease=timedelta(seconds=10)), *QUIET.workers])).quiet
    assert [plain(line) for line in quiet] == ["Worker app-3:2217 was lost at 21:41:12; it held nothing then."]


def test_a_worker_that_falls_silent_is_named_before_it_counts_as_lost() -> None:
    """Two signs are missing, and more than late: the first screen says so, with what it holds; one that is merely late is not named."""
    late = worker("app-3:2217", started="21:34:40", seen=NOW - SILENT_AFTER, held=6, lease=timedelta(seconds=60))
    assert judge(replace(QUIET, workers=[late, *QUIET.workers])).is_well
    silent = replace(late, seen_at=NOW - SILENT_AFTER - timedelta(seconds=1))
    facts = replace(QUIET, workers=[silent, *QUIET.workers])
    one = only(judge(facts))
    assert (one.rank, one.subject) == (Rank.HEALS, Subject.LOST_WORKER)
    assert plain(one.wrong[0]) == "Worker app-3:2217 has given no sign of life since 21:41:45, holding 6 tasks."
    assert plain(one.wrong[1]).startswith("It was killed or cut off, or it is stuck.")
    assert only(judge(replace(QUIET, workers=[silent]))).rank is Rank.STOPPED
    away = only(judge(replace(facts, store=StoreNow(wrote_at=NOW - timedelta(seconds=6)))))
    assert away.subject is Subject.LEDGER_AWAY, "where nothing can be written nobody can give a sign"


def test_a_store_that_is_locked_is_the_first_row() -> None:
    """Reads are answered, and nothing is written: since when, and that nothing is lost."""
    since = NOW - timedelta(seconds=45)
    locked = StoreNow(wrote_at=since, settled_at=since, write_took=timedelta(milliseconds=3))
    verdict = judge(replace(SUNDAY, store=locked))
    one = verdict.troubles[0]
    assert (one.rank, one.subject) == (Rank.STOPPED, Subject.LEDGER_AWAY)
    assert plain(one.told) == (
        "Nothing has been settled for 45 s. The store has taken no write for 45 s: it is locked, full or away."
    )
    assert plain(one.by_itself) == (
        "Workers keep the 37 tasks that they hold and go on when the store takes writes again; nothing is lost."
    )
    settled = next(figure for figure in verdict.strip if figure.name == "Last settled")
    assert (settled.value, settled.tone) == ("45 s ago", Tone.WARN)


def test_due_tasks_without_a_worker_need_somebody() -> None:
    """Nobody works: since when tasks wait, who was there last, and what to start."""
    late = [LedgerNow(ledger=LEDGER, amounts={State.WAITING: 300}, oldest_due=timedelta(minutes=6))]
    one = only(judge(replace(QUIET, ledgers=late, workers=[])))
    assert (one.rank, plain(one.wrong[0]), plain(one.safe)) == (
        Rank.STOPPED,
        "No worker is running, and tasks are due; the oldest for 6 min.",
        "Start a worker: redrive worker MODULE:APP.",
    )
    assert plain(one.wrong[1]) == f"They wait in {LEDGER}. No worker has been here in the last week."
    stopped = worker(
        "app-1:902", started="21:34:40", seen=NOW - timedelta(minutes=2), stopped_at=NOW - timedelta(minutes=2)
    )
    assert plain(only(judge(replace(QUIET, ledgers=late, workers=[stopped]))).wrong[1]).endswith(
        "The last worker was there at 21:39:52."
    )
    busy = only(judge(replace(QUIET, ledgers=late)))
    assert busy.subject is Subject.BEHIND


def test_nothing_is_called_on_time_while_nobody_works() -> None:
    """What is due is named at once, not after a minute; a worker that has just stopped has a moment for its successor."""
    due = [LedgerNow(ledger=LEDGER, amounts={State.WAITING: 3}, oldest_due=timedelta(seconds=2))]
    assert only(judge(replace(QUIET, ledgers=due, workers=[]))).subject is Subject.NOBODY_WORKS
    stopped = worker(
        "app-1:902", started="21:34:40", seen=NOW - timedelta(seconds=2), stopped_at=NOW - timedelta(seconds=2)
    )
    assert judge(replace(QUIET, ledgers=due, workers=[stopped])).is_well
    gone = replace(stopped, seen_at=NOW - timedelta(seconds=11), stopped_at=NOW - timedelta(seconds=11))
    assert only(judge(replace(QUIET, ledgers=due, workers=[gone]))).subject is Subject.NOBODY_WORKS
    assert judge(replace(QUIET, ledgers=due)).is_well, "with a worker there two seconds are not late"
    later = [LedgerNow(ledger=LEDGER, amounts={State.WAITING: 3}, oldest_due=None)]
    assert judge(replace(QUIET, ledgers=later, workers=[])).is_well, "nothing is due yet"


def test_a_kind_that_nobody_handles_does_not_recover_by_itself() -> None:
    """Slots are free, and nobody has tried it for minutes: the kind is named, and a person has to start what handles it."""
    late = [LedgerNow(ledger=LEDGER, amounts={State.WAITING: 1}, oldest_due=timedelta(minutes=3))]
    unheard = KindFacts(ledger=LEDGER, kind="unheard.of", waiting=1, oldest_due=timedelta(minutes=3))
    one = only(judge(replace(QUIET, ledgers=late, kinds=[*QUIET.kinds, unheard])))
    assert (one.rank.words, plain(one.wrong[0])) == (
        "Needs you",
        "Nobody takes unheard.of: the oldest due task has waited for 3 min.",
    )
    assert plain(one.by_itself) == "Nothing: they wait, and no try is charged."
    tried = only(judge(replace(QUIET, ledgers=late, kinds=[*QUIET.kinds, replace(unheard, tries=4)])))
    assert (tried.subject, tried.rank.words) == (Subject.BEHIND, "Recovering by itself")


def test_workers_that_are_lost_together_are_one_row() -> None:
    """A host that is gone takes six workers with it: one sentence with what they held, not six of the same."""
    lost = [
        worker(
            f"app-3:{pid}",
            started="21:34:40",
            seen=NOW - timedelta(seconds=40 + pid),
            held=2,
            lease=timedelta(seconds=60),
        )
        for pid in range(6)
    ]
    one = only(judge(replace(QUIET, workers=[*lost, *QUIET.workers])))
    assert (one.rank, plain(one.wrong[0])) == (Rank.HEALS, "6 workers have been lost since 21:41:07, holding 12 tasks.")
    assert plain(one.wrong[1]).startswith("All on app-3; no goodbye, so they were killed or cut off. The other ")
    assert plain(one.by_itself) == "Their leases end by 21:42:14; then the other workers take the 12 tasks."
    few = judge(replace(QUIET, workers=[*lost[:2], *QUIET.workers]))
    assert len(few.troubles) == 2


def test_four_hundred_that_were_done_with_a_retry_are_no_trouble() -> None:
    """They failed once, and then all were done."""
    retried = down(failures=400, tries=800, lately=400, waiting=0, recovered_at=at("21:41:40"), tries_since=400,
                   last_failure=at("21:41:35"))  # fmt: skip
    assert judge(replace(QUIET, causes=[retried])).is_well


def test_tries_that_fail_while_their_tasks_are_done_need_nobody() -> None:
    """A destination that hiccups is named, as something that retries deal with; the first death, or a heap that waits, makes it a person's business."""
    flaky = down(failures=18, tries=64, waiting=1)
    verdict = judge(replace(QUIET, causes=[flaky]))
    one = only(verdict)
    assert (verdict.title, one.rank, one.subject, one.button) == (
        "Nothing needs you",
        Rank.HEALS,
        Subject.RETRIED,
        None,
    )
    assert plain(one.wrong[0]) == "payment.capture has been failing now and then since 21:41:30: 28% of 64 tries."
    assert plain(one.by_itself) == "Its tasks are done at a later try: each gets 4 in about 21 minutes."
    for worse in ({"died_lately": 1}, {"waiting": 9}, {"waiting_more": True}, {"failures": 33}):
        assert only(judge(replace(QUIET, causes=[replace(flaky, **worse)]))).rank is Rank.DYING, worse


@pytest.mark.parametrize("facts", [Facts(now=NOW), QUIET, CALM])
def test_without_anything_wrong_all_is_well(facts: Facts) -> None:
    """Also where nothing is known at all."""
    verdict = judge(facts)
    assert (verdict.is_well, verdict.title) == (True, "All is well")


def test_nothing_is_said_of_what_is_not_known() -> None:
    """No version, no line, no policy, no kind: every answer is still a sentence."""
    bare = CauseFacts(
        ledger="jobs",
        id="1",
        kind=None,
        error="",
        since=NOW,
        last_failure=NOW,
        failures=50,
        tries=50,
        waiting=3,
        dead=1,
    )
    one = only(judge(Facts(now=datetime.fromisoformat("2026-03-15T21:41:52+00:00"), causes=[bare])))
    assert all(plain(sentence).endswith(".") for sentence in (one.wrong[0], one.by_itself, one.safe, one.told))
    assert one.button is None
