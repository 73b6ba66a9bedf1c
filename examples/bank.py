"""A bank that goes down and comes back, and transfers that wait for it: `python -m examples.bank`.

With `--without-gates` the same outage is met without one. `docs/guides/destinations.md` walks through both.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

from redrive import Redrive, Task, TransientError, seconds
from redrive.gates import Breaker
from redrive.ports import Clock
from redrive.testing import temporary_url

TRANSFERS, PER_SECOND = 150, 10
UP_FOR, DOWN_FOR = 3, 20
"""Seconds that the bank answers at first, and then does not."""
GATE = "bank:DE"


class Bank:
    """A destination: it takes a transfer, or it is down."""

    def __init__(self) -> None:
        self.is_up = True
        self.asked = 0
        """How often it was asked, in vain or not."""

    async def transfer(self) -> None:
        """Move some money."""
        self.asked += 1
        if not self.is_up:
            raise TransientError("the bank does not answer")


def build(url: str, bank: Bank, *, gates: bool = True, clock: Clock | None = None) -> Redrive:
    """The application: transfers with three retries, behind one gate for each country's bank."""
    app = Redrive(url, clock=clock)
    if gates:
        app.gate(
            "bank:*",
            concurrency=5,
            rate="20/s",
            breaker=Breaker(failures=5, within=seconds(10), probe=seconds(2)),
        )

    @app.handler("transfer", retries=3, wait=[1, 2, 4], gate=_bank_of if gates else None)
    async def transfer(_task: Task) -> None:
        await bank.transfer()

    return app


def _bank_of(payload: Any) -> str:
    return f"bank:{payload['country']}"


def outage(bank: Bank) -> Iterator[str]:
    """The story of the bank, second by second."""
    for second in range(10_000):
        bank.is_up = not UP_FOR <= second < UP_FOR + DOWN_FOR
        yield f"{second:>3} s  bank {'up' if bank.is_up else 'down':<4}"


async def watch(
    app: Redrive, bank: Bank, pass_time: Callable[[timedelta], Awaitable[object]], tell: Callable[[str], None]
) -> dict[str, int]:
    """Some transfers a second, before the outage and in it: how things stand each second, and what became of them."""
    for second, said in enumerate(outage(bank)):
        for number in range(second * PER_SECOND, min(TRANSFERS, (second + 1) * PER_SECOND)):
            await app.add("transfer", {"country": "DE", "number": number}, key=f"transfer-{number}")
        await pass_time(timedelta(seconds=1))
        counts = {str(state): amount for state, amount in (await app.tasks.counts()).items()}
        tell(f"{said}  {await _gate(app):<28} asked {bank.asked:>4}  waiting {counts['waiting']:>3}  "
             f"done {counts['done']:>3}  dead {counts['dead']:>3}")  # fmt: skip
        if counts["done"] + counts["dead"] == TRANSFERS:
            return counts
    raise AssertionError("the outage never ends")


async def _gate(app: Redrive) -> str:
    ledger: Any = await app.tasks.ledger()
    found = await ledger.gate(GATE)
    if found is None:
        return "no gate"
    gate, _ = found
    if gate.state == "tripped" and gate.probe_at is not None:
        return f"holding, next probe {gate.probe_at:%H:%M:%S}"
    return "returning" if gate.state == "returning" else f"letting through, {gate.held} held"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(*, gates: bool) -> None:
    """The story in real time: about half a minute."""
    bank = Bank()
    async with build(temporary_url(), bank, gates=gates) as app:
        workers = app.workers()
        running = asyncio.create_task(workers.run())
        await watch(app, bank, lambda span: asyncio.sleep(span.total_seconds()), _say)
        workers.stop()
        await running


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-gates", action="store_true", help="meet the same outage without a gate")
    asyncio.run(main(gates=not parser.parse_args().without_gates))
