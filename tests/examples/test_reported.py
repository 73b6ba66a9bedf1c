"""The story of the guide "Sentry and OpenTelemetry"."""

from collections.abc import Iterator

import pytest
import sentry_sdk

from examples.reported import main


@pytest.fixture(autouse=True)
def sentry_as_before() -> Iterator[None]:
    """Whatever runs after this reports nowhere."""
    yield
    sentry_sdk.init(default_integrations=False)  # or it would patch every framework that is there


async def test_a_death_is_reported_once_and_every_try_is_counted() -> None:
    """Five tries of two payments: one report, of the payment that is dead."""
    lines = list[str]()
    await main(lines.append)
    assert lines == [
        "Sentry: payment-2 is dead, transient by default; failure 3 of 3: dead (exhausted)",
        "OpenTelemetry: redrive.tasks.added 2",
        "OpenTelemetry: redrive.attempts 5",
        "OpenTelemetry: redrive.retries.scheduled 3",
        "OpenTelemetry: redrive.tasks.dead 1",
    ]
