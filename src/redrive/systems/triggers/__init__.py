"""Triggers: events in, deliveries tracked. See `docs/systems/triggers.md`."""

from typing import TYPE_CHECKING, Any

from redrive.errors import needs_extra
from redrive.systems.triggers.settings import TriggerSettings

if TYPE_CHECKING:
    from redrive.systems.triggers.system import Triggers

__all__ = ["TriggerSettings", "Triggers"]


def __getattr__(name: str) -> Any:
    # The settings are read by every process; what delivers, httpx and the signatures, only where it is used.
    if name == "Triggers":
        with needs_extra("triggers", "service"):
            from redrive.systems.triggers.system import Triggers

        return Triggers
    raise AttributeError(name)
