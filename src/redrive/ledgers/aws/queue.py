"""Where heads wait: a queue whose messages only say "look at this head".

All truth is in the head. So a message that is lost, doubled, late or out of order changes nothing: who gets one looks, and takes what is
due. Messages are deleted as soon as the claim is written, and are never extended.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from aiohttp import ClientError as HttpError
from botocore.exceptions import BotoCoreError, ClientError

from redrive.errors import LedgerAwayError

DELAY_MAX = timedelta(seconds=900)
"""The longest delay of SQS; longer waits hop."""
BATCH_MAX = 10
"""How many messages one call carries."""
WAIT_MAX = timedelta(seconds=20)


class Message(NamedTuple):
    """Look at this head, at this instant (in microseconds): by it a head knows whether the message is still meant."""

    head_id: str
    due: int


class ReceivedMessage(NamedTuple):
    """A message that was handed out; without content if it cannot be read."""

    receipt: str
    content: Message | None


class Queue(Protocol):
    """All that is asked of a queue."""

    async def send(self, messages: Sequence[tuple[Message, timedelta]]) -> None:
        """Send messages, each to be seen after its delay or after `DELAY_MAX`, whichever is sooner."""
        ...

    async def receive(self, limit: int, wait: timedelta) -> list[ReceivedMessage]:
        """Take up to `limit` messages, which nobody else sees for a while; wait so long for the first. It may be fewer."""
        ...

    async def delete(self, messages: Sequence[ReceivedMessage]) -> None:
        """Forget messages; one that is gone already is no error."""
        ...

    async def depth(self) -> int:
        """About how many messages there are, seen and unseen."""
        ...


def to_body(message: Message) -> str:
    """A message as text."""
    return json.dumps({"v": 1, "e": message.head_id, "due": message.due}, separators=(",", ":"))


def from_body(body: str) -> Message | None:
    """The message that a text holds; None if it is none of ours."""
    try:
        told = json.loads(body)
        return Message(str(told["e"]), int(told["due"])) if told["v"] == 1 else None
    except (KeyError, TypeError, ValueError):
        return None


def delay_seconds(delay: timedelta) -> int:
    """A delay in whole seconds: never too short, unless it is too long for a queue."""
    return max(0, math.ceil(min(delay, DELAY_MAX).total_seconds()))


class SqsQueue:
    """A standard queue of SQS, through a client of aiobotocore."""

    def __init__(self, client: Any, url: str) -> None:
        self.url = url
        self._client = client

    async def send(self, messages: Sequence[tuple[Message, timedelta]]) -> None:
        """See `Queue.send`."""
        entries = [
            {"Id": str(place), "MessageBody": to_body(message), "DelaySeconds": delay_seconds(delay)}
            for place, (message, delay) in enumerate(messages)
        ]
        answers = await self._in_tens("send_message_batch", entries)
        if failed := [one for answer in answers for one in answer.get("Failed", [])]:
            raise LedgerAwayError(
                f"SQS refused {len(failed)} messages: {failed[0].get('Message', failed[0].get('Code'))}"
            )

    async def receive(self, limit: int, wait: timedelta) -> list[ReceivedMessage]:
        """See `Queue.receive`."""
        answer = await self._call(
            "receive_message",
            MaxNumberOfMessages=max(1, min(limit, BATCH_MAX)),
            WaitTimeSeconds=int(min(wait, WAIT_MAX).total_seconds()),
        )
        found = answer.get("Messages", [])
        return [ReceivedMessage(one["ReceiptHandle"], from_body(one["Body"])) for one in found]

    async def delete(self, messages: Sequence[ReceivedMessage]) -> None:
        """See `Queue.delete`. What cannot be deleted comes again, and finds nothing to do."""
        entries = [{"Id": str(place), "ReceiptHandle": one.receipt} for place, one in enumerate(messages)]
        await self._in_tens("delete_message_batch", entries)

    async def depth(self) -> int:
        """See `Queue.depth`."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        answer = await self._call("get_queue_attributes", AttributeNames=names)
        return sum(int(answer.get("Attributes", {}).get(name, 0)) for name in names)

    async def _in_tens(self, call: str, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        some = [entries[start : start + BATCH_MAX] for start in range(0, len(entries), BATCH_MAX)]
        return list(await asyncio.gather(*(self._call(call, Entries=list(ten)) for ten in some)))

    async def _call(self, call: str, **asked: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await getattr(self._client, call)(QueueUrl=self.url, **asked)
        except (BotoCoreError, ClientError, HttpError, OSError, TimeoutError) as error:
            raise LedgerAwayError(f"SQS does not answer: {error}") from error
        return answer
