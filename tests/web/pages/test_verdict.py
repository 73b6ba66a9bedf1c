"""The verdict as the first screen shows it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from redrive.operator.verdict import judge
from redrive.operator.verdict.values import LinkTo, Target
from redrive.web.pages.dead import cause_rows
from redrive.web.pages.frame import timed
from redrive.web.pages.verdict import charts_of, kind_rows, place_of, trouble_row
from tests.operator.verdict.story import CALM, LEDGER, NOW, SUNDAY

STARTS = [NOW.replace(second=0) - timedelta(minutes=back) for back in range(59, -1, -1)]


def series(waiting: int, added: int) -> dict[str, object]:
    """An hour as the API tells it."""
    points = [{"start": at.isoformat(), "added": added, "done": added, "dead": 0, "retried": 0} for at in STARTS]
    return {
        "step_seconds": 60,
        "points": points,
        "depth": [{"start": at.isoformat(), "waiting": waiting} for at in STARTS],
    }


def test_every_thing_that_is_named_has_an_address() -> None:
    """Each link of a verdict leads somewhere, and what strangers named is quoted."""
    verdict = judge(SUNDAY)
    links = [piece.link for one in verdict.troubles for said in (*one.wrong, one.by_itself, one.safe) for piece in said]
    places = [place_of(link) for link in links if link is not None]
    assert len(places) > 5
    assert all(place and place.startswith("/") for place in places)
    assert place_of(Target(to=LinkTo.KIND, ledger="a b", name="x/y?z")) == "/kinds/a%20b/x%2Fy%3Fz"
    assert place_of(Target(to=LinkTo.TASKS, state="dead")) == "/tasks?state=dead"
    assert (
        place_of(Target(to=LinkTo.TASKS, ledger=LEDGER, state="parked", gate="bank:DE"))
        == f"/gates?ledger={LEDGER}&prefix=bank%3ADE"
    )


def test_colour_is_never_alone() -> None:
    """Each trouble has a word and an icon beside its colour; only what needs a person is red."""
    rows = [trouble_row(one) for one in judge(SUNDAY).troubles]
    assert [(row.mood, row.icon, row.trouble.rank.words) for row in rows] == [
        ("bad", "stop", "Needs you"), ("warn", "heal", "Recovering by itself"), ("warn", "heal", "Recovering by itself"), ("info", "back", "Ready to redrive"),
    ]  # fmt: skip
    assert rows[0].view == f"/causes/{LEDGER}/9f86d081884c7d65"


def test_kinds_in_trouble_come_first_and_fine_ones_are_folded() -> None:
    """Seven of fifteen are shown, all on request, and the running minute is drawn as running."""
    verdict = judge(SUNDAY)
    rows, more = kind_rows(verdict, every=False)
    assert [row.kind.kind for row in rows][:3] == ["mail.send", "payment.capture", "crm.sync"]
    assert (len(rows), more) == (7, 8)
    assert (rows[0].share, rows[0].p50, rows[0].p95) == ("100%", "9 ms", "31 ms")
    assert kind_rows(verdict, every=True)[1] == 0


def test_a_chart_answers_its_question() -> None:
    """In trouble it says what fails and that we fall behind; when all is well, only that we keep up."""
    failing, behind, ahead = charts_of(replace(judge(SUNDAY), waiting=1478), series(150, 600))
    assert ahead.lead == "Nothing is planned by itself."
    assert failing.lead == "mail.send."
    assert "crm.sync" not in failing.lead
    assert behind.lead == "No: 1,478 wait,"
    [calm] = charts_of(replace(judge(CALM), waiting=61), series(61, 640))
    assert (calm.lead, calm.answer) == ("Yes.", "At most 61 tasks waited at once.")


def test_what_people_wrote_is_not_taken_for_an_instant() -> None:
    """Instants that the sentence says are shown in the reader's zone; a time in somebody's reason stays as it was written."""
    at = datetime(2026, 3, 15, 21, 10, tzinfo=UTC)
    pieces = timed("Paused by ada at 21:10:00: “back at 21:10:00”.", NOW, at, None)
    assert pieces == [
        ("Paused by ada at ", None),
        ("21:10:00", at),
        (": ", None),
        ("“back at 21:10:00”", None),
        (".", None),
    ]


def test_what_is_about_to_run() -> None:
    """What is due in the next minutes, ten seconds a bar, and what a gate that holds would add; no bar is pale, for none has begun."""
    verdict = judge(SUNDAY)
    due = [NOW + timedelta(seconds=at) for at in (1, 2, 15, 199)]
    [chart] = [one for one in charts_of(replace(verdict, waiting=3), series(3, 3), due) if one.name == "about-to-run"]
    assert chart.lead == "3 tries in the next 3 min."
    assert chart.answer.startswith("If bank:DE answers at its next probe, 1,204 more within")
    assert [row[1] for row in chart.rows][:2] == ["3", "0"]
    assert {look for look, _, _ in chart.shapes} == {box.look for box in chart.boxes}
    assert not any(box.pale for box in chart.boxes)
    assert "about-to-run" not in [one.name for one in charts_of(replace(judge(CALM), waiting=3), series(3, 3), due)]


def test_what_fails_now_is_the_first_cause() -> None:
    """Also while nobody is dead of it; a kind has its own alone."""
    crm = {"ledger": LEDGER, "cause": "2c26b46b68ffc68f", "kind": "crm.sync", "amount": 1318}
    rows = cause_rows(judge(SUNDAY), [crm])
    assert [(row.fails, row.trouble and row.trouble.kind, row.group) for row in rows] == [
        (True, "mail.send", None), (False, "crm.sync", crm),
    ]  # fmt: skip
    assert [row.fails for row in cause_rows(judge(SUNDAY), [crm], "mail.send")] == [True]
    assert [row.group for row in cause_rows(judge(SUNDAY), [crm], "crm.sync")] == [crm]
