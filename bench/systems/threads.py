"""Share numbered tasks among threads, for systems that can only add one task per call."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def share(tasks: int, count: int, publish: Callable[[range], None]) -> None:
    """Call `publish` in each thread with its part of the numbers; the first error is raised."""
    parts = [range(first, tasks, count) for first in range(count)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(publish, parts))
