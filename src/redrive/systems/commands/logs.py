"""The log lines of commands: those of every task, with what their senders know them by."""

from typing import Any

from redrive.events import Claim
from redrive.observe.logs import LogObserver


class CommandLogs(LogObserver):
    """Writes each fact about commands to structlog."""

    def __init__(self) -> None:
        super().__init__(system="commands")

    def _task(self, claim: Claim) -> dict[str, Any]:
        row = claim.task.payload
        names = {"command_id": row["command_id"], "correlation_id": row["correlation_id"]}
        return {**super()._task(claim), **names}
