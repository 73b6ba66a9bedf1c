"""A handler's annotation decides what its payloads are: checked when a task is added, and read when it runs."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from redrive import Context, Redrive, State, Task
from redrive.core.payload_types import as_json, payload_type, wanted_payload
from redrive.errors import HandlerError, PayloadError
from redrive.lane import make_task
from redrive.testing import drain, temporary_url


@dataclass(frozen=True)
class Line:
    """A part of a payment."""

    cents: int


@dataclass(frozen=True)
class Payment:
    """A payload as a dataclass, with another one in it."""

    account: str
    at: datetime
    lines: list[Line] = field(default_factory=list)


class Order(pydantic.BaseModel):
    """The same as a model of pydantic, whose JSON has another name for a field."""

    number: int = pydantic.Field(alias="no")


class Letter(msgspec.Struct):
    """And as a Struct of msgspec."""

    to: str
    copies: list[int] = []


class Address(TypedDict):
    """And as a dict with a shape."""

    city: str


AT = datetime(2030, 1, 1, tzinfo=UTC)
PAYMENT = Payment("DE1", AT, [Line(700)])
PAYMENT_JSON = {"account": "DE1", "at": "2030-01-01T00:00:00Z", "lines": [{"cents": 700}]}


@pytest.mark.parametrize(
    ("wanted", "value", "json"),
    [
        (Payment, PAYMENT, PAYMENT_JSON),
        (Order, Order(no=7), {"no": 7}),
        (Letter, Letter("ada", [1]), {"to": "ada", "copies": [1]}),
        (Address, {"city": "Bonn"}, {"city": "Bonn"}),
        (list[int], [1, 2], [1, 2]),
    ],
    ids=["dataclass", "pydantic", "msgspec", "TypedDict", "builtin"],
)
def test_a_value_goes_to_json_and_comes_back(wanted: Any, value: Any, json: Any) -> None:
    """What is written can be read again, and is the same value."""
    assert payload_type(wanted).write(value) == as_json(value) == json
    assert payload_type(wanted).read(json) == value


@pytest.mark.parametrize(
    ("wanted", "json", "said"),
    [
        (
            Payment,
            {"at": "2030-01-01", "lines": [{"cents": 1}, {"cents": "secret"}]},
            "does not fit Payment: account: Field required; lines[1].cents: Input should be a valid integer",
        ),
        (Order, {"no": None}, "does not fit Order: no: Input should be a valid integer"),
        (Letter, {"to": "ada", "copies": ["secret"]}, "does not fit Letter: copies[0]: Expected `int`, got `str`"),
        (Letter, "secret", "does not fit Letter: Expected `object`, got `str`"),
        (list[int], ["secret"] * 7, "[4]: Input should be a valid integer, unable to parse string as an integer; and 2 more"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_by_its_path(wanted: Any, json: Any, said: str) -> None:
    """The error says where, and shows no value: payloads hold people's data."""
    with pytest.raises(PayloadError) as refused:
        payload_type(wanted).read(json)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_type_that_nobody_can_check_is_refused() -> None:
    """At registration, not when the first task runs."""
    with pytest.raises(HandlerError, match="payloads of type Redrive cannot be checked: make it a dataclass"):
        payload_type(Redrive)


def test_a_value_that_is_not_json_is_refused() -> None:
    """The error says of which type it is part."""

    @dataclass
    class Odd:
        thing: Any

    with pytest.raises(PayloadError, match="a Odd that cannot be written as JSON"):
        as_json(Odd(object()))


async def typed(task: Task[Payment]) -> None:
    """Asks for a type."""


async def in_words(task: "Task[Payment]", context: Context) -> None:
    """The same, as text."""


async def unknown(task: "Task[Nowhere]") -> None:  # type: ignore[name-defined]  # noqa: F821
    """A type that is not there."""


async def any_json(task: Task) -> None:
    """Takes any JSON, as every handler did."""


async def whatever(task: Task[Any]) -> None:
    """The same, said aloud."""


class Callable:
    """An object that can be called."""

    async def __call__(self, task: "Task[Payment]") -> None:
        """Asks for a type."""


@pytest.mark.parametrize("function", [typed, in_words, partial(typed), Callable(), Callable().__call__])
def test_the_annotation_decides(function: Any) -> None:
    """Whatever can be called, and however the annotation is written."""
    wanted = wanted_payload(function)
    assert wanted is not None
    assert wanted.read(PAYMENT_JSON) == PAYMENT


@pytest.mark.parametrize("function", [any_json, whatever, lambda task: None])
def test_without_one_any_json_is_taken(function: Any) -> None:
    """Handlers that were there before are called as before."""
    assert wanted_payload(function) is None


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    """It asks for something, and nobody knows for what."""
    with pytest.raises(
        HandlerError, match=r"'Task\[Nowhere\]' of 'task' cannot be read: name 'Nowhere' is not defined"
    ):
        wanted_payload(unknown)


