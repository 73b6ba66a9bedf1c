"""Payments with a type: what does not fit is never stored. `python -m examples.typed`; `docs/guides/typed-payloads.md` says why."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from redrive import Redrive, Task
from redrive.errors import PayloadError
from redrive.testing import drain, temporary_url


@dataclass(frozen=True)
class Payment:
    """What a payment is."""

    account: str
    cents: int


async def main(say: Callable[[str], None] = print) -> None:
    """One payment that fits, and one that does not."""
    async with Redrive(temporary_url()) as app:

        @app.handler(retries=3)
        async def pay(task: Task[Payment]) -> None:
            say(f"{task.payload.cents} cents to {task.payload.account}")

        await app.add(pay, Payment(account="DE1", cents=700), key="payment-7")
        try:
            await app.add("pay", {"account": "DE1", "cents": "seven"}, key="payment-8")
        except PayloadError as error:
            say(str(error))
        await drain(app)


if __name__ == "__main__":
    asyncio.run(main())
