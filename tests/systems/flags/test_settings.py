"""What a wrong setting says."""

from datetime import timedelta

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


@pytest.mark.parametrize(("given", "read"), [(None, None), ("10m", timedelta(minutes=10)), ("0", timedelta(0))])
def test_how_long_an_outage_is_answered(
    given: str | None, read: timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the store is back, unless FLAG_OUTAGE_MAX says for how long."""
    if given is not None:
        monkeypatch.setenv("FLAG_OUTAGE_MAX", given)
    assert load(FlagSettings).flag_outage_max == read
