"""A process that works."""

import gc
import sys
from collections.abc import Iterator

import pytest

from redrive.running import tuned_runner

PYTHONS_OWN = 700


@pytest.fixture
def untuned() -> Iterator[None]:
    """This process is not ours alone."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("untuned")
def test_a_process_of_ours_looks_for_cycles_less_often_and_not_long() -> None:
    """As often as Python does takes a tenth of a worker's time, and much less often makes somebody wait for a page."""
    with tuned_runner(answers=True):
        assert PYTHONS_OWN < gc.get_threshold()[0] <= 10_000


@pytest.mark.usefixtures("untuned")
def test_a_process_that_only_works_holds_a_few_thousand_tasks_between_two_looks() -> None:
    """Nobody waits for it, and what lives until it is settled would be looked through for nothing."""
    with tuned_runner():
        assert 3_000 * 5 < gc.get_threshold()[0] <= 50_000


@pytest.mark.usefixtures("untuned")
def test_threads_of_a_process_of_ours_wait_for_the_interpreter_less_long() -> None:
    """With Python's own 5 ms SQLite's writer would wait for the loop after each of its steps."""
    with tuned_runner():
        assert sys.getswitchinterval() <= 0.001
