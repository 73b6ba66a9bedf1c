"""reliable-cmd with five commands at once, as its own documentation has it."""

from functools import partial

from bench.systems import reliable_cmd
from bench.systems.reliable_cmd import add, audit, prepare

__all__ = ["add", "audit", "prepare", "work"]

work = partial(reliable_cmd.work, concurrency=5)
