"""What `redrive gates set`, `pause` and `resume` do: find the one ledger that is meant, act there, and say what it came to."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import typer
from rich.markup import escape

from redrive.cli.opened import Ledgers, on_ledgers, os_user
from redrive.cli.output import PROBLEM, print_json, say
from redrive.cli.where import Where
from redrive.core.gate_rules import Breaker
from redrive.core.pauses import KIND
from redrive.core.table import TASKS
from redrive.errors import UsageError
from redrive.lane import Lane
from redrive.operator.gates import GateView
from redrive.operator.json_views import gate_json

NONE = "none"
"""What takes a limit away."""


@dataclass(frozen=True, slots=True)
class GateDeed:
    """Something that is done to one gate of one ledger."""

    words: str
    name: str
    reason: str
    by: str | None
    version: int | None

    def run(self, act: Callable[[Lane, dict[str, Any]], Awaitable[bool]], where: Where) -> None:
        """Do it, and say what it came to. Without a lane it is done in redrive's own ledger."""
        if not self.reason.strip():
            raise UsageError("say why: --reason is shown beside the gate and kept")
        who = {"actor": self.by or os_user(), "reason": self.reason.strip(), "version": self.version}

        async def change(ledgers: Ledgers) -> tuple[bool, str, GateView | None]:
            chosen = await _home(ledgers.lanes, self.name)
            changed = await act(chosen, who)
            return changed, chosen.name, await chosen.gate_state(self.name)

        changed, ledger, view = on_ledgers(change, where)
        if where.json:
            print_json({"changed": changed, "ledger": ledger, "gate": None if view is None else gate_json(view)})
        elif changed:
            title = self.name if view is None else view.title
            say(f"{escape(self.words.format(title))} in {escape(ledger)}, by {escape(str(who['actor']))}")
        else:
            say(f"nothing changed: {escape(self.name)} in {escape(ledger)} was already like that")
        if not changed:
            raise typer.Exit(PROBLEM)


async def _home(lanes: list[Lane], name: str) -> Lane:
    """The lane that has the gate; where none or several have it, redrive's own, and where that has none, a lane must be named."""
    if len(lanes) == 1:
        return lanes[0]
    holders = []
    if not name.startswith(KIND):
        for lane in lanes:
            try:
                if await lane.gate_state(name) is not None:
                    holders.append(lane)
            except UsageError:
                continue
    own = [lane for lane in lanes if lane.name == TASKS.name]
    if len(holders) == 1:
        return holders[0]
    if holders or not own or name.startswith(KIND):
        there = ", ".join(lane.name for lane in holders or lanes)
        raise UsageError(f"say in which ledger with --lane: {there}")
    return own[0]


async def changed_breaker(lane: Lane, name: str, given: dict[str, Any]) -> Breaker | None:
    """The breaker with what was said of it; the rest as it holds now."""
    if given["failures"] == NONE:
        return None
    rule, _ = await (await lane.gate_reader()).rule_for(name)
    now: dict[str, Any] = {}
    if rule.failures is not None:
        now = {"failures": rule.failures, "share": rule.share, "within": rule.within, "probe": rule.probe}
    said = given | {"failures": read_whole("--failures", given["failures"])}
    return Breaker(**now | {one: value for one, value in said.items() if value is not None})


def read_whole(option: str, text: str | None) -> int | None:
    """A whole number; none takes a limit away."""
    if text is None or text == NONE:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{option} is a whole number or none, not {text!r:.80}")
    return int(text)


def read_share(option: str, text: str | None) -> float | None:
    """A share; none takes a limit away."""
    if text is None or text == NONE:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} is a share such as 0.2 or none, not {text!r:.80}") from None
