"""What effects promise, tried with real processes: small by `test_effects.py`, and at full size by `python -m proof`.

Each function asserts what must hold, and comes back with its figures.
"""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from itertools import count

from redrive import Redrive, State
from redrive.lane import make_task
from redrive.operator.effects import UnknownEffect

from .books import all_ended, until
from .effect_apps import BANK
from .processes import Ground, WorkerProcess

APP = "tests.faults.effect_apps:app"
WORKERS = 3
LEASE_SECONDS = 5.0
DROPS, LOSES = 0.2, 0.05
"""How often the bank commits and drops the line, and how often it drops the line before."""
DARK = 0.01
"""Of how many accounts it shows nothing, so that a person must answer: their first payment is never answered."""


class Bank:
    """It pays whatever it is asked to, as often as it is asked; and it is a bad correspondent. It lives where nothing is killed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.payments: defaultdict[str, list[str]] = defaultdict(list)
        """What it has committed: the keys that came with each payment of a task."""
        self.dropped = self.looked = 0

    @property
    def twice(self) -> int:
        """How many tasks were paid more than once."""
        return sum(len(keys) > 1 for keys in self.payments.values())

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question and its answer, or none."""
        try:
            line = await reader.readline()
            if line:
                await self._answer(json.loads(line), writer)
        finally:
            writer.close()

    async def _answer(self, asked: dict[str, str], writer: asyncio.StreamWriter) -> None:
        task, key = asked["task"], asked["key"]
        if asked["do"] == "look":
            self.looked += 1
            dark = task.startswith("dark")
            writer.write(json.dumps("dark" if dark else self.payments.get(task)).encode() + b"\n")
            return
        if self._rng.random() < LOSES:
            return
        await asyncio.sleep(self._rng.uniform(0, 0.05))
        self.payments[task].append(key)
        if self._rng.random() < DROPS or (task.startswith("dark") and len(self.payments[task]) == 1):
            self.dropped += 1
            return
        writer.write(b'"paid"\n')


@asynccontextmanager
async def open_bank(ground: Ground, rng: random.Random) -> AsyncIterator[Bank]:
    """A bank that the workers of this ground find."""
    bank = Bank(rng)
    server = await asyncio.start_server(bank.answer, "127.0.0.1", 0)
    ground.environment[BANK] = str(server.sockets[0].getsockname()[1])
    async with server:
        yield bank


async def killed(
    ground: Ground,
    rng: random.Random,
    *,
    payments: int,
    kills: int,
    blindly: bool = False,
    lease: float = LEASE_SECONDS,
) -> str:
    """Workers are killed while they pay: no payment twice, none lost, every unknown is shown and can be answered.

    Paid `blindly` the same storm pays some twice, or it would show nothing.
    """
    keys = [f"{'dark' if rng.random() < DARK else 'pay'}-{number}" for number in range(payments)]
    keys[0] = "dark-0"
    async with Redrive(ground.url) as app, open_bank(ground, rng) as bank:
        await _storm(app, ground, rng, keys, kills, "pay_blindly" if blindly else "pay", lease)
        paid_twice = bank.twice
        lost = [key for key in keys if not bank.payments[key]]
        if blindly:
            assert paid_twice, "the storm does not bite: nothing was paid twice"
            return f"{paid_twice:,} of {payments:,} were paid more than once"
        assert not paid_twice, f"{paid_twice} were paid more than once"
        asked = await _asked(app)
        assert {one.task.key for one in asked} <= {key for key in keys if key.startswith("dark")}
        assert set(lost) <= {one.task.key for one in asked}, "a payment was lost without a word"
        for one in asked:
            assert one.mark.why == "the probe cannot tell: the bank does not show this account", one
        done = (await app.tasks.counts())[State.DONE]
        assert done + len(asked) == payments, f"{done} done, {len(asked)} asked"
        await _answer(app, ground, bank, asked, payments)
        assert not bank.twice, f"{bank.twice} were paid more than once after the answers"
        assert all(bank.payments[key] for key in keys), "a payment was lost"
        return (
            f"every one paid exactly once; {bank.dropped:,} answers were dropped, the probe was asked {bank.looked:,} times, "
            f"{len(asked):,} were answered by a person"
        )


async def _storm(
    app: Redrive, ground: Ground, rng: random.Random, keys: list[str], kills: int, kind: str, lease: float
) -> None:
    """Payments come in while one worker after the other is killed; until all have ended."""
    with ExitStack() as stack:
        names = count()

        def another() -> WorkerProcess:
            name = f"worker-{next(names)}"
            return stack.enter_context(WorkerProcess(ground, name, lease=lease, concurrency=20, app=APP))

        workers = [another() for _ in range(WORKERS)]
        each = -(-len(keys) // max(kills, 1))
        for round_ in range(max(kills, 1)):
            some = keys[round_ * each : (round_ + 1) * each]
            if some:
                await app.add_many([make_task(kind, key=key) for key in some])
            if round_ < kills:
                await asyncio.sleep(rng.uniform(0.1, 0.4))
                victim = round_ % WORKERS
                assert workers[victim].kill() == -9, "a worker ended by itself: see its log"
                workers[victim] = another()
        await all_ended(app, timeout=1200)


async def _asked(app: Redrive) -> list[UnknownEffect]:
    """All that a person must answer."""
    found: list[UnknownEffect] = []
    cursor: str | None = None
    while True:
        page = await app.tasks.unknown_effects(cursor=cursor, limit=500)
        found += page.items
        if page.cursor is None:
            return found
        cursor = str(page.cursor)


async def _answer(app: Redrive, ground: Ground, bank: Bank, asked: list[UnknownEffect], payments: int) -> None:
    """A person looks into the books, and answers: what did not happen is paid now."""
    for one in asked:
        answer = "happened" if bank.payments[one.task.key] else "not-happened"
        acted = await app.tasks.answer(one.task.id, answer, actor="ada", reason="the books say so")
        assert len(acted.changed) == 1, acted
    for name in count():  # the bank is still a bad correspondent: some may be asked about once more

        async def ended() -> bool:
            counts = await app.tasks.counts()
            return counts[State.DONE] + counts[State.DEAD] == payments

        with WorkerProcess(ground, f"after-{name}", lease=LEASE_SECONDS, app=APP):
            await until(ended, "the answered payments end", 300)
        if not (left := await _asked(app)):
            return
        for one in left:
            answer = "happened" if bank.payments[one.task.key] else "not-happened"
            await app.tasks.answer(one.task.id, answer, actor="ada", reason="the books say so")
