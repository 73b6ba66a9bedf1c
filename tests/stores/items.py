"""Applications that are kept in DynamoDB, on the server of the tests."""

import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from redrive.access.secret_box import new_key
from redrive.ledgers.aws.open import open_clients
from redrive.ledgers.aws.table import TTL, definition
from tests.ledgers.aws.servers import AWS

REGION = "us-east-1"


@asynccontextmanager
async def item_url(server: str, *, bucket: bool = False, **options: str) -> AsyncIterator[str]:
    """The URL of an empty store: a table with its indexes, and a queue; perhaps a bucket."""
    os.environ.update({name: value for name, value in AWS.items() if name not in os.environ})
    name = f"s-{secrets.token_hex(6)}"
    async with open_clients(region=REGION, endpoint_url=server, with_s3=bucket) as clients:
        await clients.dynamodb.create_table(**definition(name))
        expiry = {"Enabled": True, "AttributeName": TTL}
        await clients.dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=expiry)
        made = await clients.sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "60", **options})
        queue = made["QueueUrl"]
        if bucket:
            await clients.s3.create_bucket(Bucket=name)
        url = f"dynamodb://{name}?queue={quote(queue, safe='')}&region={REGION}&endpoint={quote(server, safe='')}"
        try:
            yield url + (f"&bucket={name}" if bucket else "")
        finally:
            await clients.dynamodb.delete_table(TableName=name)
            await clients.sqs.delete_queue(QueueUrl=queue)


def item_settings(url: str) -> dict[str, str]:
    """The settings by which a process of its own finds such a store."""
    asked = parse_qs(urlsplit(url).query)
    return AWS | {
        "EVENTS_TABLE_NAME": urlsplit(url).netloc,
        "DELIVERY_QUEUE_URL": asked["queue"][0],
        "AWS_REGION": asked["region"][0],
        "AWS_ENDPOINT_URL": asked["endpoint"][0],
        "REDRIVE_SECRET_KEY": new_key(),
    }


class Heard:
    """A client of AWS that notes which calls were made."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()

    def __getattr__(self, call: str) -> Any:
        self.calls[call] += 1
        return getattr(self._client, call)
