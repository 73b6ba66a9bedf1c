"""Kill -9 of any process at random, for the engine and each system on both databases: five hundred kills over a hundred thousand tasks."""

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from proof.ground import STORES, tried_on
from proof.scenario import Found, chance, scenario, sized
from tests.faults.command_kills import commands
from tests.faults.flag_kills import flags
from tests.faults.kill_proofs import engine
from tests.faults.relay_kills import relay
from tests.faults.trigger_kills import triggers
from tests.faults.webhook_kills import webhooks

logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the producer meets a broker that is away again and again

Killed = Callable[..., Coroutine[Any, Any, str]]


def _killed(name: str, killed: Killed, short_size: tuple[int, int], **full: Any) -> None:
    """A scenario of its own for each system, so that each can be run again alone."""

    def run(short: bool) -> Iterator[Found]:
        tasks, kills = short_size if short else (sized(100_000), sized(500))
        size = {"tasks": tasks, "kills": kills} | ({} if short else full)
        for store in STORES[1:] if short else STORES:
            systems = [] if name == "engine" else [name]
            tried = f"{name}, {tasks:,} tasks, {kills} kill -9"
            yield tried_on(store, tried, lambda ground: killed(ground, chance(), **size), systems)

    run.__name__ = f"kills_{name}"
    scenario(f"nothing acknowledged is lost when processes are killed: {name}")(run)


async def _relay(*given: Any, **size: Any) -> str:
    return await relay(*given, broker_every=50 if size["kills"] > 50 else 2, **size)


_killed("engine", engine, (300, 4))
_killed("relay", _relay, (200, 2), busy=4)
_killed("webhooks", webhooks, (40, 3), senders_amount=12)
_killed("flags", flags, (80, 2))
_killed("commands", commands, (80, 2))
_killed("triggers", triggers, (30, 1), senders=12)
