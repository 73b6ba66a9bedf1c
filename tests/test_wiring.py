"""The one list of systems, and what is said where an extra is missing."""

import importlib

import pytest

from redrive.errors import MissingExtraError, needs_extra
from redrive.settings import SYSTEMS
from redrive.wiring import KNOWN_SYSTEMS


def test_every_system_is_in_the_list() -> None:
    """The names that the settings allow are those of the systems that can be made, each with settings of its own."""
    assert sorted(KNOWN_SYSTEMS) == sorted(SYSTEMS)
    assert all(known.settings for known in KNOWN_SYSTEMS.values())
    sections = [section for known in KNOWN_SYSTEMS.values() for section in known.settings]
    assert len(set(sections)) == len(sections)


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
