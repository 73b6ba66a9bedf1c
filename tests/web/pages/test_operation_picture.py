"""The picture of an operation: one square is one task, however the squares are drawn."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from redrive.core.operation import ALL_NOW, Course, Fate, FateTally, OperationState, Ramp
from redrive.operator.operations import Operation, StepTally
from redrive.web.pages.operation_picture import PITCH, SQUARES_MAX, _blocks, draw_brake, draw_rate, draw_steps

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)
OPERATION = Operation(
    id="7c2f", ledger="redrive_task", course=Course(state=OperationState.RUNNING, ramp=Ramp(), step=3, in_step=100),
    tally=FateTally(total=1318, released=131, done=88, failed=4, skipped=2), asked={"kind": "crm.sync"}, until=NOW,
    started_by="ada", reason="CRM is back", started_at=NOW, changed_by="ada", changed_at=NOW,
)  # fmt: skip
STEPS = [
    StepTally(number=1, fates={Fate.DONE: 1}, began_at=NOW, ended_at=NOW + timedelta(seconds=3)),
    StepTally(number=2, fates={Fate.DONE: 5}, began_at=NOW, ended_at=NOW + timedelta(seconds=4)),
    StepTally(number=3, fates={Fate.DONE: 24, Fate.FAILED: 1}, began_at=NOW, ended_at=NOW + timedelta(seconds=9)),
    StepTally(number=4, fates={Fate.DONE: 58, Fate.FAILED: 3, Fate.RELEASED: 39, Fate.SKIPPED: 2}, began_at=NOW),
]


def squares(step, look):
    """How many squares of a look a step shows."""
    count = lambda px: (px + PITCH - 8) // PITCH  # noqa: E731
    return sum(count(block.width) * count(block.height) for block in step.blocks if block.look == look)


def test_each_task_is_a_square_in_its_step():
    """As many as there are, by what became of them; the steps to come are drawn, too."""
    drawn = draw_steps(OPERATION, STEPS)
    assert [(step.number, step.when, step.size) for step in drawn] == [
        (1, "past", 1), (2, "past", 5), (3, "past", 25), (4, "now", 100), (5, "next", 1185),
    ]  # fmt: skip
    assert [squares(drawn[3], look) for look in ("done", "failed", "released")] == [58, 3, 39]
    assert squares(drawn[4], "to-come") == 1185
    assert drawn[2].told == "24 done, 1 failed again in 9s"
    assert drawn[3].told == "58 done, 3 failed again, 39 running; 2 skipped"
    assert drawn[4].title == "Step 5, the rest"


def test_a_million_tasks_share_squares():
    """And the picture says how many stand in one."""
    many = replace(OPERATION, tally=replace(OPERATION.tally, total=1_000_000))
    last = draw_steps(many, STEPS)[-1]
    assert squares(last, "to-come") <= SQUARES_MAX
    assert last.tasks_per_square == 667
    assert len(last.blocks) <= 3


@given(st.integers(1, 63), st.lists(st.integers(0, 200), min_size=1, max_size=5))
def test_squares_fill_the_lines_without_a_gap_or_an_overlap(columns, amounts):
    """Whatever the amounts: each place is taken once, from the bottom left on."""
    lines, places, start = -(-max(1, sum(amounts)) // columns), [], 0
    for number, amount in enumerate(amounts):
        blocks = _blocks(str(number), start, start + amount, columns, lines)
        assert len(blocks) <= 3
        for block in blocks:
            for row in range(block.y // PITCH, (block.y + block.height) // PITCH + 1):
                places += [
                    (lines - 1 - row) * columns + block.x // PITCH + at for at in range((block.width + 2) // PITCH)
                ]
        start += amount
    assert sorted(places) == list(range(sum(amounts)))


def test_the_brake_says_how_far_it_is():
    """The share, the limit, and where both stand."""
    brake = draw_brake(OPERATION)
    assert (brake.share, brake.told, brake.limit) == ("3.05%", "4 of 131 released failed again", "10%")
    assert 0 < brake.filled < brake.limit_at < 100
    assert not draw_brake(replace(OPERATION, course=replace(OPERATION.course, ramp=ALL_NOW))).halts


def test_the_rate_of_the_last_minute():
    """What was released longer ago is not drawn."""
    at = [NOW - timedelta(seconds=0.5)] * 20 + [NOW - timedelta(seconds=30)] * 10 + [NOW - timedelta(seconds=90)]
    rate = draw_rate(OPERATION, at, NOW)
    assert (rate.now, len(rate.bars)) == ("20", 2)
    assert draw_rate(OPERATION, [], NOW).bars == []
