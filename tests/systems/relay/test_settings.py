"""The settings of the relay: what is out of range, and what is not shown."""

import pytest

from redrive.errors import SettingsError
from redrive.settings import load
from redrive.systems.relay import RelaySettings


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RABBITMQ_URL", "http://mq"),
        ("RABBITMQ_URL", "amqp://"),
        ("RABBITMQ_URL", "amqp://mq:port"),
        ("RETRY_QUEUE", "q" * 248),
        ("MANUAL_REVIEW_QUEUE", "retry.scheduled"),
        ("MANUAL_REVIEW_QUEUE", "retry.scheduled.invalid"),
        ("DEFAULT_MAX_RETRIES", "-1"),
        ("BASE_DELAY_MS", "0"),
        ("MAX_DELAY_MS", "1999"),
        ("RETRY_POLL_INTERVAL_MS", "9"),
        ("RABBITMQ_PREFETCH", "0"),
        ("RELAY_MAX_MESSAGE_BYTES", "0"),
        ("RELAY_MAX_MESSAGE_BYTES", "12000001"),
    ],
)
def test_a_value_out_of_range_stops_the_start(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what it may be."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=rf"{name}=.* cannot be used: .*change it"):
        load(RelaySettings)


@pytest.mark.usefixtures("no_settings")
def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that of a broker's URL that cannot be used."""
    monkeypatch.setenv("RABBITMQ_URL", "http://ada:s3cret@mq")
    with pytest.raises(SettingsError) as caught:
        load(RelaySettings)
    assert "s3cret" not in str(caught.value)
