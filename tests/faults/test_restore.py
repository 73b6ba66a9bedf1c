"""Back-ups that are made under load, restored, and worked on; `python -m proof restores` is the same at full size."""

from pathlib import Path

import pytest

from .processes import Ground
from .restore_proofs import restored, sqlite_ways


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_backup_under_load_has_all_that_was_acknowledged(ground: Ground, tmp_path: Path) -> None:
    """As SQLite's shell makes it: nothing acknowledged before is missing, nothing that had ended runs again, and the rest is done."""
    [way, _] = sqlite_ways(ground.url, tmp_path)
    print(await restored(ground, way, least=20))
