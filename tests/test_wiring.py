"""The one list of systems, and what is said where an extra is missing."""

import gc
import importlib
import sys
from collections.abc import Iterator

import pytest

from redrive.errors import MissingExtraError
from redrive.settings import SYSTEMS, Settings
from redrive.wiring import KNOWN_SYSTEMS, SECTIONS, SWITCH_SECONDS, needs_extra, tuned_runner


def test_every_system_is_in_the_list() -> None:
    """The names that the settings allow are those of the systems that can be made, each with settings of its own."""
    assert sorted(KNOWN_SYSTEMS) == sorted(SYSTEMS)
    assert all(known.settings for known in KNOWN_SYSTEMS.values())
    assert SECTIONS[0] is Settings
    assert len(set(SECTIONS)) == len(SECTIONS)


def test_a_missing_package_names_the_extra() -> None:
    """A package that is not installed is answered with what to install."""
    with (
        pytest.raises(MissingExtraError, match=r"the relay .*redrive\[rabbitmq\]"),
        needs_extra("the relay", "rabbitmq"),
    ):
        importlib.import_module("a_driver_that_nobody_has")


def test_a_module_of_our_own_is_not_an_extra() -> None:
    """A mistake in redrive itself is not blamed on a package."""
    with pytest.raises(ModuleNotFoundError, match=r"redrive\.nowhere"), needs_extra("the relay", "rabbitmq"):
        importlib.import_module("redrive.nowhere")


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
