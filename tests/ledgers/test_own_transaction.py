"""Which transactions the running code is in."""

import asyncio

from redrive.ledgers.gather import Gather
from redrive.ledgers.own_transaction import is_inside, own_transaction


async def test_inside_and_out_again() -> None:
    """Only inside the block, and only under its own name; one within another is in both."""
    assert not is_inside("a")
    with own_transaction("a"):
        with own_transaction("b"):
            assert is_inside("a")
            assert is_inside("b")
        assert (is_inside("a"), is_inside("b")) == (True, False)
    assert not is_inside("a")


async def test_a_task_is_in_it_until_it_is_over() -> None:
    """A task that was started inside is in it as well, and no longer than the block."""
    over, seen = asyncio.Event(), list[bool]()

    async def look() -> None:
        seen.append(is_inside("a"))
        await over.wait()
        seen.append(is_inside("a"))

    with own_transaction("a"):
        task = asyncio.create_task(look())
        await asyncio.sleep(0)
    over.set()
    await task
    assert seen == [True, False]


async def test_who_works_for_many_is_in_nobodys() -> None:
    """A batch that a caller in a transaction happens to start is not run in that transaction."""
    seen = list[bool]()

    async def run(items: object) -> list[None]:
        seen.append(is_inside("a"))
        return [None]

    with own_transaction("a"):
        await Gather(run)([1])
    assert seen == [False]
