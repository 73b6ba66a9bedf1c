"""A process that forks: its child has copies of all connections, none of the threads, and no right to either.

Databases are asked before a fork to let go of what must not be carried over, and told in the child that whatever they have left is
their parent's. That is kept and never touched: even closing a copy would be seen at the other end, or by the parent's event loop.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Forking(Protocol):
    """A database that wants to know."""

    def before_fork(self) -> None:
        """Let go of what a child must not have. Called in whatever thread forks."""
        ...

    def in_parent(self) -> None:
        """Go on: the child is there."""
        ...

    def in_child(self) -> None:
        """Begin anew: what was open is the parent's."""
        ...


_watching: WeakSet[Forking] = WeakSet()
_of_the_parent: list[object] = []


def watch_forks(database: Forking) -> None:
    """Tell a database of every fork from now on."""
    _watching.add(database)


def leave_to_parent(*things: object) -> None:
    """Keep what belongs to the parent for as long as the child lives: the garbage collector would close it."""
    _of_the_parent.extend(things)


def _before() -> None:
    for database in list(_watching):
        database.before_fork()


def _in_parent() -> None:
    for database in list(_watching):
        database.in_parent()


def _in_child() -> None:
    for database in list(_watching):
        database.in_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
