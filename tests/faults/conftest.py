"""What every fault test starts from: a seed that is printed, and a ground for its processes."""

import os
import random
import secrets
from pathlib import Path

import pytest

from .own_postgres import server as server
from .processes import Ground


@pytest.fixture
def rng() -> random.Random:
    """Chance that can be replayed: set REDRIVE_TEST_SEED to the number that a failed run printed."""
    seed = int(os.environ.get("REDRIVE_TEST_SEED") or secrets.randbits(32))
    print(f"REDRIVE_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def ground(url: str, tmp_path: Path) -> Ground:
    """A migrated database and a folder, for processes."""
    return Ground(url, tmp_path)
