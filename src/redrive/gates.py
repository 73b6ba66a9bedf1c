"""When a destination counts as down: `app.gate("bank:*", breaker=Breaker(failures=5))`, see `docs/guides/destinations.md`."""

from redrive.core.gate_rules import Breaker

__all__ = ["Breaker"]
