"""Which function handles which kind."""

import functools
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from redrive.core.effect import Effect
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
    with pytest.raises(DurationError, match=r"^timeout must lie between"):
        on("job", coroutine, timeout=timedelta(seconds=-1))


def test_a_kind_that_cannot_be_stored_is_refused_by_name():
    """Before any task of it is added."""
    with pytest.raises(UsageError, match=r"^kind must be 1 to"):
        on("")


def test_a_handler_knows_its_own_tasks():
    """Of its kind and of no other."""
    assert on("mail").matches("mail")
    assert not on("mail").matches("male")


def test_context_counts_tries_from_one():
    """The context says which try this is, of how many."""
    context = Context(claim=SimpleNamespace(number=2), attempts_max=5)
    assert (context.attempt, context.attempts_max, context.connection) == (2, 5, None)


def test_prefixes():
    """What patterns begin with, each once and without those that another one covers; a star in front says nothing."""
    made = handlers("mail.*", "mail.in.*", "call", "*", "*.z", "a*b*c", "ab*")
    assert made.prefixes == ["a", "mail."]


@dataclass
class Invoice:
    number: int


async def typed(task: Task[Invoice]):
    """A handler of payloads of a type."""


async def probe(task):
    """Nothing happened."""


@pytest.mark.parametrize(
    ("flag", "function", "options"),
    [
        ("has_transactional", coroutine, {"transactional": True}),
        ("has_gates", coroutine, {"gate": "bank"}),
        ("has_typed", typed, {}),
        ("has_effects", with_context, {"effect": Effect(probe=probe)}),
    ],
)
def test_what_some_handlers_need_is_known(flag, function, options):
    """Nothing is prepared for transactions, gates, typed payloads or effects while no handler needs it."""
    made = handlers("plain", "a.*")
    assert getattr(made, flag) is False
    made.add(on("job", function, **options))
    assert getattr(made, flag) is True
    made.add(on("other"))
    assert getattr(made, flag) is True
    assert handlers("a.*", "*.b").has_open_patterns
    assert not made.has_open_patterns


@pytest.mark.parametrize(
    ("function", "options", "plain"),
    [
        (coroutine, {}, True),
        (lambda task: None, {}, False),
        (coroutine, {"timeout": "1s"}, False),
        (with_context, {}, False),
        (typed, {}, False),
    ],
)
def test_a_plain_call_needs_no_preparation(function, options, plain):
    """Async, without context, timeout or type: such a handler is called with its task and nothing else."""
    assert on("job", function, **options).is_plain is plain


def test_the_kind_of_a_function():
    """A function stands for the one kind that it handles, also behind a decorator; otherwise it is said why it does not."""
    made = Handlers()
    decorated = functools.wraps(coroutine)(undecorated(coroutine))
    for kind, function in {"a": decorated, "b": with_context, "c": with_context, "d.*": probe}.items():
        made.add(on(kind, function))
    assert made.kind_of(coroutine) == made.kind_of(decorated) == "a"
    for function, said in (
        (with_context, "with_context() handles b, c: say as text which kind is meant"),
        (probe, "probe() handles d.*: say as text which kind is meant"),
        (typed, "typed() is not a handler here: register it with @app.handler, or name the kind as text"),
        (Plain(), "Plain() is not a handler here: register it with @app.handler, or name the kind as text"),
    ):
        with pytest.raises(HandlerError) as refused:
            made.kind_of(function)
        assert str(refused.value) == said


def test_a_gate_is_text_or_a_function():
    """Text names one gate for all tasks of the kind, a function names it for each; anything else is refused."""
    assert on("job").gate is None
    fixed, own = on("job", gate="bank").gate, on("job", gate=lambda payload: payload["bank"]).gate
    assert fixed is not None
    assert own is not None
    assert (fixed({}), own({"bank": "DE"})) == ("bank", "DE")


async def test_the_probe_of_an_effect_is_called_as_a_handler_is():
    """With the policy and the timeout of the effect; without an effect there is none."""
    policy = Policy(attempts=9)
    made = on("job", with_context, effect=Effect(probe=probe, policy=policy, timeout="3s"))
    assert made.probe is not None
    assert (made.probe.kind, made.probe.function, made.probe.policy) == ("job", probe, policy)
    assert made.probe.timeout == timedelta(seconds=3)
    assert on("job", with_context).probe is None


