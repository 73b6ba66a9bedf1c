"""What a wrong setting says."""

import pytest

from redrive.errors import SettingsError
from redrive.settings import load
from redrive.systems.flags import FlagSettings


@pytest.mark.parametrize("number", ["11", "-1", "three"])
def test_a_wrong_default_is_told_at_the_start(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside 0 to 10 nothing starts, and the error names the variable."""
    monkeypatch.setenv("FLAG_SCHEDULE_MAX_RETRIES", number)
    with pytest.raises(SettingsError, match=r"FLAG_SCHEDULE_MAX_RETRIES.*cannot be used"):
        load(FlagSettings)