async def test_typed_tasks_are_added_checked_and_run() -> None:
    """By the function itself or by kind, as a value or as JSON; what does not fit is not stored."""
    got: list[Payment] = []
    async with Redrive(temporary_url()) as app:

        @app.handler(gate=lambda payment: f"bank:{payment.account}")
        async def pay(task: Task[Payment]) -> None:
            got.append(task.payload)

        await app.add(pay, PAYMENT, key="a")
        await app.add("pay", PAYMENT_JSON, key="b")
        with pytest.raises(PayloadError, match="'pay': the payload does not fit Payment: account: Field required"):
            await app.add("pay", {"at": "2030-01-01"}, key="c")
        with pytest.raises(PayloadError, match=r"lines\[0\].cents"):
            await app.add(pay, Payment("DE1", AT, [Line("many")]), key="c")  # type: ignore[arg-type]
        with pytest.raises(PayloadError):
            await app.add_many([make_task("pay", PAYMENT, key="d"), make_task("pay", 7, key="e")])
        await drain(app)
        assert got == [PAYMENT, PAYMENT]
        first = await app.tasks.get("a")
        assert first is not None
        assert (first.payload, first.gate, await app.tasks.get("d")) == (PAYMENT_JSON, "bank:DE1", None)


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_does_not_fit_at_the_run_is_dead_with_the_path(transactional: bool) -> None:
    """Stored by a process that knew another type: no try can help, and a person sees why."""
    url = temporary_url()
    async with Redrive(url) as other:
        await other.add("pay", {"account": 7}, key="a")
    async with Redrive(url) as app:

        @app.handler(transactional=transactional)
        def pay(task: Task[Payment], context: Context) -> None:
            raise AssertionError("not called")

        await drain(app)
        task = await app.tasks.get("a")
        assert task is not None
        assert task.state is State.DEAD
        assert "does not fit Payment: account: Input should be a valid string; at: Field required" in str(
            task.last_error
        )


async def test_a_function_that_is_no_handler_cannot_be_added() -> None:
    """Nor one of a pattern, or of two kinds: the kind must be said."""
    app = Redrive(temporary_url())
    with pytest.raises(HandlerError, match=r"typed\(\) is not a handler here"):
        await app.add(typed, PAYMENT)
    app.handler("pay.*")(typed)
    with pytest.raises(HandlerError, match=r"typed\(\) handles pay\.\*: say as text which kind is meant"):
        await app.add(typed, PAYMENT)
    app.handler("one")(any_json)
    app.handler("two")(any_json)
    with pytest.raises(HandlerError, match=r"handles one, two"):
        await app.add(any_json)


def test_keys_of_a_struct_are_text_in_json() -> None:
    """JSON has no other keys."""

    class Sizes(msgspec.Struct):
        amounts: dict[int, int]

    assert as_json(Sizes({7: 1})) == {"amounts": {"7": 1}}


def test_each_refusal_is_one_sentence() -> None:
    """Of what cannot be written, checked or read: which type, and why."""

    class Odd(msgspec.Struct):
        thing: Any

    with pytest.raises(PayloadError) as unwritable:
        as_json(Odd(object()))
    assert str(unwritable.value).startswith("a Odd that cannot be written as JSON: ")
    with pytest.raises(HandlerError) as unchecked:
        payload_type(Redrive)
    assert str(unchecked.value).startswith(
        "payloads of type Redrive cannot be checked: make it a dataclass, a pydantic model, a msgspec Struct or a TypedDict of "
        "such types (Unable to generate pydantic-core schema for <class 'redrive.app.Redrive'>."
    )
    with pytest.raises(PayloadError) as misfit:
        payload_type(list[int]).read([1, "x"])
    assert str(misfit.value) == (
        "the payload does not fit list[int]: [1]: Input should be a valid integer, unable to parse string as an integer"
    )
    with pytest.raises(HandlerError) as unread:
        wanted_payload(unknown)
    assert str(unread.value) == (
        "the annotation 'Task[Nowhere]' of 'task' cannot be read: name 'Nowhere' is not defined; import its type where the "
        "handler is defined, not under TYPE_CHECKING or inside a function"
    )


async def limited(task: "Task[Annotated[int, pydantic.Field(gt=5)]]") -> None:
    """Its type says more than its name, also where it is written as text."""


def test_what_an_annotation_adds_counts() -> None:
    """A limit is a part of the type."""
    wanted = wanted_payload(limited)
    assert wanted is not None
    assert wanted.read(6) == 6
    with pytest.raises(PayloadError, match="greater than 5"):
        wanted.read(5)
