"""A process that works."""

import gc
from collections.abc import Iterator

import pytest

from redrive.running import tuned_runner

PYTHONS_OWN = 700


@pytest.fixture
def untuned() -> Iterator[None]:
    """This process is not ours alone."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("untuned")
def test_a_process_of_ours_looks_for_cycles_less_often_and_not_long() -> None:
    """More often than Python takes a tenth of a worker's time, and much less often makes somebody wait."""
    with tuned_runner():
        assert PYTHONS_OWN < gc.get_threshold()[0] <= 10_000
