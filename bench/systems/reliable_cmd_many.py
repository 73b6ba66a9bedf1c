"""reliable-cmd with sixty commands at once: about as many connections as a server with its defaults can spare."""

from functools import partial

from bench.systems import reliable_cmd
from bench.systems.reliable_cmd import add, audit, prepare

__all__ = ["add", "audit", "prepare", "work"]

work = partial(reliable_cmd.work, concurrency=60)
