"""Payments whose deaths Sentry hears of and whose tries OpenTelemetry counts: `python -m examples.reported`.

`docs/guides/sentry-and-opentelemetry.md` walks through it. Nothing leaves this process: both libraries hand over what they would send.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import sentry_sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

from redrive import Redrive, Task
from redrive.observe.otel_metrics import OtelMetricsObserver
from redrive.observe.sentry import SentryObserver
from redrive.testing import VirtualClock, drain, temporary_url


async def main(say: Callable[[str], None] = print) -> None:
    """One payment that comes through at its second try, and one that never does."""
    reports = list[Any]()
    sentry_sdk.init(  # yours has the address of your project, and no `before_send`
        "http://key@127.0.0.1:9/1",
        before_send=lambda event, _hint: reports.append(event),
        default_integrations=False,
    )
    counted = InMemoryMetricReader()

    metrics = OtelMetricsObserver(
        MeterProvider([counted])
    )  # without an argument it takes the provider that you have set up

    clock = VirtualClock()
    app = Redrive(temporary_url(), clock=clock, observers=[SentryObserver(), metrics])

    @app.handler(retries=2, wait="10s")
    async def pay(task: Task) -> None:
        if task.payload["account"] == "closed" or task.failures == 0:
            raise ConnectionError("the bank refused the connection")

    async with app:
        await app.add(pay, {"account": "open"}, key="payment-1")
        await app.add(pay, {"account": "closed"}, key="payment-2")
        await drain(app, clock=clock)

    for report in reports:
        about = report["contexts"]["redrive"]
        say(f"Sentry: {about['key']} is dead, {about['decision']}")
    for name, amount in _sums(counted):
        say(f"OpenTelemetry: {name} {amount}")
    sentry_sdk.get_client().close()


def _sums(reader: InMemoryMetricReader) -> list[tuple[str, int]]:
    """What was counted, over all labels."""
    data = reader.get_metrics_data()
    metrics = (
        []
        if data is None
        else [one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics]
    )
    return [
        (one.name, int(sum(point.value for point in one.data.data_points)))
        for one in metrics
        if isinstance(one.data, Sum)
    ]


if __name__ == "__main__":
    asyncio.run(main())
