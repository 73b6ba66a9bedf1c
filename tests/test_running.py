"""A process that works."""

import gc
import sys
from collections.abc import Iterator

import pytest

from redrive.running import SWITCH_SECONDS, tuned_runner


@pytest.fixture
def untuned() -> Iterator[None]:
    """This process is not ours alone."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("untuned")
def test_a_process_of_ours_hands_the_interpreter_on_sooner() -> None:
    """The thread that writes to SQLite does not wait five milliseconds at each step."""
    with tuned_runner():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
