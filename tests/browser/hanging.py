"""The application of a worker that is killed: its tasks hang, and it gives signs of life often."""

import asyncio
import os
from datetime import timedelta

from redrive import Redrive, Task, signs

signs.SIGN_EVERY = timedelta(milliseconds=300)
app = Redrive(os.environ["DATABASE_URL"])


@app.handler("hang")
async def hang(_task: Task) -> None:
    """Until it is killed."""
    await asyncio.Event().wait()
