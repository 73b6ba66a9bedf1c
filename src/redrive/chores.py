"""What a service does beside its work, again and again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import structlog

from redrive.core.failure import describe_error


async def repeat(name: str, every: timedelta, chore: Callable[[], Awaitable[object]]) -> None:
    """Do a chore for ever. An outage is one line in the log when it begins and one when it is over, whatever is wrong."""
    log: Any = structlog.get_logger().bind(system="service")
    failing = False
    while True:
        try:
            await chore()
        except Exception as error:  # the service must outlive whatever happens here
            if not failing:
                log.warning("chore_failing", chore=name, error=describe_error(error))
            failing = True
        else:
            if failing:
                log.info("chore_works_again", chore=name)
            failing = False
        # Never in step with other services.
        await asyncio.sleep(every.total_seconds() * random.uniform(0.8, 1.2))
