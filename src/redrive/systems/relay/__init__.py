"""The retry scheduler for RabbitMQ. Its page is `docs/systems/relay.md`.

`Relay` is imported when it is first asked for: its settings are read also where its drivers are not installed.
"""

from typing import TYPE_CHECKING, Any

from redrive.errors import needs_extra
from redrive.systems.relay.settings import RelaySettings

if TYPE_CHECKING:
    from redrive.systems.relay.system import Relay

__all__ = ["Relay", "RelaySettings"]


def __getattr__(name: str) -> Any:
    if name != "Relay":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("the relay", "rabbitmq"):
        from redrive.systems.relay.system import Relay

    return Relay
