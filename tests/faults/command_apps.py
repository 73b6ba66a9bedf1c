"""The bus that the worker processes of these tests serve; database and evidence file come by the environment."""

import asyncio
import os
import signal
from pathlib import Path

from redrive import Redrive
from redrive.observe.logs import LogObserver
from redrive.systems import commands
from redrive.systems.commands import Commands, TransientCommandError

app = Redrive(os.environ["DATABASE_URL"], observers=[LogObserver()])
bus = Commands(app)


def on_record(command: commands.Command, attempt: int) -> None:
    """One line for each start of a handler, on disk before the handler goes on."""
    line = f"{command.command_id} {attempt} {os.getpid()}\n".encode()
    file = os.open(Path(os.environ["COMMAND_EVIDENCE"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


@commands.handler("faults", "Poison")
async def poison(command: commands.Command, context: commands.CommandContext) -> None:
    """Kill the process that runs it."""
    on_record(command, context.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@commands.handler("faults", "Work")
async def work(command: commands.Command, context: commands.CommandContext) -> str:
    """Take some time, and fail the first try of every third command."""
    on_record(command, context.attempt)
    await asyncio.sleep(command.data["ms"] / 1000)
    if command.data.get("fails") and context.attempt == 1:
        raise TransientCommandError("NOT_YET", "not yet")
    return command.command_id
