"""In which order tests run when several processes share them.

`--dist worksteal` gives each process a piece of the list, in order, and who has nothing left takes from the end of another's.
So what stands at the head of a piece stays with its process. There go the tests that wait more than they compute, those of
one kind in one piece: they begin at once, beside others that keep the cores busy, and a broker or a browser is started once.
"""

from collections.abc import Callable, Sequence

import pytest

WAITING: tuple[Callable[[pytest.Item], bool], ...] = (
    lambda item: "browser" in _needs(item),
    lambda item: "rabbitmq" in _needs(item),
    lambda item: "faults" in item.path.parts,
    lambda item: "start" in _needs(item) and "cli" in item.path.parts,
)
"""The kinds of tests that wait: for a browser, for a broker, for processes that are killed, for processes that start."""


def _needs(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def spread(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """The same tests, so that each process begins with those that wait, of a kind of its own as far as there are enough."""
    heads: list[list[pytest.Item]] = [[] for _ in range(processes)]
    others: list[pytest.Item] = []
    for item in items:
        kind = next((at for at, fits in enumerate(WAITING) if fits(item)), None)
        (others if kind is None else heads[kind % processes]).append(item)
    order: list[pytest.Item] = []
    for at, head in enumerate(heads):
        size = (len(items) - len(order)) // (processes - at)
        room = max(0, size - len(head))
        order += head + others[:room]
        del others[:room]
    return order + others
