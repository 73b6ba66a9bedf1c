"""The systems' own pages, by the name of the system."""

from redrive.web.pages.panels import commands, flags, relay, triggers
from redrive.web.pages.panels.panel import Panel

PANELS: dict[str, Panel] = {
    "commands": commands.PANEL,
    "flags": flags.PANEL,
    "relay": relay.PANEL,
    "triggers": triggers.PANEL,
}
