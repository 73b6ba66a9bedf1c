"""The rules of the inbox that hold on every store: how much a page holds, and where its events stand among tasks. Pure."""

from collections.abc import Mapping, Sequence

from redrive import State

WORDS = {State.WAITING: "received", State.CLAIMED: "queued", State.DONE: "delivered", State.DEAD: "failed"}
"""Where events stand among tasks."""


def fitting(sizes: Sequence[int], bytes_max: int) -> int:
    """How many payloads from the first on fit into a page: at least one, or nobody would ever get past it."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if number and total > bytes_max:
            return number
    return len(sizes)


def amounts(totals: Mapping[str, int]) -> dict[State, int]:
    """How many events there are, by the states of tasks, as the overview shows them."""
    return {state: max(0, totals.get(word, 0)) for state, word in WORDS.items()}
