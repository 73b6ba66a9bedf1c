"""The systems' own pages, by the name of the system."""

from redrive.web.pages.panels.panel import Panel

PANELS: dict[str, Panel] = {}
