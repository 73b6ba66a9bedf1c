"""Queues and exchanges on the broker: made durable where they are missing, used as they are where they exist."""

import contextlib
from collections.abc import Sequence

import aiormq.exceptions
from aio_pika import ExchangeType
from aio_pika.abc import AbstractConnection

from redrive.systems.relay.settings import ANY_KEY


async def declare(connection: AbstractConnection, queue: str) -> None:
    """Make the queue, durable, if it is missing; one that exists is used as it is, whatever its arguments."""
    # A refusal closes the channel, so each try gets one of its own.
    try:
        async with connection.channel() as channel:
            await channel.declare_queue(queue, passive=True)
    except aiormq.exceptions.ChannelNotFoundEntity:
        with contextlib.suppress(aiormq.exceptions.ChannelPreconditionFailed):  # somebody else was quicker
            async with connection.channel() as channel:
                await channel.declare_queue(queue, durable=True)


class DirectExchangeError(Exception):
    """A direct exchange was to give us everything, which it gives to nobody: it knows only the keys that it is told."""


async def require(connection: AbstractConnection, queue: str) -> None:
    """Raise unless the queue is there: one that is not ours to make."""
    async with connection.channel() as channel:
        await channel.declare_queue(queue, passive=True)


async def bind(connection: AbstractConnection, queue: str, exchange: str, keys: Sequence[str]) -> None:
    """Let the queue have what the exchange gets under these keys. Both are made, durable, if they are missing."""
    try:
        async with connection.channel() as channel:
            await channel.declare_exchange(exchange, passive=True)
    except aiormq.exceptions.ChannelNotFoundEntity:
        with contextlib.suppress(aiormq.exceptions.ChannelPreconditionFailed):  # somebody else was quicker
            async with connection.channel() as channel:
                await channel.declare_exchange(exchange, ExchangeType.TOPIC, durable=True)
    if ANY_KEY in keys and await _is_direct(connection, exchange):
        raise DirectExchangeError(
            f"exchange {exchange!r} is direct, and would give nothing to a queue bound with {ANY_KEY}: "
            "name the routing keys of the dead letters in DEAD_LETTER_ROUTING_KEYS"
        )
    await declare(connection, queue)
    async with connection.channel() as channel:
        made = await channel.get_queue(queue, ensure=False)
        for key in keys:
            await made.bind(exchange, key)


async def _is_direct(connection: AbstractConnection, exchange: str) -> bool:
    """Whether an exchange that is there is a direct one. The broker tells it only to those who claim something else."""
    try:
        async with connection.channel() as channel:
            await channel.declare_exchange(exchange, ExchangeType.DIRECT, durable=True)
    except aiormq.exceptions.ChannelPreconditionFailed as error:
        return "'type'" not in str(error)
    except aiormq.exceptions.ChannelAccessRefused:  # it is not ours to declare, but perhaps to bind to
        return False
    return True
