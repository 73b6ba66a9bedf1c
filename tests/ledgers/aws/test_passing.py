"""Gates over items, where that is not what every ledger promises: lines, slots that come back, cut calls and kills, and what it costs."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from redrive.core.durations import days, minutes, seconds
from redrive.core.gate_rules import Breaker, read_rule
from redrive.core.outcome import Done, LeaseExpired
from redrive.core.task import Claim
from redrive.engine.worker import Worker
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import UsageError
from redrive.items import Part
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.expressions import Update
from redrive.ledgers.aws.gate_items import FORGET_LINE
from redrive.ledgers.aws.handed import hand_over
from redrive.ledgers.aws.heads import head_key, parked_key
from redrive.ledgers.aws.queue import to_body
from redrive.ports import Actor
from tests.engine.workbench import handlers_of
from tests.ledgers.aws.clock_sqs import ClockSqs
from tests.ledgers.aws.cutting import CuttingClient, KilledError, Place
from tests.ledgers.aws.ends import check_the_end, read_all
from tests.ledgers.aws.homes import ItemHome, make_ledger, new_event
from tests.ledgers.aws.test_cut_calls import LIVES_MAX, LIVES_OF_CUTS, Life, Posts
from tests.ledgers.homes import ADA, BACKOFF, LEASE, TRANSIENT, settlement

STORES = ("aws",)
CODE = Actor(name="code")
BANK = "bank"


async def limit(home: ItemHome, pattern: str = "*", **limits: Any) -> None:
    await home.ledger.set_rule(pattern, read_rule(**limits), CODE, by_code=True)


async def held(home: ItemHome, name: str = BANK) -> int:
    found = await home.ledger.gate(name)
    assert found is not None
    return found[0].held


# --- one that hangs -----------------------------------------------------------------------------------------------------


async def test_an_endpoint_that_hangs_delays_nobody_elses_delivery(home: ItemHome) -> None:
    """Four slots, six deliveries to an endpoint that answers nobody, one to another: that one is made while the others hang, which is
    never more than three; in the end all are done. The hanging ones wait for the other, so a delay would last for ever."""
    await limit(home, concurrency=3)
    hanging, most, served = 0, 0, asyncio.Event()

    async def deliver(task: Any) -> None:
        nonlocal hanging, most
        if task.payload["endpoint_id"] == "quick":
            served.set()
            return
        hanging += 1
        most = max(most, hanging)
        await served.wait()
        hanging -= 1

    await home.put_behind("slow", 6)
    await home.put_behind("quick")
    worker = Worker(home.ledger, handlers_of(trigger_deliveries=deliver), WorkerSettings(concurrency=4))
    async with asyncio.timeout(60):
        await worker.run(until_idle=True)
    assert most == 3
    assert (await home.ledger.all_counters())["d_done"] == 7
    assert await held(home, "slow") == 0


# --- lines --------------------------------------------------------------------------------------------------------------


async def test_no_sweep_meets_what_is_parked(home: ItemHome) -> None:
    """However long it waits: its head is in no shard of what is due, and nothing of it is written. A message that comes again is forgotten."""
    await home.ledger.pause_gate(BANK, ADA)
    [id_] = await home.put_behind(BANK)
    assert await home.ledger.claim(10, LEASE) == []
    head_id = str(id_).partition(".")[0]
    [before] = (await home.ledger.heads([head_id])).values()
    assert (before.look_at, before.parts["00"].parked, before.parts["00"].retries) == (None, True, 0)
    home.clock.advance(days(2))
    await home.ledger._send([(head_id, before.parts["00"].due_at)])  # type: ignore[list-item]
    assert await home.ledger.reclaim(10, LEASE) == await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.queue.depth() == 0
    assert (await home.ledger.heads([head_id]))[head_id] == before
    await home.ledger.resume_gate(BANK, ADA)
    assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == [id_]


async def test_what_others_parked_goes_first(home: ItemHome) -> None:
    """While something stands in a gate's line, what comes joins it, and the line is let through in the order in which it was due."""
    await limit(home, concurrency=1)
    [first] = await home.put_behind(BANK)
    [claim] = await home.ledger.claim(10, LEASE)
    assert claim.task.id == first
    waited = []
    for _ in range(3):
        home.clock.advance(seconds(1))
        waited += await home.put_behind(BANK)
        assert await home.ledger.claim(10, LEASE) == []
    order = []
    for _ in range(3):
        await home.ledger.settle([settlement(claim)], worker="w1")
        [claim] = await home.ledger.claim(10, LEASE)
        order.append(claim.task.id)
    assert order == waited


