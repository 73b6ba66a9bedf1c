"""What a gate that holds lets through when its destination answers again: 1, 2, 4 … a second, up to its rate. Pure."""

from datetime import timedelta

from redrive.operator.gates import GateDoes, GateView
from redrive.operator.verdict.facts import HeldFacts
from redrive.operator.verdict.values import GateReturn

SECONDS_AHEAD_MAX = 600
"""So far it is told second by second."""


def drain_of(gate: GateView) -> timedelta | None:
    """How long what is parked takes once the gate returns: 1, 2, 4 … a second up to its rate. None where that is not known."""
    if gate.parked is None:
        return None
    left, seconds, rule = float(gate.parked), 0.0, gate.limits
    for step in range(rule.ramp_steps):
        if left <= 0:
            break
        left -= 2**step
        seconds += 1
    if left > 0:
        if rule.rate is None:
            return None
        seconds += left / (rule.rate / rule.rate_span.total_seconds())
    return timedelta(seconds=seconds)


def comes_back(held: HeldFacts) -> GateReturn | None:
    """What a gate that holds lets through second by second if its next probe succeeds; None where that is not known."""
    gate, rule = held.gate, held.gate.limits
    if gate.does is not GateDoes.HOLDING or gate.next_probe is None or not gate.parked or drain_of(held.gate) is None:
        return None
    left, amounts = float(gate.parked), list[float]()
    rate = None if rule.rate is None else rule.rate / rule.rate_span.total_seconds()
    while left > 0 and len(amounts) < SECONDS_AHEAD_MAX:
        let = float(2 ** len(amounts)) if len(amounts) < rule.ramp_steps else rate or left
        amounts.append(min(left, let))
        left -= amounts[-1]
    return GateReturn(
        ledger=gate.ledger, gate=gate.title, at=gate.next_probe, parked=gate.parked, amounts=tuple(amounts)
    )
