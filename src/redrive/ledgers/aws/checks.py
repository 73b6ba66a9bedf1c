"""The look at table and queues before they are used, and by `redrive doctor`: what does not fit, and what to do.

A *problem* stops a service at its start. A *notice* costs money or comfort, and no event.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from aiohttp import ClientError as HttpError
from botocore.exceptions import BotoCoreError, ClientError

from redrive.errors import LedgerAwayError, SettingsError
from redrive.ledgers.aws.open import AwsClients
from redrive.ledgers.aws.table import TTL, problems_of, queue_problems

RECEIVES_MIN = 5
"""A message comes again where its claim could not be written in time: so often it must not be taken for one that cannot be read."""
REMEDY = "deploy deploy/aws/template.yaml, or correct the name"
DENIED = frozenset(
    {"403", "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnrecognizedClientException"}
)


class ItemPlaces(NamedTuple):
    """Where a ledger over items keeps what it has."""

    table: str
    queue_url: str
    dead_url: str | None = None
    bucket: str | None = None


class StoreFinding(NamedTuple):
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "notice", "problem"]
    said: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """What is wrong and what to do."""
        return f"{self.said}: {self.remedy}"


class _RefusedError(Exception):
    """A call was refused, or nobody answered; with what to say of it."""

    def __init__(self, said: str, remedy: str, *, away: bool = False) -> None:
        super().__init__(said)
        self.said, self.remedy, self.away = said, remedy, away

    def finding(self, name: str, status: Literal["notice", "problem"] = "problem") -> StoreFinding:
        return StoreFinding(name, status, self.said, self.remedy)


async def check(clients: AwsClients, places: ItemPlaces, *, lease: timedelta) -> list[StoreFinding]:
    """Raise `SettingsError` with every problem and its remedy, `LedgerAwayError` where nobody answers; else return the notices."""
    findings = await examine(clients, places, lease=lease, away_is_raised=True)
    problems = [finding.sentence for finding in findings if finding.status == "problem"]
    if problems:
        raise SettingsError("; ".join(problems))
    return [finding for finding in findings if finding.status == "notice"]


async def examine(
    clients: AwsClients, places: ItemPlaces, *, lease: timedelta, away_is_raised: bool = False
) -> list[StoreFinding]:
    """All that can be found out without changing anything. `lease` is how long a message may be worked on."""
    looks: list[Callable[[], Awaitable[Sequence[StoreFinding]]]] = [
        lambda: _look_at_table(clients.dynamodb, places.table),
        lambda: _look_at_expiry(clients.dynamodb, places.table),
        lambda: _look_at_queue(clients.sqs, places.queue_url, places.dead_url, lease),
    ]
    if places.dead_url is not None:
        dead_url = places.dead_url
        looks.append(lambda: _look_at_dead_letters(clients.sqs, dead_url))
    if places.bucket is not None:
        bucket = places.bucket
        looks.append(lambda: _look_at_bucket(clients.s3, bucket))
    findings: list[StoreFinding] = []
    for look in looks:
        try:
            findings += await look()
        except _RefusedError as error:
            if error.away and away_is_raised:
                raise LedgerAwayError(error.said) from error.__cause__
            findings.append(error.finding("store"))
    return findings


# --- the table ------------------------------------------------------------------------------------------------------------


async def _look_at_table(dynamo: Any, table: str) -> list[StoreFinding]:
    named = f"EVENTS_TABLE_NAME: table {table!r}"
    told = await _ask(dynamo, "describe_table", named, "dynamodb:DescribeTable on the table", TableName=table)
    found = problems_of(told["Table"])
    if found:
        remedy = "deploy deploy/aws/template.yaml again; DynamoDB makes an index while the table is used"
        return [StoreFinding("table", "problem", f"{named} does not fit: {'; '.join(found)}", remedy)]
    nobody = {"pk": {"S": "nobody"}, "sk": {"S": "nobody"}}
    await _ask(dynamo, "get_item", named, "dynamodb:GetItem on the table", TableName=table, Key=nobody)
    await _ask(
        dynamo, "query", named, "dynamodb:Query on the table and on TABLE/index/*",
        TableName=table, IndexName="DueIndex", Limit=1, KeyConditionExpression="#p = :p",
        ExpressionAttributeNames={"#p": "due_shard"}, ExpressionAttributeValues={":p": {"S": "nobody"}},
    )  # fmt: skip
    return [StoreFinding("table", "ok", f"{table} with its indexes")]


async def _look_at_expiry(dynamo: Any, table: str) -> list[StoreFinding]:
    named = f"EVENTS_TABLE_NAME: table {table!r}"
    try:
        told = await _ask(dynamo, "describe_time_to_live", named, "dynamodb:DescribeTimeToLive", TableName=table)
    except _RefusedError as error:
        return [] if error.away else [error.finding("expiry", "notice")]  # whoever is away was named with the table
    about = told.get("TimeToLiveDescription", {})
    if about.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and about.get("AttributeName") == TTL:
        return [StoreFinding("expiry", "ok", f"items go by {TTL}")]
    remedy = f"switch its time to live on for the attribute {TTL}"
    return [StoreFinding("expiry", "notice", f"{named} keeps for ever what may go, such as counts of a minute", remedy)]


# --- the queues -----------------------------------------------------------------------------------------------------------


async def _look_at_queue(sqs: Any, url: str, dead: str | None, lease: timedelta) -> list[StoreFinding]:
    named = f"DELIVERY_QUEUE_URL: queue {url!r}"
    attributes = await _attributes(sqs, url, named)
    found = queue_problems(attributes, lease.total_seconds())
    if found:
        remedy = "correct the queue, or deploy deploy/aws/template.yaml again"
        return [StoreFinding("queue", "problem", f"{named} does not fit: {'; '.join(found)}", remedy)]
    well = StoreFinding("queue", "ok", url)
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    if not policy:
        said = f"{named} has no redrive policy, so a message that cannot be read comes again until it is too old"
        remedy = (
            f"give it a dead-letter queue with maxReceiveCount 10, and set DELIVERY_DLQ_URL{'' if dead else ' to it'}"
        )
        return [well, StoreFinding("dead letters", "problem" if dead else "notice", said, remedy)]
    receives, target = int(policy.get("maxReceiveCount", 0)), str(policy.get("deadLetterTargetArn", ""))
    if receives < RECEIVES_MIN:
        said = f"{named} puts messages away after {receives} receipts, also good ones whose claim could not be written"
        return [well, StoreFinding("dead letters", "problem", said, "set maxReceiveCount of its redrive policy to 10")]
    if dead is not None and target.rpartition(":")[2] != dead.rpartition("/")[2]:
        said = f"DELIVERY_DLQ_URL: {named} puts messages away into {target}, not into {dead!r}"
        return [
            well,
            StoreFinding("dead letters", "problem", said, "set DELIVERY_DLQ_URL to the queue of its redrive policy"),
        ]
    return [well]


async def _look_at_dead_letters(sqs: Any, url: str) -> list[StoreFinding]:
    attributes = await _attributes(sqs, url, f"DELIVERY_DLQ_URL: queue {url!r}")
    amount = int(attributes.get("ApproximateNumberOfMessages", "0"))
    if amount:
        said = f"there are {amount} messages in {url} that could not be read; their events, if they have any, are safe"
        return [
            StoreFinding("dead letters", "notice", said, "look who else writes into the queue, then purge this one")
        ]
    return [StoreFinding("dead letters", "ok", "none")]


# --- the bucket -----------------------------------------------------------------------------------------------------------


async def _look_at_bucket(s3: Any, bucket: str) -> list[StoreFinding]:
    named = f"PAYLOAD_BUCKET: bucket {bucket!r}"
    await _ask(s3, "head_bucket", named, "s3:ListBucket on it", Bucket=bucket)
    return [StoreFinding("bucket", "ok", f"{bucket} for large payloads")]


async def _attributes(sqs: Any, url: str, named: str) -> Mapping[str, str]:
    told = await _ask(
        sqs, "get_queue_attributes", named, "sqs:GetQueueAttributes on it", QueueUrl=url, AttributeNames=["All"]
    )
    found: Mapping[str, str] = told.get("Attributes", {})
    return found


async def _ask(client: Any, call: str, named: str, right: str, **asked: Any) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = await getattr(client, call)(**asked)
    except ClientError as error:
        told = error.response["Error"]
        said = f"{named} cannot be used ({told.get('Code')}: {told.get('Message')})"
        denied = str(told.get("Code")).rpartition(".")[2] in DENIED
        raise _RefusedError(
            said, f"give the role of this process the right to {right}" if denied else REMEDY
        ) from error
    except (BotoCoreError, HttpError, OSError, TimeoutError) as error:
        said = f"{named} cannot be looked at, AWS does not answer ({error})"
        raise _RefusedError(
            said, "check AWS_REGION, AWS_ENDPOINT_URL, the credentials and the network", away=True
        ) from error
    return answer