async def test_a_line_is_seen_by_other_processes(home: ItemHome) -> None:
    """What one process has parked another lets through: after a resume at once, and when a slot is free within a second."""
    await limit(home, concurrency=1)
    other = await home.another()
    await home.put_behind(BANK, 2)
    [claim] = await home.ledger.claim(10, LEASE)
    assert await other.claim(10, LEASE) == []
    await home.ledger.settle([settlement(claim)], worker="w1")
    home.clock.advance(seconds(1))
    [claim] = await other.claim(10, LEASE)
    await other.settle([settlement(claim)], worker="w2")
    await home.ledger.pause_gate(BANK, ADA)
    await home.put_behind(BANK)
    assert await home.ledger.claim(10, LEASE) == await other.claim(10, LEASE) == []
    await home.ledger.resume_gate(BANK, ADA)
    assert len(await other.claim(10, LEASE)) == 1


async def test_slots_of_a_killed_worker_come_back(home: ItemHome) -> None:
    """With its lease, and not before; a worker that lives keeps them as long as it extends its claims."""
    await limit(home, concurrency=2)
    await home.put_behind(BANK, 4)
    kept, lost = await home.ledger.claim(10, LEASE)
    home.clock.advance(LEASE / 2)
    assert await home.ledger.extend([kept], LEASE) == []  # both were claimed at once, under one fence
    home.clock.advance(LEASE * 0.75)
    assert await held(home) == 2
    assert await home.ledger.settle([settlement(kept)], worker="w1") == []
    assert await held(home) == 1
    home.clock.advance(LEASE)
    assert await held(home) == 0
    assert len(await home.ledger.claim(10, LEASE)) >= 2
    assert lost.claim_id == kept.claim_id


async def test_a_line_is_looked_at_until_it_is_surely_empty(home: ItemHome) -> None:
    """One that is found empty may have something that the index does not know yet: it is found later, and then the gate is left alone."""
    await limit(home, concurrency=1)
    [first, second] = await home.put_behind(BANK, 2)
    [claim] = await home.ledger.claim(10, LEASE)
    late = second if claim.task.id == first else first
    place = parked_key(str(late).partition(".")[0], "00")
    item = await home.ledger.dynamo.get(place)
    assert item is not None
    hide = Update(place).set("due_shard", "behind")
    await home.ledger.dynamo.write([hide.action()])
    await home.ledger.settle([settlement(claim)], worker="w1")
    assert await home.ledger.claim(10, LEASE) == []
    await home.ledger.dynamo.write([Update(place).set("due_shard", item["due_shard"]["S"]).action()])
    home.clock.advance(seconds(2))
    [claim] = await home.ledger.claim(10, LEASE)
    await home.ledger.settle([settlement(claim)], worker="w1")
    for _ in range(20):
        assert await home.ledger.claim(10, LEASE) == []
        home.clock.advance(FORGET_LINE / 4)
    assert await home.ledger.next_due() is None


async def test_one_bad_head_holds_up_no_line(home: ItemHome) -> None:
    """A parked delivery whose event cannot be read, or is gone, costs those behind it nothing."""
    await home.ledger.pause_gate(BANK, ADA)
    ids = [str(id_).partition(".")[0] for id_ in await home.put_behind(BANK, 3)]
    assert await home.ledger.claim(10, LEASE) == []
    await home.ledger.dynamo.write([Update(head_key(ids[0])).set("ver", "three").action()])
    await home.ledger.dynamo.write([Update(head_key(ids[1])).set("tomb", 1).action()])
    await home.ledger.resume_gate(BANK, ADA)
    claims = [claim for _ in range(3) for claim in await home.ledger.claim(1, LEASE)]
    assert [str(claim.task.id).partition(".")[0] for claim in claims] == ids[2:]


async def test_what_is_ended_leaves_its_line(home: ItemHome) -> None:
    """A person cancels what is parked: nothing is left of it in the line."""
    await home.ledger.pause_gate(BANK, ADA)
    ids = await home.put_behind(BANK, 2)
    assert await home.ledger.claim(10, LEASE) == []
    assert await home.ledger.cancel(ids, ADA) == ids
    left = await read_all(home.clients.dynamodb, home.ledger.dynamo.table)
    assert not [item for item in left if item["sk"]["S"].startswith("G#")]


# --- pauses of all ------------------------------------------------------------------------------------------------------


