"""Payments with real processes, small; `python -m proof effects_bank` is the same at full size."""

import random

import pytest

from .effect_proofs import killed
from .processes import Ground


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_no_payment_is_made_twice_and_none_is_lost(ground: Ground, rng: random.Random) -> None:
    """Workers are killed while a bank drops its answers; what nobody can know is shown, and answered."""
    print(await killed(ground, rng, payments=60, kills=2))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_the_same_storm_without_effects_pays_twice(ground: Ground, rng: random.Random) -> None:
    """So it is known to bite."""
    print(await killed(ground, rng, payments=60, kills=1, blindly=True))
