"""Which function handles which kind."""

import functools
from datetime import timedelta
from types import SimpleNamespace

import pytest

from redrive.core.policy import Policy
from redrive.core.task import Task
from redrive.engine.context import Context
from redrive.engine.handlers import Handlers, make_handler
from redrive.errors import DurationError, HandlerError, UsageError


def on(kind, function=lambda task: None, **options):
    return make_handler(kind, function, Policy(), **options)


def handlers(*kinds):
    made = Handlers()
    for kind in kinds:
        made.add(on(kind))
    return made


def found(made, kind):
    handler = made.find(kind)
    return handler and handler.kind


def test_exact_kind_is_found():
    """A kind goes to the handler that names it, and to no other."""
    made = handlers("invoice", "letter")
    assert found(made, "invoice") == "invoice"
    assert found(made, "letter") == "letter"
    assert found(made, "invoice2") is None
    assert found(made, "INVOICE") is None


@pytest.mark.parametrize(
    ("pattern", "kind", "matches"),
    [
        ("mail.*", "mail.sent", True),
        ("mail.*", "mail.", True),
        ("mail.*", "mail", False),
        ("mail.*", "mailXsent", False),
        ("*.failed", "mail.failed", True),
        ("*", "anything at all", True),
        ("a*c", "abbc", True),
        ("a*c", "abbd", False),
        ("mail.*", "MAIL.sent", False),
        ("a?*", "ab", False),
        ("a?*", "a?b", True),
        ("x[ab]*", "xa", False),
        ("x[ab]*", "x[ab]c", True),
        ("*", "two\nlines", True),
    ],
)
def test_star_is_the_only_special_sign(pattern, kind, matches):
    """In a pattern the star stands for any text; every other sign stands for itself."""
    assert (found(handlers(pattern), kind) == pattern) is matches


@pytest.mark.parametrize(
    "order", [("*", "mail.*", "mail.sent"), ("mail.sent", "mail.*", "*"), ("mail.*", "mail.sent", "*")]
)
def test_the_more_exact_handler_goes_first(order):
    """An exact kind goes before a pattern and a longer pattern before a shorter one, however they were registered."""
    made = handlers(*order)
    assert found(made, "mail.sent") == "mail.sent"
    assert found(made, "mail.read") == "mail.*"
    assert found(made, "letter") == "*"


@pytest.mark.parametrize("kind", ["mail", "mail.*"])
def test_second_handler_for_a_kind_is_refused(kind):
    """Two handlers for one kind are a mistake of the programmer, and the first one stays."""
    made = handlers(kind)
    first = made.find(kind)
    with pytest.raises(HandlerError, match="already"):
        made.add(on(kind))
    assert made.find(kind) is first
    assert len(made) == 1


def test_kinds_to_look_up():
    """Exact kinds are listed; whether patterns need a look into the ledger is known; `among` keeps what is handled."""
    made = handlers("a", "b", "c.*")
    assert made.exact_kinds == ["a", "b"]
    assert made.has_patterns
    assert made.among(["a", "c.1", "d"]) == ["a", "c.1"]
    assert not handlers("a").has_patterns
    assert [handler.kind for handler in made] == ["a", "b", "c.*"]


def send(task, invoice, mailer):
    """A function with a name and too many parameters."""


def two_fields(order, email):
    """A function of two fields of a payload."""


def a_typed_field(task: Task, email: str):
    """A function whose second parameter is no context."""


def undecorated(function):
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (lambda: None, "give it a parameter for the task"),
        (lambda **named: None, "give it a parameter for the task"),
        (send, "give mailer a default, or bind it with functools.partial"),
        (two_fields, "take email out of task.payload, or say email: Context"),
        (a_typed_field, "take email out of task.payload, or say email: Context"),
        (lambda task, *, mandatory: None, "give mandatory a default"),
        (lambda *args: None, "name its parameters"),
        (lambda task, *args: None, "name its parameters"),
        (undecorated(send), "a decorator passes them on with functools.wraps"),
        (lambda context: None, "the task comes first"),
        (lambda context, task: None, "the task comes first"),
    ],
    ids=[
        "none",
        "named",
        "three",
        "two-fields",
        "typed-field",
        "keyword-only",
        "star",
        "task-and-star",
        "decorated",
        "context",
        "swapped",
    ],
)
def test_bad_signature_is_refused(function, remedy):
    """A function that is not called as (task) or (task, context) is refused when it is registered, with its name."""
    with pytest.raises(HandlerError, match=r"a handler takes \(task\) or \(task, context\), but ") as refused:
        on("job", function)
    assert f"{function.__name__}() takes (" in str(refused.value)
    assert remedy in str(refused.value)


