"""A sum that somebody waits for: `python -m examples.results`. `docs/guides/results.md` says what is kept."""

import asyncio
from collections.abc import Callable

from redrive import Redrive, Task, seconds
from redrive.errors import NoResultError
from redrive.testing import drain, temporary_url


async def main(say: Callable[[str], None] = print) -> None:
    """One sum that can be made, and one that cannot."""
    async with Redrive(temporary_url()) as app:

        @app.handler(retries=0)
        async def add_up(task: Task[list[int]]) -> dict[str, int]:
            if not task.payload:
                raise ValueError("nothing to add up")
            return {"total": sum(task.payload)}

        await app.add(add_up, [1, 2, 3], key="sum-7")
        await app.add(add_up, [], key="sum-8")
        await drain(app)
        say(str(await app.result("sum-7", wait=seconds(5))))
        try:
            await app.result("sum-8")
        except NoResultError as error:
            say(str(error))


if __name__ == "__main__":
    asyncio.run(main())
