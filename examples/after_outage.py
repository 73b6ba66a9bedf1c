"""Payments that died in an outage, and how they come back without a second one: `python -m examples.after_outage`.

`docs/guides/after-an-outage.md` walks through it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from redrive import PermanentError, Redrive, State, Task
from redrive.operator.operations import Operation
from redrive.ports import Clock, Filter
from redrive.testing import temporary_url

PAYMENTS = 200
LOOK_EVERY = timedelta(seconds=0.5)

PassTime = Callable[[timedelta], Awaitable[object]]
Tell = Callable[[str], None]


class Bank:
    """A destination that is down, until somebody mends it."""

    def __init__(self) -> None:
        self.is_up = False
        self.asked = 0

    async def pay(self) -> None:
        """Move some money."""
        self.asked += 1
        if not self.is_up:
            raise PermanentError("the bank does not know this account")


def build(url: str, bank: Bank, *, clock: Clock | None = None) -> Redrive:
    """The application: payments that die at once where the bank refuses them."""
    app = Redrive(url, clock=clock)

    @app.handler("pay")
    async def pay(_task: Task) -> None:
        await bank.pay()

    return app


async def live(app: Redrive, bank: Bank, pass_time: PassTime, tell: Tell) -> Operation:
    """The whole story: an outage, an operation that comes too early, and the same one when the bank is mended."""
    for number in range(PAYMENTS):
        await app.add("pay", {"payment": number}, key=f"payment-{number}")
    while (await app.tasks.counts())[State.DEAD] < PAYMENTS:
        await pass_time(LOOK_EVERY)
    tell(f"the outage: {PAYMENTS} payments are dead, the bank was asked {bank.asked} times")

    operations = app.tasks.operations
    plan = await operations.plan(Filter(kind="pay"))
    tell(f"dry run: {plan.dead.amount} match, of the kinds {dict(plan.dead.kinds)}")

    started = await operations.start(Filter(kind="pay"), actor="ada", reason="the bank says it is back", rate="50/s")
    operation = await follow(app, started.id, pass_time, tell)
    tell(f"the bank was asked {bank.asked - PAYMENTS} times more; {operation.tally.left} payments were not touched")

    bank.is_up = True
    await operations.resume(started.id, actor="ada", reason="now they have really mended it")
    return await follow(app, started.id, pass_time, tell)


async def follow(app: Redrive, id: str, pass_time: PassTime, tell: Tell) -> Operation:
    """Tell what an operation does, whenever that changes, until it stops."""
    said = ""
    while True:
        operation = await app.tasks.operations.get(id)
        tally, says = operation.tally, operation.says(app.tasks.now())
        stopped = operation.ended_at is not None or operation.state == "halted"
        line = f"step {operation.course.step + 1}, released {tally.released:>3}, done {tally.done:>3}, failed again {tally.failed}"
        if line != said or stopped:
            tell(f"{operation.state:<9}  {line}{f': {says}' if stopped else ''}")
            said = line
        if stopped:
            return operation
        await pass_time(LOOK_EVERY)


async def _main() -> None:
    bank = Bank()
    async with build(temporary_url(), bank) as app:
        working = asyncio.create_task(app.work())
        try:
            await live(app, bank, lambda span: asyncio.sleep(span.total_seconds()), print)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main())