@pytest.mark.parametrize("thing", [None, "send", 7, dict, Handlers])
def test_not_a_function_is_refused(thing):
    """Only what can be called can be a handler; a class would only be made."""
    with pytest.raises(HandlerError, match="must be a function"):
        on("job", thing)


def test_signature_that_cannot_be_read_is_refused():
    """Some built-in callables tell nothing about their parameters; the message says to wrap them."""
    with pytest.raises(HandlerError, match=r"min\(\) cannot be read: wrap it"):
        on("job", min)


def generator(task):
    yield task


async def async_generator(task):
    yield task


class Generating:
    def __call__(self, task):
        yield task


@pytest.mark.parametrize("function", [generator, async_generator, Generating(), functools.partial(generator)])
def test_a_generator_is_refused(function):
    """Calling a generator runs none of it, and the task would be done."""
    with pytest.raises(HandlerError, match=r"\(\) is a generator"):
        on("job", function)


@pytest.mark.parametrize("kind", ["", "x" * 201, "nul\0", None])
def test_bad_kind_is_refused(kind):
    """A kind that no ledger could store is refused."""
    with pytest.raises(UsageError, match="kind"):
        on(kind)


class Plain:
    def __call__(self, task):
        """A callable object."""


class Awaited:
    async def __call__(self, task, context):
        """An async callable object."""

    async def method(self, task):
        """An async method."""


async def coroutine(task):
    """An async function."""


async def with_context(task, context):
    """An async function with a context."""


async def under_other_names(job: Task, inside: Context):
    """An async function whose annotations say what its names do not."""


async def annotated(task, inside: Context | None = None):
    """An async function with an annotated context, which may be left out in tests."""


@pytest.mark.parametrize(
    ("function", "is_async", "takes_context"),
    [
        (lambda task: None, False, False),
        (lambda task, context: None, False, True),
        (lambda task, retries=3: None, False, False),
        (lambda task, context=None: None, False, True),
        (annotated, True, True),
        (lambda task, retries=3, context=None: None, False, False),
        (lambda task, *, retries=3, **more: None, False, False),
        (lambda task, /, inside: None, False, True),
        (lambda job, ctx: None, False, True),
        (under_other_names, True, True),
        (lambda task, context, extra=1: None, False, True),
        (functools.wraps(with_context)(undecorated(with_context)), False, True),
        (coroutine, True, False),
        (with_context, True, True),
        (functools.partial(with_context, context=None), True, False),
        (functools.partial(send, invoice=7, mailer=None), False, False),
        (functools.partial(Awaited()), True, True),
        (Plain(), False, False),
        (Awaited(), True, True),
        (Awaited().method, True, False),
    ],
)
def test_how_a_function_is_called(function, is_async, takes_context):
    """Functions, methods, partials and callable objects, sync and async, with and without a context."""
    handler = on("job", function)
    assert (handler.is_async, handler.takes_context) == (is_async, takes_context)


def test_timeout_needs_an_async_function():
    """No timeout can stop a thread, so a plain function with one is refused; a negative one is refused for all."""
    assert on("job", coroutine, timeout=timedelta(seconds=1)).timeout == timedelta(seconds=1)
    with pytest.raises(HandlerError, match="make it async"):
        on("job", lambda task: None, timeout=timedelta(seconds=1))
    with pytest.raises(DurationError):
        on("job", coroutine, timeout=timedelta(seconds=-1))


def test_context_counts_tries_from_one():
    """The context says which try this is, of how many."""
    context = Context(claim=SimpleNamespace(number=2), attempts_max=5)
    assert (context.attempt, context.attempts_max, context.connection) == (2, 5, None)


def test_prefixes():
    """What patterns begin with, each once and without those that another one covers; a star in front says nothing."""
    made = handlers("mail.*", "mail.in.*", "call", "*", "*.z", "a*b*c", "ab*")
    assert made.prefixes == ["a", "mail."]
