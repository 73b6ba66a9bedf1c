"""What a handler does outside, and how to find out whether it happened: `docs/guides/pay-exactly-once.md` shows how.

    @app.handler("pay", effect=Effect(probe=was_paid, key_window=hours(24)))
    async def pay(task, context):
        async with context.effect(): ...

A probe returns `Happened`, `NotHappened` or `CannotTell`.
"""

from redrive.core.effect import CannotTell, Effect, Happened
from redrive.errors import NotHappened

__all__ = ["CannotTell", "Effect", "Happened", "NotHappened"]
