"""OpenTelemetry: a span per attempt whose parent is the span that added the task."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from redrive import Fixed, Policy, Redrive, seconds
from redrive.observe.traces import current_trace
from redrive.testing import VirtualClock, drain


@pytest.fixture(scope="module")
def _exporter():
    """The process has one tracer provider, which its own function sets for good: messages of other tests would carry its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trace, "_TRACER_PROVIDER", provider)
        yield exporter


@pytest.fixture
def spans(_exporter):
    _exporter.clear()
    return _exporter.get_finished_spans


@pytest.fixture
async def app(tmp_path):
    clock = VirtualClock()
    async with Redrive(f"sqlite:///{tmp_path / 'test.db'}", clock=clock, durable=False) as app:
        app.clock = clock
        yield app


def runs(spans):
    return [span for span in spans() if span.name.startswith("run ")]


async def test_each_attempt_is_a_span_under_the_one_that_added(app, spans):
    """Every try, also the retries, is a child of the span in which the task was added."""
    tried = []

    @app.handler("mail", policy=Policy(Fixed(seconds(1)), retries=1))
    async def handle(task):
        tried.append(trace.get_current_span().get_span_context().span_id)
        if len(tried) == 1:
            raise ValueError("odd")

    with trace.get_tracer("caller").start_as_current_span("checkout") as caller:
        added = await app.add("mail", key="mail-7")
    await drain(app, clock=app.clock)
    first, second = runs(spans)
    assert first.name == "run mail"
    assert first.kind is SpanKind.CONSUMER
    assert [span.parent.span_id for span in (first, second)] == [caller.get_span_context().span_id] * 2
    assert {span.context.trace_id for span in (first, second)} == {caller.get_span_context().trace_id}
    assert tried == [first.context.span_id, second.context.span_id]
    assert dict(first.attributes) == {
        "redrive.ledger": "redrive_task",
        "redrive.task.id": str(added.id),
        "redrive.task.key": "mail-7",
        "redrive.task.kind": "mail",
        "redrive.attempt": 1,
    }
    assert second.attributes["redrive.attempt"] == 2
    assert [first.status.status_code, second.status.status_code] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_a_task_added_outside_any_span_begins_a_trace(app, spans):
    """Without a caller's span the attempt is the root of its trace."""
    app.handler("mail")(lambda task: None)
    await app.add("mail", key="alone")
    await drain(app)
    [span] = runs(spans)
    assert span.parent is None


async def test_errors_in_spans_are_redacted(app, spans):
    """The status of a failed span holds the error without its secrets, and no exception event holds the raw one."""

    @app.handler("mail", policy=Policy(attempts=1))
    def handle(task):
        raise ValueError("cannot reach postgresql://app:hunter2@db/x")

    await app.add("mail", key="secret", payload={"card": "4111"})
    await drain(app)
    [span] = runs(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert "cannot reach" in span.status.description
    assert "hunter2" not in span.to_json()
    assert "4111" not in span.to_json()
    assert span.events == ()


async def test_plain_functions_run_inside_their_span(app, spans):
    """What a sync handler traces in its thread is a child of its attempt."""

    @app.handler("mail")
    def handle(task):
        with trace.get_tracer("user").start_as_current_span("smtp"):
            pass

    await app.add("mail")
    await drain(app)
    [smtp] = [span for span in spans() if span.name == "smtp"]
    [run] = runs(spans)
    assert smtp.parent.span_id == run.context.span_id


@pytest.mark.parametrize("broken", ["", "nonsense", "00-00000000000000000000000000000000-0000000000000000-00"])
async def test_a_broken_trace_stops_nothing(app, spans, broken):
    """What a stranger wrote as a trace context does not keep a task from its run."""
    from redrive.core.task import NewTask

    app.handler("mail")(lambda task: None)
    await app.add_many([NewTask(kind="mail", key="one", trace=broken or None)])
    drained = await drain(app)
    assert drained.of("one") == ["done"]
    assert runs(spans)[0].parent is None


def test_no_span_no_trace():
    """Outside of any span there is nothing to keep with a task."""
    assert current_trace() is None
