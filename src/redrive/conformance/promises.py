"""What every ledger promises, each as a test over a `home`: import them all into a module of tests. A new promise is a new test here, or in our own suite where it looks into tables."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from redrive.conformance.home import (
    ADA,
    BACKOFF,
    LEASE,
    PERMANENT,
    RAN,
    START,
    TRANSIENT,
    Home,
    settlement,
)
from redrive.core.backoff import Fixed
from redrive.core.decide import Settlement
from redrive.core.durations import ZERO, days, hours, minutes, seconds
from redrive.core.outcome import Done, LeaseExpired, Released, Snoozed
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.task import ClaimLost
from redrive.errors import TransitionError, UsageError
from redrive.ledgers.build import build
from redrive.ports import Actor

SEVENTH = timedelta(microseconds=1_000_007)

cancellable = pytest.mark.homes(lambda table: table.words.cancelled is not None)
on_sql = pytest.mark.homes(lambda table: table.schema != "dynamodb")
"""For transactions to join, for pruning, and for kinds of columns."""
not_pgmq = pytest.mark.homes(lambda table: table.schema != "commandbus")
"""For what only queues of PGMQ do in another way."""


async def test_late_settle_is_refused(home: Home) -> None:
    """A worker whose lease ran out cannot overwrite the next attempt."""
    await home.put()
    late = await home.claim_one()
    home.clock.advance(LEASE + SEVENTH)
    await home.expire()
    home.clock.advance(minutes(5))
    current = await home.claim_one()
    assert await home.settle(late, Done()) == [ClaimLost(late)]
    assert (await home.ledger.get(current.task.id)).state is State.CLAIMED
    assert await home.settle(current, Done()) == []


async def test_a_settled_claim_cannot_be_settled_again(home: Home) -> None:
    """The second settlement of a claim is refused, also when the task waits again."""
    await home.put()
    claim = await home.run(TRANSIENT)
    assert await home.settle(claim, Done()) == [ClaimLost(claim)]
    assert len(await home.ledger.attempts(claim.task.id)) == 1


async def test_one_claim_twice_in_one_batch(home: Home) -> None:
    """A claim that is settled twice in one batch is settled once, and the second is lost."""
    [id_] = await home.put()
    claim = await home.claim_one()
    settled = [settlement(claim, Done()), settlement(claim, PERMANENT)]
    assert await home.ledger.settle(settled, worker="w1") == [ClaimLost(claim)]
    [attempt] = await home.ledger.attempts(id_)
    task = await home.ledger.get(id_)
    assert task is not None
    assert attempt.outcome == "done"
    assert task.state is State.DONE


async def test_extending_twice_is_harmless(home: Home) -> None:
    """An extension whose answer was lost can be sent again: no worker loses its own claim by it."""
    await home.put()
    claim = await home.claim_one()
    assert await home.ledger.extend([claim], LEASE) == []
    assert await home.ledger.extend([claim], LEASE) == []
    assert await home.settle(claim, Done()) == []


async def test_extend_mixes_lost_and_held(home: Home) -> None:
    """In a batch of extensions each stands for itself."""
    await home.put(3)
    claims = await home.ledger.claim(3, LEASE)
    await home.settle(claims[1], Done())
    assert await home.ledger.extend(claims, LEASE) == [ClaimLost(claims[1])]


async def test_a_claimed_task_is_not_claimed_again(home: Home) -> None:
    """A task has at most one holder."""
    await home.put()
    await home.claim_one()
    assert await home.ledger.claim(10, LEASE) == []


async def test_concurrent_claims_are_disjoint(home: Home) -> None:
    """Claims that run at once, through two databases, never share a task and miss none."""
    await home.put(60)
    other = await home.another()
    rounds = [ledger.claim(10, LEASE) for ledger in (home.ledger, other) for _ in range(5)]
    taken = [claim for claims in await asyncio.gather(*rounds) for claim in claims]
    taken += await home.ledger.claim(60, LEASE)
    assert len(taken) == 60
    assert len({claim.task.id for claim in taken}) == 60


async def test_claim_takes_at_most_its_limit(home: Home) -> None:
    """A claim is as large as was asked for, first tries and retries together."""
    await home.put(6)
    claims = await home.ledger.claim(3, LEASE)
    await home.ledger.settle([settlement(claim, Released()) for claim in claims], worker="w1")
    for limit, expected in ((0, 0), (1, 1), (4, 4), (9, 1)):
        assert len(await home.ledger.claim(limit, LEASE)) == expected


async def test_what_is_due_later_is_left_until_then(home: Home) -> None:
    """A task is claimed from its due instant on, and not a millisecond before."""
    await home.put(delay=minutes(10))
    home.clock.advance(minutes(10) - timedelta(milliseconds=1))
    assert await home.ledger.claim(1, LEASE) == []
    home.clock.advance(timedelta(milliseconds=1))
    assert len(await home.ledger.claim(1, LEASE)) == 1


async def test_a_retry_is_left_until_its_delay_is_over(home: Home) -> None:
    """A failed task is claimed again from its due instant on, and not a millisecond before."""
    await home.put()
    await home.run(TRANSIENT)
    home.clock.advance(BACKOFF - timedelta(milliseconds=1))
    assert await home.ledger.claim(1, LEASE) == []
    home.clock.advance(timedelta(milliseconds=1))
    [claim] = await home.ledger.claim(1, LEASE)
    assert claim.number == 2


@not_pgmq
async def test_an_abandoned_task_is_never_claimed(home: Home) -> None:
    """A claim that was never settled is not handed out by `claim`, however long ago it ran out."""
    await home.put()
    await home.claim_one()
    home.clock.advance(days(2))
    assert await home.ledger.claim(1, LEASE) == []


async def test_a_keeper_that_dies_leaves_no_trace(home: Home) -> None:
    """A reclaimed task whose keeper is lost too is handed out again, and ends in the one attempt of the first claim, uncharged."""
    [id_] = await home.put()
    lost = await home.claim_one()
    home.clock.advance(LEASE)
    await home.reclaim(1, LEASE)
    home.clock.advance(LEASE)
    await home.expire()
    [attempt] = await home.ledger.attempts(id_)
    assert attempt.claim_id == lost.claim_id
    assert attempt.number == 1
    assert (await home.ledger.get(id_)).failures == 0


async def test_reclaim_of_many_at_once_is_disjoint(home: Home) -> None:
    """Keepers that look at once never share an expired claim, and together find all."""
    await home.put(20)
    await home.ledger.claim(20, LEASE)
    home.clock.advance(LEASE)
    other = await home.another()
    found = await asyncio.gather(
        *(home.reclaim(5, LEASE, ledger=ledger) for ledger in (home.ledger, other) for _ in range(3))
    )
    taken = [claim.task.id for claims in found for claim in claims]
    taken += [claim.task.id for claim in await home.reclaim(20, LEASE)]
    assert len(taken) == len(set(taken)) == 20


async def test_running_alone_changes_the_fence(home: Home) -> None:
    """From then on the claim is written and extended under its new fence only; doing it again changes nothing."""
    [id_] = await home.put()
    claim = await home.claim_one()
    alone = await home.ledger.run_alone(claim)
    assert alone == claim.alone()
    assert alone.claim_id != claim.claim_id
    assert await home.ledger.run_alone(claim) == alone
    assert await home.ledger.extend([claim], LEASE) == [ClaimLost(claim)]
    assert await home.settle(claim, Done()) == [ClaimLost(claim)]
    assert await home.ledger.extend([alone], LEASE) == []
    assert await home.settle(alone, Done()) == []
    assert [attempt.claim_id for attempt in await home.ledger.attempts(id_)] == [alone.claim_id]
    assert await home.ledger.run_alone(claim) is None


async def test_a_claim_has_the_fence_that_it_was_given(home: Home) -> None:
    """Whoever claims makes the fence, so that it knows by which name to ask if the answer is lost."""
    fence = uuid4()
    await home.put(2)
    claims = await home.ledger.claim(2, LEASE, fence=fence)
    assert [claim.claim_id for claim in claims] == [fence, fence]


@not_pgmq
async def test_recall_finds_what_a_claim_took(home: Home) -> None:
    """Asked by its fence, a ledger tells what a claim took and still holds, as the claim itself would have told it."""
    fence = uuid4()
    ids = await home.put(3)
    [gone, *taken] = await home.ledger.claim(3, LEASE, fence=fence)
    assert await home.settle(gone, Done()) == []
    await home.put()
    other = await home.claim_one()
    home.clock.advance(LEASE / 2)
    recalled = await home.ledger.recall(fence, LEASE)
    assert sorted(claim.task.id for claim in recalled) == sorted({*ids} - {gone.task.id})
    told = {claim.task.id: claim for claim in taken}
    for claim in recalled:
        assert (claim.claim_id, claim.abandoned) == (fence, None)
        before = told[claim.task.id].task
        assert (claim.task.payload, claim.task.failures, claim.number) == (before.payload, before.failures, 1)
    assert await home.ledger.recall(uuid4(), LEASE) == []
    home.clock.advance(LEASE * 0.75)  # over for the claim, not for what was recalled
    assert [claim.task.id for claim in await home.reclaim(9, LEASE)] == [other.task.id]
    assert await home.ledger.settle([settlement(claim) for claim in recalled], worker="w1") == []
    assert [len(await home.ledger.attempts(id_)) for id_ in ids] == [1, 1, 1]


async def test_snoozes_and_releases_charge_no_failure(home: Home) -> None:
    """Neither snoozing nor releasing raises the count, before and after a failure."""
    [id_] = await home.put()
    for outcome in (Snoozed(ZERO), Released(), TRANSIENT, Snoozed(ZERO), Released()):
        claim = await home.run(outcome)
        home.clock.advance(BACKOFF)
    assert claim.task.failures == 1
    task = await home.ledger.get(id_)
    assert task is not None
    assert (task.state, task.failures) == (State.WAITING, 1)


async def test_each_claim_ends_in_one_attempt(home: Home) -> None:
    """Every settled claim leaves one attempt row with its start, end, outcome, worker, version, error and explanation."""
    [id_] = await home.put()
    first = await home.run(TRANSIENT)
    home.clock.advance(BACKOFF)
    second = await home.run(Snoozed(seconds(5)))
    home.clock.advance(seconds(5))
    third = await home.run(Done())
    attempts = await home.ledger.attempts(id_)
    assert [attempt.claim_id for attempt in attempts] == [first.claim_id, second.claim_id, third.claim_id]
    assert [attempt.outcome for attempt in attempts] == ["failed", "snoozed", "done"]
    assert [attempt.state for attempt in attempts] == [State.WAITING, State.WAITING, State.DONE]
    assert [attempt.number for attempt in attempts] == [1, 2, 2]
    assert {attempt.version for attempt in attempts} == {build()}
    failed, snoozed, done = attempts
    assert failed.started_at == failed.ended_at == START
    assert (failed.worker, failed.duration, failed.delay) == ("w1", RAN, BACKOFF)
    assert failed.error is not None
    assert "too slow" in failed.error
    assert failed.error_class == "transient"
    explained = settlement(first, TRANSIENT).explanation
    assert explained is not None
    assert failed.explanation == explained.as_json()
    assert (snoozed.delay, snoozed.error_class, snoozed.explanation) == (seconds(5), None, None)
    assert (done.delay, done.error, done.explanation) == (None, None, None)


@on_sql
async def test_settle_within_a_transaction(home: Home) -> None:
    """A settlement within a transaction commits with it: row, attempt and rollup."""
    [id_] = await home.put()
    claim = await home.claim_one()
    async with home.ledger.transaction() as transaction:
        assert await home.ledger.settle([settlement(claim)], worker="w1", within=transaction.connection) == []
    task = await home.ledger.get(id_)
    assert task is not None
    assert task.state is State.DONE
    assert len(await home.ledger.attempts(id_)) == 1


async def test_a_settlement_to_claimed_is_refused(home: Home) -> None:
    """A change of state that is not listed is refused before anything is written."""
    await home.put()
    claim = await home.claim_one()
    wrong = Settlement(claim=claim, outcome="done", state=State.CLAIMED, failures=0)
    with pytest.raises(TransitionError, match="claimed"):
        await home.ledger.settle([wrong], worker="w1")
    assert await home.settle(claim, Done()) == []


async def test_a_worker_can_ask_what_it_has_settled(home: Home) -> None:
    """Whoever never heard the answer to a settlement learns from the history whether it was written, and by whom."""
    await home.put(3)
    mine, theirs, open_ = await home.ledger.claim(3, LEASE)
    assert await home.ledger.settle([settlement(mine, TRANSIENT)], worker="w1") == []
    assert await home.ledger.settle([settlement(theirs)], worker="w2") == []
    assert await home.ledger.settled_by([mine, theirs, open_], "w1") == [mine]


async def test_next_due(home: Home) -> None:
    """The wait until the next task is due: nothing waits, first tries, retries, what is overdue."""
    assert await home.ledger.next_due() is None
    await home.put(delay=hours(1))
    assert await home.ledger.next_due() == pytest.approx(hours(1), abs=timedelta(milliseconds=1))
    home.clock.advance(hours(1))
    assert await home.ledger.next_due() == ZERO
    await home.run(TRANSIENT)
    assert await home.ledger.next_due() == pytest.approx(BACKOFF, abs=timedelta(milliseconds=1))
    await home.put(delay=seconds(20))
    assert await home.ledger.next_due() == pytest.approx(seconds(20), abs=timedelta(milliseconds=1))
    home.clock.advance(hours(5))
    assert await home.ledger.next_due() == ZERO
    for claim in await home.ledger.claim(5, LEASE):
        await home.settle(claim, Done())
    assert await home.ledger.next_due() is None


async def test_counts(home: Home) -> None:
    """How many tasks are in each state, counted up to a limit."""
    await home.dead(2)
    await home.put(5)
    claims = await home.ledger.claim(2, LEASE)
    await home.settle(claims[0], Done())
    counted = {State.WAITING: 3, State.CLAIMED: 1, State.DONE: 1, State.DEAD: 2, State.CANCELLED: 0}
    assert await home.ledger.counts() == counted
    assert (await home.ledger.counts(counted_max=2))[State.WAITING] == 2


async def test_two_operators_press_the_same_button(home: Home) -> None:
    """Of two redrives at once each task is changed by one, and recorded once."""
    ids = await home.dead(6)
    other = await home.another()
    bob = Actor(name="bob")
    first, second = await asyncio.gather(home.ledger.redrive(ids, ADA), other.redrive(ids, bob))
    assert sorted([*first, *second]) == sorted(ids)
    for id_ in ids:
        assert len(await home.ledger.deeds(id_)) == 1


@cancellable
async def test_cancel_of_a_task_in_retry(home: Home) -> None:
    """A task that waits for its next try can be cancelled too."""
    [id_] = await home.put()
    await home.run(TRANSIENT)
    assert await home.ledger.cancel([id_], ADA) == [id_]
    assert (await home.ledger.counts())[State.CANCELLED] == 1


@pytest.mark.parametrize("state", [State.WAITING, State.CLAIMED, State.DEAD])
async def test_resolve_to_a_state_that_is_not_listed(home: Home, state: State) -> None:
    """Resolving leads to done or cancelled only."""
    [dead] = await home.dead()
    with pytest.raises(TransitionError):
        await home.ledger.resolve([dead], state, ADA)


@on_sql
@pytest.mark.homes(lambda table: {"ended_at", "updated_at"} & table.columns().keys())
async def test_prune_never_touches_what_has_not_ended(home: Home) -> None:
    """Waiting and claimed tasks cannot be pruned, and are not when everything else is."""
    await home.put()
    await home.run(TRANSIENT)
    await home.put(2)
    claim = await home.claim_one()
    home.clock.advance(days(300))
    for state in (State.WAITING, State.CLAIMED):
        with pytest.raises(UsageError, match="only tasks that have ended"):
            await home.ledger.prune([state], ZERO)
    assert await home.ledger.prune([State.DONE, State.DEAD, State.CANCELLED], days(1)) == 0
    assert await home.settle(claim, Done()) == []


async def test_a_clock_that_goes_backwards(home: Home) -> None:
    """When the clock goes back, held tasks stay held, waiting ones wait, and none is lost or run twice."""
    await home.put(2)
    held = await home.claim_one()
    home.clock.advance(-hours(1))
    assert await home.ledger.claim(1, LEASE) == []
    assert await home.reclaim(1, LEASE) == []
    assert await home.ledger.extend([held], LEASE) == []
    assert await home.settle(held, TRANSIENT) == []
    home.clock.advance(hours(1) + BACKOFF)
    numbers = sorted(claim.number for claim in await home.ledger.claim(9, LEASE))
    assert numbers == [1, 2]
    assert await home.ledger.claim(9, LEASE) == []


async def test_a_whole_life(home: Home) -> None:
    """Tried, lost, tried until the budget is spent, dead, redriven, done: one row, all its history, nothing due."""
    [id_] = await home.put(failures_max=3)
    policy = Policy(Fixed(BACKOFF), attempts=3, name="life")
    await home.run(TRANSIENT, policy)
    home.clock.advance(BACKOFF)
    await home.ledger.run_alone(await home.claim_one())
    home.clock.advance(LEASE)
    [lost] = await home.reclaim(1, LEASE)
    assert await home.settle(lost, LeaseExpired(), policy) == []
    home.clock.advance(BACKOFF)
    await home.run(TRANSIENT, policy)
    assert (await home.ledger.counts())[State.DEAD] == 1
    home.clock.advance(hours(1))
    await home.ledger.redrive([id_], ADA)
    await home.run(Done(), policy)
    attempts = await home.ledger.attempts(id_)
    assert [attempt.outcome for attempt in attempts] == ["failed", "lease_expired", "failed", "done"]
    assert [attempt.number for attempt in attempts] == [1, 2, 3, 1]
    assert len({attempt.claim_id for attempt in attempts}) == 4
    assert await home.ledger.next_due() is None
    home.clock.advance(days(1))
    assert await home.ledger.claim(1, LEASE) == []
    assert await home.reclaim(1, LEASE) == []


@on_sql
async def test_kinds_can_be_paused_on_every_table(home: Home) -> None:
    """Gates or not: a pause is heard of by who asks, ends with its span or by a resume, and tasks are added all the while."""
    assert await home.ledger.paused_kinds() == []
    assert await home.ledger.pause_gate("kind:*", ADA)
    assert await home.ledger.pause_gate("kind:mail", ADA, span=hours(1))
    assert sorted(await home.ledger.paused_kinds()) == ["kind:*", "kind:mail"]
    await home.put()
    home.clock.advance(hours(1))
    assert await home.ledger.paused_kinds() == ["kind:*"]
    assert not await home.ledger.resume_gate("kind:mail", ADA), "it is over"
    assert await home.ledger.resume_gate("kind:*", ADA)
    assert await home.ledger.paused_kinds() == []
    await home.claim_one()
    with pytest.raises(UsageError, match="say why"):
        await home.ledger.pause_gate("kind:*", Actor(name="ada"))


__all__ = [name for name in globals() if name.startswith("test_")]
