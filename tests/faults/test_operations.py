"""Operations with real processes, small; `python -m proof operations_killed` and its sisters are the same at full size."""

import random

import pytest

from .operation_proofs import killed, mended, not_mended
from .processes import Ground


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_cause_that_is_not_mended_costs_at_most_six_tries(ground: Ground) -> None:
    """Whatever carries it on, the brake is pulled before the third step."""
    await not_mended(ground, 500)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_no_second_sees_more_than_the_rate(ground: Ground) -> None:
    """Two processes that carry it on are not faster than one."""
    await mended(ground, 60, rate=20)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_kills_release_no_task_twice_and_forget_none(ground: Ground, rng: random.Random) -> None:
    """Workers and a service, killed while they run tasks."""
    await killed(ground, rng, tasks=150, kills=3, rate=30)
