"""Registering handlers: for the process, by class, once each."""

import gc

import pytest

from redrive import Redrive
from redrive.errors import UsageError
from redrive.systems import commands
from redrive.systems.commands import (
    Commands,
    HandlerAlreadyRegisteredError,
    Registry,
    handles,
)
from redrive.systems.commands.registry import registry
from redrive.testing import temporary_url
from tests.systems.commands.conftest import DOMAIN, TYPE, Bench


async def test_methods_of_an_object(bench: Bench) -> None:
    """A class marks its methods, an instance is registered with what it holds, sync and async alike."""

    class Shipping:
        def __init__(self, prefix: str) -> None:
            self.prefix = prefix

        @handles("shipping", "Pack")
        async def pack(self, command, context):
            return f"{self.prefix}{command.data}"

        @handles("shipping", "Ship", retry_policy=commands.RetryPolicy(1))
        def ship(self, command):
            return self.prefix

        def helper(self):
            raise AssertionError

    bench.handlers.register(Shipping("box "))
    await bench.bus.send("shipping", "Pack", "p-1", 7, reply_to="payments__replies")
    await bench.bus.send("shipping", "Ship", "p-2", reply_to="payments__replies")
    await bench.work()
    assert sorted(await bench.replies()) == [("SUCCESS", "box "), ("SUCCESS", "box 7")]


def test_all_methods_or_none() -> None:
    """Where one pair is taken, or comes twice, none of the object's methods is registered."""
    handlers = Registry()

    class Twice:
        @handles("shipping", "Pack")
        async def one(self, command, context): ...

        @handles("shipping", "Pack")
        async def two(self, command, context): ...

    with pytest.raises(HandlerAlreadyRegisteredError):
        handlers.register(Twice())
    assert len(handlers) == 0
    with pytest.raises(UsageError, match="no method marked"):
        handlers.register(object())


@pytest.mark.parametrize(
    "wrong", [lambda: None, lambda a, b, c: None, lambda *, command: None], ids=["none", "three", "named"]
)
def test_what_cannot_be_called_is_refused(wrong) -> None:
    """A handler takes the command, or the command and its context."""
    app = Redrive(temporary_url())
    handlers = Registry()
    Commands(app, handlers=handlers)
    with pytest.raises(UsageError, match="must take"):
        handlers.handler(DOMAIN, TYPE)(wrong)


@pytest.mark.parametrize(("domain", "type_"), [("Payments", "Debit"), ("payments", ""), ("payments", "De*")])
def test_names_that_cannot_be_sent_cannot_be_handled(domain: str, type_: str) -> None:
    """The same rules as for sending."""
    with pytest.raises(UsageError):
        Registry().handler(domain, type_)(lambda command: None)


def test_process_wide() -> None:
    """`@commands.handler` is heard by every bus of the process, those before and those after it; a dropped bus is let go."""
    before, own = Commands(Redrive(temporary_url())), Commands(Redrive(temporary_url()), handlers=Registry())

    @commands.handler("elsewhere", "Known")
    async def known(command, context): ...

    after = Commands(Redrive(temporary_url()))
    kind = "elsewhere/Known"
    try:
        assert before.lane.handlers.find(kind) is not None
        assert after.lane.handlers.find(kind) is not None
        assert own.lane.handlers.find(kind) is None, "it was given a registry of its own"
        with pytest.raises(HandlerAlreadyRegisteredError):
            commands.handler("elsewhere", "Known")(known)
        listening = len(registry._listeners)
        del after
        gc.collect()
        assert len(registry._listeners) < listening
    finally:
        registry._known.pop(kind)


async def test_one_bus_for_an_application(bench: Bench) -> None:
    """A second bus on the same application is refused."""
    with pytest.raises(UsageError, match="already"):
        Commands(bench.app, handlers=Registry())


async def test_two_handlers_for_one_type(bench: Bench) -> None:
    """The second registration of a pair is refused and named."""
    with pytest.raises(HandlerAlreadyRegisteredError, match="payments/DebitAccount"):
        bench.handlers.handler(DOMAIN, TYPE)(bench.handle)
