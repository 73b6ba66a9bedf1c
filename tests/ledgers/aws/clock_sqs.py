"""A client of SQS in memory that obeys the clock of a test: delays, and messages that come back unless they are deleted."""

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any

from redrive.ledgers.aws.queue import SqsQueue
from redrive.testing import VirtualClock

VISIBILITY = timedelta(seconds=30)
RECEIPTS_MAX = 10


class ClockSqs:
    """As many queues as are asked for, all of them one."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._receipts = itertools.count()
        self._bodies: dict[str, str] = {}
        self._seen_at: dict[str, datetime] = {}
        self._received: dict[str, int] = {}
        self.dead: list[str] = []
        """Bodies of messages that were received too often."""

    async def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        for entry in Entries:
            receipt = f"{next(self._receipts):06}"
            self._bodies[receipt] = entry["MessageBody"]
            self._seen_at[receipt] = self._clock.now() + timedelta(seconds=entry["DelaySeconds"])
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}

    async def receive_message(
        self, *, QueueUrl: str, MaxNumberOfMessages: int, WaitTimeSeconds: int  # noqa: N803
    ) -> dict[str, Any]:  # fmt: skip
        while not (found := self._visible()[:MaxNumberOfMessages]) and WaitTimeSeconds:
            await asyncio.sleep(0.01)
        for receipt in found:
            self._seen_at[receipt] = self._clock.now() + VISIBILITY
            self._received[receipt] = self._received.get(receipt, 0) + 1
        return {"Messages": [{"ReceiptHandle": one, "Body": self._bodies[one]} for one in found]}

    def _visible(self) -> list[str]:
        now = self._clock.now()
        visible = sorted(receipt for receipt, seen_at in self._seen_at.items() if seen_at <= now)
        for receipt in [one for one in visible if self._received.get(one, 0) >= RECEIPTS_MAX]:
            visible.remove(receipt)
            self._seen_at.pop(receipt)
            self.dead.append(self._bodies.pop(receipt))
        return visible

    async def delete_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        for entry in Entries:
            self._bodies.pop(entry["ReceiptHandle"], None)
            self._seen_at.pop(entry["ReceiptHandle"], None)
        return {}

    async def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:  # noqa: N803
        return {"Attributes": {AttributeNames[0]: str(len(self._bodies))}}

    def queue(self) -> SqsQueue:
        """The queue, through its real edge."""
        return SqsQueue(self, "url")
