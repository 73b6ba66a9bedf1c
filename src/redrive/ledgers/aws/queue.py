"""Where heads wait: a queue whose messages only say "look at this head".

All truth is in the head. So a message that is lost, doubled, late or out of order changes nothing: who gets one looks, and takes what is
due. Messages are deleted as soon as the claim is written, and are never extended.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from redrive.errors import LedgerError
from redrive.ledgers.aws.asking import BUSY, PATIENCE, UNKNOWN, BusyError, ask_again, judge_code, refused_call

DELAY_MAX = timedelta(seconds=900)
"""The longest delay of SQS; longer waits hop."""
BATCH_MAX = 10
"""How many messages one call carries."""
WAIT_MAX = timedelta(seconds=20)
SEND_PATIENCE = timedelta(seconds=5)
"""How long it is tried to send or to delete: whoever does has written its item, and a sweep sends what was not sent."""
HEAD_ID_BYTES_MAX = 1024
"""DynamoDB refuses a longer key, and the whole batch that asks for it."""
REMEDY = "check the queue and the rights of this process"


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
    """The message that a text holds; None if it is none of ours. Whatever a stranger sent, the messages beside it are read."""
    try:
        told = json.loads(body)
        head_id, due = told["e"], told["due"]
        ours = told["v"] == 1 and type(due) is int and 0 < len(head_id.encode()) <= HEAD_ID_BYTES_MAX
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return Message(head_id, due) if ours else None


def delay_seconds(delay: timedelta) -> int:
    """A delay in whole seconds: never too short, unless it is too long for a queue."""
    return max(0, math.ceil(min(delay, DELAY_MAX).total_seconds()))


class SqsQueue:
    """A standard queue of SQS, through a client of aiobotocore."""

    def __init__(
        self, client: Any, url: str, *, patience: timedelta = PATIENCE, send_patience: timedelta = SEND_PATIENCE
    ) -> None:
        self.url = url
        self._client = client
        self._patience = patience.total_seconds()
        self._send_patience = send_patience.total_seconds()

    async def send(self, messages: Sequence[tuple[Message, timedelta]]) -> None:
        """See `Queue.send`."""
        entries = [
            {"Id": str(place), "MessageBody": to_body(message), "DelaySeconds": delay_seconds(delay)}
            for place, (message, delay) in enumerate(messages)
        ]
        refused = await self._in_tens("send_message_batch", entries)
        if refused:
            raise LedgerError(f"SQS refused {len(refused)} messages ({_said(refused[0])}): {REMEDY}")

    async def receive(self, limit: int, wait: timedelta) -> list[ReceivedMessage]:
        """See `Queue.receive`. What an answer took that was lost is shown again when it has been hidden long enough."""
        answer = await self._call(
            "receive_message",
            self._patience,
            MaxNumberOfMessages=max(1, min(limit, BATCH_MAX)),
            WaitTimeSeconds=int(min(wait, WAIT_MAX).total_seconds()),
        )
        found = answer.get("Messages", [])
        return [ReceivedMessage(one["ReceiptHandle"], from_body(one["Body"])) for one in found]

    async def delete(self, messages: Sequence[ReceivedMessage]) -> None:
        """See `Queue.delete`. What is refused is gone already, or comes again and finds nothing to do."""
        entries = [{"Id": str(place), "ReceiptHandle": one.receipt} for place, one in enumerate(messages)]
        await self._in_tens("delete_message_batch", entries)

    async def depth(self) -> int:
        """See `Queue.depth`."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        answer = await self._call("get_queue_attributes", self._patience, AttributeNames=names)
        return sum(int(answer.get("Attributes", {}).get(name, 0)) for name in names)

    async def _in_tens(self, call: str, entries: Sequence[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """Make a call for each ten of the entries. Those that SQS was too busy for are asked for again; the refused are returned."""
        some = [list(entries[start : start + BATCH_MAX]) for start in range(0, len(entries), BATCH_MAX)]
        ends = await asyncio.gather(*(self._batch(call, ten) for ten in some), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):  # when the other tens have got their chance
                raise end
        return [one for end in ends if not isinstance(end, BaseException) for one in end]

    async def _batch(self, call: str, entries: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        left, refused = entries, list[Mapping[str, Any]]()

        async def ask() -> None:
            nonlocal left
            answer = await getattr(self._client, call)(QueueUrl=self.url, Entries=left)
            failed = {one["Id"]: one for one in answer.get("Failed", [])}
            passing = {id_ for id_, one in failed.items() if _passes(one)}
            refused.extend(one for id_, one in failed.items() if id_ not in passing)
            left = [entry for entry in left if entry["Id"] in passing]
            if left:
                raise BusyError(_said(failed[left[0]["Id"]]))

        await ask_again(ask, _judge, "SQS", self._send_patience)
        return refused

    async def _call(self, call: str, patience_seconds: float, **asked: Any) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            answer: dict[str, Any] = await getattr(self._client, call)(QueueUrl=self.url, **asked)
            return answer

        return await ask_again(ask, _judge, "SQS", patience_seconds)


def _judge(response: Mapping[str, Any], *, uncertain: bool) -> bool:
    judged = judge_code(response, uncertain=uncertain)
    if judged is None:
        raise refused_call("SQS", response, REMEDY)
    return judged


def _passes(failed: Mapping[str, Any]) -> bool:
    """Whether an entry that failed may be taken the next time."""
    return failed.get("Code") in BUSY | UNKNOWN or not failed.get("SenderFault", False)


def _said(failed: Mapping[str, Any]) -> str:
    return f"{failed.get('Code')}: {failed.get('Message', '')}"