async def test_a_pause_of_all_leaves_the_messages_alone(home: ItemHome) -> None:
    """A worker that is told to claim nothing asks the queue for nothing, and a sweep sends no more messages; what runs ends."""
    await home.put_behind(BANK, 2)
    [claim] = await home.ledger.claim(1, LEASE)
    assert await home.ledger.pause_gate("kind:*", ADA)
    assert await (await home.another()).paused_kinds() == ["kind:*"]
    assert await home.ledger.settle([settlement(claim)], worker="w1") == []
    depth = await home.ledger.queue.depth()
    with home.ledger.waiter() as waiter:
        assert await home.ledger.claim(10, LEASE, kinds=[]) == []
        assert await waiter.wait(seconds(0.01)) is False
    home.clock.advance(minutes(10))
    assert await home.ledger.reclaim(10, LEASE) == []
    assert await home.ledger.queue.depth() == depth
    assert await home.ledger.resume_gate("kind:*", ADA)
    assert await home.ledger.paused_kinds() == []
    assert len(await home.ledger.claim(10, LEASE)) == 1


async def test_a_function_puts_messages_off_while_all_is_paused(home: ItemHome) -> None:
    """They are not left to fail: the event source would put them among the dead letters."""
    [id_] = await home.put_behind(BANK)
    [received] = await home.ledger.queue.receive(1, seconds(0))
    assert received.content is not None
    await home.ledger.queue.delete([received])
    await home.ledger.pause_gate("kind:trigger_deliveries", ADA)
    handed, queue = hand_over(home.ledger, [("m1", to_body(received.content))], is_closing=lambda: False)
    worker = Worker(handed, handlers_of(trigger_deliveries=lambda _: None), WorkerSettings())
    await worker.run(until_idle=True)
    assert queue.unheeded == []
    await home.ledger.resume_gate("kind:trigger_deliveries", ADA)
    assert await home.ledger.claim(10, LEASE) == []
    home.clock.advance(seconds(15))
    assert [claim.task.id for claim in await home.ledger.claim(10, LEASE)] == [id_]


# --- what is refused, and what it costs ---------------------------------------------------------------------------------


async def test_what_gates_cannot_do_here_is_refused(home: ItemHome) -> None:
    """Each with one sentence that names the remedy; limits are for gates, and a thousand at once are the most."""
    for limits in ({"rate": "20/s"}, {"budget": 0.2}):
        with pytest.raises(
            UsageError, match="kept in DynamoDB and have no rate and no budget: limit how many run at once"
        ):
            await limit(home, **limits)
    with pytest.raises(UsageError, match="up to 1,000 run at once, not 5,000: set less, or no limit"):
        await limit(home, concurrency=5_000)
    with pytest.raises(UsageError, match="can only be paused"):
        await limit(home, "kind:*", concurrency=1)
    assert await home.ledger.gate_rules() == {}


async def test_a_batch_is_two_writes_of_its_gate(home: ItemHome) -> None:
    """Ten deliveries to one endpoint, claimed and settled together: one write takes their slots, and one gives them back; the gate is read
    once, and the limits with what is paused. Without a limit there is no write."""
    for limits, writes in (({"concurrency": 10, "breaker": Breaker(failures=10)}, 2), ({}, 0)):
        await limit(home, **limits)
        await home.put_behind(BANK, 10)
        home.ledger._gates_fresh = minutes(1)
        await home.ledger.rules(anew=True)
        home.ledger._gates_known.clear()
        client = CuttingClient(home.ledger.dynamo._client)
        home.ledger.dynamo._client, real = client, home.ledger.dynamo._client
        claims = await home.ledger.claim(10, LEASE, gates=False)
        assert len(claims) == 10
        assert await home.ledger.settle([settlement(claim) for claim in claims], worker="w1") == []
        home.ledger.dynamo._client = real
        assert client.calls["put_item"] == writes
        assert client.calls["batch_get_item"] == 2, "the heads, and their gates"
        assert client.calls["query"] == 0
        home.ledger._gates_fresh = seconds(0)


# --- cut calls and kills ------------------------------------------------------------------------------------------------


