"""Processor time, which hardly swings where time on the wall does: of this process and its children, and of a server and its sessions."""

import os
import resource
from contextlib import suppress
from pathlib import Path

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def here() -> float:
    """Seconds until now of this process and of the children that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def of_process(pid: int) -> float:
    """Seconds until now of one process."""
    return _ticks(pid, 2)


def of_server(pid: int | None) -> float:
    """Seconds until now of a server and all processes that it has or had."""
    if pid is None:
        return 0.0
    living = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _ticks(pid, 4) + sum(_ticks(int(one), 2) for one in living)


def of_session(leader: int | None) -> float:
    """Seconds until now of all living processes of a session."""
    found = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended in between
            if os.getsid(int(folder.name)) == leader:
                found += _ticks(int(folder.name), 2)
    return found


def _ticks(pid: int, fields: int) -> float:
    """The first two are its own, the next two those of children that have ended."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended in between
        return 0.0
    return sum(int(one) for one in said[11 : 11 + fields]) * _TICK
