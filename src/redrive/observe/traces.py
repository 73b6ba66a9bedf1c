"""OpenTelemetry spans around each attempt, and the trace context that travels with a task. Nothing without its API."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from redrive.core.failure import describe_error
from redrive.core.task import Claim

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ImportError:  # pragma: no cover - the API is installed in every test run
    trace = None  # type: ignore[assignment]


def current_trace() -> str | None:
    """The W3C `traceparent` of the current span, to be kept with a new task."""
    # Most often there is no context at all, which is seen in a third of the time: it is asked for each task that is added.
    if trace is None or not context.get_current() or not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent")


def span_around() -> Callable[[str, Claim], AbstractContextManager[Any]] | None:
    """What encloses each call of a handler; None where no OpenTelemetry SDK is set up to take spans."""
    # Spans that nobody takes would still cost a quarter of the throughput of small handlers.
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return _span


@contextmanager
def _span(ledger: str, claim: Claim) -> Iterator[None]:
    task = claim.task
    parent = propagate.extract({"traceparent": task.trace}) if task.trace else context.get_current()
    with trace.get_tracer("redrive").start_as_current_span(
        f"run {task.kind}",
        context=parent,
        kind=SpanKind.CONSUMER,
        record_exception=False,
        set_status_on_exception=False,
        attributes={
            "redrive.ledger": ledger,
            "redrive.task.id": str(task.id),
            "redrive.task.key": task.key,
            "redrive.task.kind": task.kind,
            "redrive.attempt": claim.number,
        },
    ) as span:
        try:
            yield
        except BaseException as error:
            # Not `record_exception`: it would send the raw text, secrets included.
            span.set_status(Status(StatusCode.ERROR, describe_error(error)))
            raise
