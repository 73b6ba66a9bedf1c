"""What a gate lets through when it returns."""

from dataclasses import replace
from datetime import timedelta

from redrive.operator.gates import GateDoes
from redrive.operator.verdict.returning import comes_back, drain_of

from .story import BANK


def test_a_gate_returns_by_doubling_up_to_its_rate():
    """Second by second from the next probe on; in all just what is parked, in just as long as the sentence says."""
    found = comes_back(BANK)
    assert found.at == BANK.gate.next_probe
    assert found.amounts[:3] == (1.0, 2.0, 4.0)
    assert sum(found.amounts) == BANK.gate.parked
    assert timedelta(seconds=len(found.amounts)) - drain_of(BANK.gate) < timedelta(seconds=1)


def test_what_is_not_known_is_not_told():
    """Nothing of a gate that returns already, that has nothing parked, or of which nobody knows when it probes."""
    for change in ({"does": GateDoes.RETURNING}, {"parked": 0}, {"parked": None}, {"next_probe": None}):
        assert comes_back(replace(BANK, gate=replace(BANK.gate, **change))) is None
