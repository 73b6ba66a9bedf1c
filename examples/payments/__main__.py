"""Four invoices: one is paid at once, of one the answer is lost, one never arrives at first, one is declined."""

import asyncio
from collections.abc import Callable

from redrive.errors import NoResultError
from redrive.testing import VirtualClock, drain, temporary_url

from .provider import Provider
from .shop import Invoice, build


async def main(say: Callable[[str], None] = print) -> None:
    """Pay them, and say what became of each."""
    clock = VirtualClock()
    provider = Provider(clock)
    async with build(temporary_url(), provider, clock=clock) as app:
        for customer, faults in (
            ("ada", {}),
            ("ben", {"lost_answers": 1}),
            ("cyd", {"lost_requests": 1}),
            ("declined", {}),
        ):
            for name, amount in faults.items():
                setattr(provider, name, amount)
            added = await app.add("pay", Invoice(customer=customer, cents=700), key=f"invoice-{customer}")
            await drain(app, clock=clock)
            tries = [one.outcome for one in await app.tasks.attempts(added.id)]
            try:
                came_to = str(await app.result(added.key))
            except NoResultError as error:
                came_to = str(error)
            say(f"{customer}: {came_to} after {', '.join(tries)}")
    say(f"the provider was paid {len(provider.payments)} times, for 3 invoices")


if __name__ == "__main__":
    asyncio.run(main())
