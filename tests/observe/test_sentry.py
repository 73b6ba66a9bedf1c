"""Sentry hears of each death once, with its cause and its history, and of no try that is made again."""

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk

from redrive import Redrive
from redrive.core.outcome import Done, Failed
from redrive.events import AttemptEnded
from redrive.observe.sentry import TASKS_MAX, SentryObserver
from redrive.testing import VirtualClock, drain, temporary_url


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    """What Sentry would send, taken before it leaves this process."""
    events: list[Any] = []

    def take(event: Any, _hint: Any) -> None:
        events.append(event)

    sentry_sdk.init(
        "http://key@127.0.0.1:9/1", before_send=take, default_integrations=False, auto_enabling_integrations=False
    )
    yield events
    sentry_sdk.get_client().close()
    sentry_sdk.init(default_integrations=False)  # or it would patch every framework that is there


async def test_a_death_is_one_report_with_its_tries(sent: list[Any]) -> None:
    """Three tries, one report: the line of the user's code, the decision, and the tries before as breadcrumbs."""
    clock = VirtualClock()
    async with Redrive(temporary_url(), clock=clock, observers=[SentryObserver()]) as app:

        @app.handler(retries=2, wait=5)
        async def pay(_task: Any) -> None:
            raise ConnectionError("bank down, password=hunter2")

        await app.add(pay, {"iban": "DE1"}, key="payment-7")
        await drain(app, clock=clock)
    [report] = sent
    [raised] = report["exception"]["values"]
    assert (raised["type"], raised["value"].startswith("bank down")) == ("ConnectionError", True)
    assert any(frame["function"] == "pay" and frame["in_app"] for frame in raised["stacktrace"]["frames"])
    assert report["fingerprint"][:4] == ["redrive", "redrive_task", "pay", "ConnectionError"]
    assert "in pay" in report["fingerprint"][4]
    assert [one["message"][:6] for one in report["breadcrumbs"]["values"]] == ["try 1:", "try 2:"]
    assert report["contexts"]["redrive"]["key"] == "payment-7"
    assert "dead (exhausted)" in report["contexts"]["redrive"]["decision"]
    assert "hunter2" not in str(report)
    assert "DE1" not in str(report)


def test_what_is_done_or_tried_again_is_not_reported(sent: list[Any], make_settlement: Any) -> None:
    """And what is remembered of it is bounded."""
    observer = SentryObserver()
    failed = make_settlement(Failed(ValueError("no")))
    for number in range(TASKS_MAX + 5):
        claim = failed.claim._replace(task=failed.claim.task._replace(id=number))
        observer.observe([AttemptEnded("mail", failed._replace(claim=claim))])
    assert len(observer._tries) == TASKS_MAX
    observer.observe([AttemptEnded("mail", make_settlement(Done()))])
    assert ("mail", 7) not in observer._tries
    assert sent == []