class GateLife(Life):
    """The life of an event with two deliveries to one endpoint that takes one at a time, and that is paused and down on the way."""

    async def live(self) -> None:
        """Claimed and parked, settled, paused and resumed, let through, tripped, probed and returned."""
        home, ledger, gate, now = self._home, self.ledger, f"ep-{self._id}", self._home.clock.now()
        self.cuts.doing = "take"
        parts = {number: Part(gate, due_at=now) for number in ("00", "01")}
        await ledger.take(new_event(self._id, parts, now), counts={"received": 1})
        [first] = await self._claim("claim and park", fence=uuid4())
        self._post(first)
        self.cuts.doing = "settle"
        assert await ledger.settle([settlement(first)], worker="w1") == []
        self.cuts.doing = "pause"
        assert await ledger.pause_gate(gate, ADA)
        self.cuts.doing = "look"
        assert await self._ours(await ledger.claim(100, LEASE)) == []
        self.cuts.doing = "resume"
        assert await ledger.resume_gate(gate, ADA)
        second = await self._let_through("let through")
        self.cuts.doing = "trip"
        assert await ledger.settle([settlement(second, TRANSIENT)], worker="w1") == []
        home.clock.advance(BACKOFF)
        [probe] = await self._claim("probe")
        assert probe.seen is not None
        assert probe.seen.probe
        self._post(probe)
        self.cuts.doing = "extend"
        assert await ledger.extend([probe], LEASE) == []
        self.cuts.doing = "return"
        assert await ledger.settle([settlement(probe, Done())], worker="w1") == []

    async def _let_through(self, verb: str) -> Claim:
        self.cuts.doing = verb
        claims = await self._ours(await self.ledger.claim(100, LEASE))
        if not claims:  # its own news of the gate were lost: it is found by its time
            self._home.clock.advance(seconds(1))
            claims = await self._ours(await self.ledger.claim(100, LEASE))
        [claim] = claims
        self._post(claim)
        return claim


async def gate_places(home: ItemHome) -> list[Place]:
    """The calls of such a life that nothing happens to. Of questions that are all alike one is enough."""
    await limit(home, concurrency=1, breaker=Breaker(failures=1, within=60, probe=30))
    life = GateLife(home, "event-whole", {})
    await life.live()
    assert {"put_item", "transact_write_items", "batch_get_item", "query"} < {call for _, call, _ in life.cuts.places}
    return life.cuts.places


async def check_gates(home: ItemHome, posts: Posts, deliveries: int) -> None:
    """Everything has ended, no line has anything in it, and each gate lets the next one through: nothing is held, or paused, or out."""
    end = await check_the_end(home.clients.dynamodb, home.ledger, posts, deliveries, home.clock.now())
    assert not [item for item in end.items if item["sk"]["S"].startswith("G#")]
    names = [item["gate"]["S"] for item in end.items if item["pk"]["S"].startswith("G#") and item["sk"]["S"] == "G"]
    for gate, _ in await home.ledger.gates(names):
        assert (gate.held, gate.paused_at, gate.ready) == (0, None, True), gate


@pytest.mark.parametrize("where", ["before", "after"])
async def test_each_call_of_a_gate_is_cut_once(home: ItemHome, where: str) -> None:
    """A life behind a gate with cut calls is the same life."""
    places, posts = await gate_places(home), Posts()
    for number in range(LIVES_OF_CUTS):
        life = GateLife(home, f"event-{number:03}", dict.fromkeys(places[number::LIVES_OF_CUTS], where))
        await life.live()
        assert not life.cuts.left
        posts += life.posts
    await check_gates(home, posts, 2 * (LIVES_OF_CUTS + 1))


async def test_each_write_of_a_gate_is_the_last(home: ItemHome) -> None:
    """A process that dies while it parks, takes slots, trips, probes, pauses or resumes leaves no gate stuck and no delivery forgotten.

    Who dies after a question, or before a write, leaves what the write before has left.
    """
    asking = ("query", "get_item", "batch_get_item")
    places = [place for place in await gate_places(home) if place[1] not in asking]
    posts, taken = Posts(), 1
    for number, place in enumerate(places):
        id_ = f"event-{number:03}"
        life = GateLife(home, id_, {place: "killed after"})
        with pytest.raises(KilledError):
            await life.live()
            raise KilledError
        assert not life.cuts.left
        taken += id_ in await home.ledger.heads([id_])
        posts += life.posts
    ledger = make_ledger(
        Dynamo(home.clients.dynamodb, home.ledger.dynamo.table), ClockSqs(home.clock).queue(), home.clock
    )
    for number in range(len(places)):
        await ledger.resume_gate(f"ep-event-{number:03}", ADA)
    for _ in range(LIVES_MAX):
        lost, claims = await ledger.reclaim(100, LEASE), await ledger.claim(100, LEASE)
        posts += [(str(claim.task.id), str(claim.claim_id)) for claim in claims if claim.abandoned is None]
        settled = [settlement(claim, LeaseExpired() if claim.abandoned else Done()) for claim in [*lost, *claims]]
        assert await ledger.settle(settled, worker="w2") == []
        home.clock.advance(minutes(2))
        if not settled and await ledger.next_due() is None:
            break
    await check_gates(home, posts, 2 * taken)
