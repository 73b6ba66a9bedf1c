"""redrive comes in two distributions: `redrive`, and `redrive-service` with the rooms that a service and its systems need.

Both unpack into this package, and the extras of the first bring the second. A room of it has its `__init__` here, which asks `require_room`
whether the rest has come, so that whoever imports from it without the extra is told what to install. See docs/adr/0033.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from redrive._version import __version__
from redrive.errors import MissingExtraError

DISTRIBUTION = "redrive-service"


def require_room(room: str, module: str) -> None:
    """Raise a `MissingExtraError` unless a room is installed, of which this is a module, in the version of all else."""
    if find_spec(f"{room}.{module}") is None:
        raise MissingExtraError(room, "service", of_room=True)
    try:
        there = version(DISTRIBUTION)
    except PackageNotFoundError:  # a clone, in which both are one tree
        return
    if there != __version__:
        missing = f"{DISTRIBUTION} {__version__}, and {there} is installed"
        raise MissingExtraError(room, "service", missing, of_room=True)