class Nameless:
    def __call__(self, task, context, more):
        """A callable object with too many parameters."""


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (coroutine, {"gate": 7}, "the gate of 'job' must be text or a function of the payload, not 7"),
        (
            lambda task: None,
            {"timeout": "1s"},
            "the handler of 'job' is a plain function, which no timeout can stop: make it async",
        ),
        (
            with_context,
            {"effect": "paid"},
            "the effect of 'job' must be an Effect, such as Effect(probe=was_paid), not 'paid'",
        ),
        (
            with_context,
            {"effect": Effect(probe=probe), "transactional": True},
            "the handler of 'job' is transactional, so its own transaction would hold the mark of its effect back: "
            "choose one of the two",
        ),
        (
            coroutine,
            {"effect": Effect(probe=probe)},
            "the handler of 'job' has an effect: let it take (task, context), for context.effect()",
        ),
        (7, {}, "the handler of 'job' must be a function, a method or a callable object, not 7"),
        (generator, {}, "generator() is a generator, so calling it would run nothing: take the yield out of it"),
        (min, {}, "the parameters of min() cannot be read: wrap it in a function of (task)"),
        (
            functools.partial(send),
            {},
            "a handler takes (task) or (task, context), but send() takes (task, invoice, mailer): "
            "give mailer a default, or bind it with functools.partial",
        ),
        (
            lambda task, context, more, *, named: None,
            {},
            "a handler takes (task) or (task, context), but <lambda>() takes (task, context, more, *, named): "
            "give more, named a default, or bind it with functools.partial",
        ),
        (
            Nameless(),
            {},
            "a handler takes (task) or (task, context), but Nameless() takes (task, context, more): "
            "give more a default, or bind it with functools.partial",
        ),
        (
            two_fields,
            {},
            "a handler takes (task) or (task, context), but two_fields() takes (order, email): "
            "the second gets the context; take email out of task.payload, or say email: Context",
        ),
        (
            lambda *args: None,
            {},
            "a handler takes (task) or (task, context), but <lambda>() takes (*args): "
            "name its parameters; a decorator passes them on with functools.wraps",
        ),
        (
            lambda: None,
            {},
            "a handler takes (task) or (task, context), but <lambda>() takes (): give it a parameter for the task",
        ),
        (
            lambda context: None,
            {},
            "a handler takes (task) or (task, context), but <lambda>() takes (context): the task comes first",
        ),
    ],
)
def test_a_refusal_names_the_function_and_the_remedy(function, options, said):
    """Whoever registers a handler that cannot work reads which one it is, what is wrong with it, and what would do."""
    with pytest.raises(HandlerError) as refused:
        on("job", function, **options)
    assert str(refused.value) == said


def test_a_second_handler_is_told_what_to_do():
    """The message names the kind and the way out."""
    with pytest.raises(HandlerError) as refused:
        handlers("mail", "mail")
    assert str(refused.value) == "there is a handler for 'mail' already: give the second one another kind"


async def any_second(task, thing: Any):
    """A second parameter that may be anything."""


async def ctx_second(job, ctx):
    """A context by another name."""


async def hidden_second(job, _unused):
    """A second parameter that nobody looks at."""


async def bare_second(task, thing):
    """Not annotated, behind a task."""


async def bare_both(order, thing):
    """Not annotated, behind something else."""


async def renamed(job: Task, thing):
    """A task by its annotation."""


async def a_context_subclass(job: Task, thing: "MyContext"):  # noqa: F821
    """Annotated as somebody's own context."""


@pytest.mark.parametrize(
    ("function", "fits"),
    [
        (any_second, True),
        (ctx_second, True),
        (hidden_second, True),
        (bare_second, True),
        (bare_both, False),
        (renamed, True),
        (a_context_subclass, True),
        (a_typed_field, False),
    ],
)
def test_a_second_parameter_is_a_context_or_data(function, fits):
    """Its name or its annotation says so, or that the first is a task; two fields of a payload are refused."""
    if fits:
        assert on("job", function).takes_context
        return
    with pytest.raises(HandlerError, match=r"take .* out of task.payload"):
        on("job", function)
