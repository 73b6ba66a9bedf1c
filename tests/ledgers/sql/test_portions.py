"""How much one statement carries."""

import pytest

from redrive.ledgers.sql import portions


@pytest.mark.parametrize(("chars", "amounts"), [(1, [1, 1, 1]), (2_000_010, [2, 1]), (9_000_000, [3])])
def test_portions(chars: int, amounts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion holds what fits, and at least one row."""
    monkeypatch.setattr(portions, "CHARS_PER_STATEMENT", chars)
    assert [len(range(3)[portion]) for portion in portions.portions([1_000_002] * 3)] == amounts
