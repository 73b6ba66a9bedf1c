"""The look at start and by the doctor: what does not fit is one sentence with the remedy."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from redrive.errors import LedgerAwayError, SettingsError
from redrive.ledgers.aws.checks import ItemPlaces, StoreFinding, check, examine
from redrive.ledgers.aws.open import AwsClients
from redrive.ledgers.aws.table import INDEXES, TTL, definition
from tests.ledgers.aws.homes import ItemHome
from tests.ledgers.aws.test_queue import make_queue

STORES = ("aws",)
LEASE = timedelta(seconds=75)
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/deliveries"
DEAD = f"{QUEUE}-dead"
POLICY = {"maxReceiveCount": 10, "deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:deliveries-dead"}
PLACES = ItemPlaces("events", QUEUE, DEAD, "payloads")


class Told:
    """Services that answer what they are told to, call by call."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "describe_table": {"Table": definition("events")},
            "describe_time_to_live": {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": TTL}},
            "get_item": {},
            "query": {"Items": []},
            "head_bucket": {},
            QUEUE: {"VisibilityTimeout": "360", "RedrivePolicy": json.dumps(POLICY)},
            DEAD: {"ApproximateNumberOfMessages": "0"},
            **answers,
        }

    def __getattr__(self, call: str) -> Callable[..., Any]:
        async def asked(**request: Any) -> Any:
            answer = self.answers[request["QueueUrl"] if call == "get_queue_attributes" else call]
            if isinstance(answer, Exception):
                raise answer
            return {"Attributes": answer} if call == "get_queue_attributes" else answer

        return asked


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Any")


async def found(places: ItemPlaces = PLACES, **answers: Any) -> list[StoreFinding]:
    told = Told(**answers)
    return [one for one in await examine(AwsClients(told, told, told), places, lease=LEASE) if one.status != "ok"]


def without(index: str) -> dict[str, Any]:
    made = definition("events")
    return {
        "Table": made
        | {"GlobalSecondaryIndexes": [one for one in made["GlobalSecondaryIndexes"] if one["IndexName"] != index]}
    }


async def test_what_fits_has_nothing_to_say() -> None:
    """And the start goes on."""
    assert await found() == []
    told = Told()
    assert await check(AwsClients(told, told, told), PLACES, lease=LEASE) == []


@pytest.mark.parametrize(
    ("answers", "status", "said"),
    [
        (
            {"describe_table": refused("ResourceNotFoundException")},
            "problem",
            "EVENTS_TABLE_NAME: table 'events'.*deploy",
        ),
        *(({"describe_table": without(name)}, "problem", f"no index {name} on.*template") for name in INDEXES),
        ({"describe_table": {"Table": {"KeySchema": []}}}, "problem", "keys are not pk and sk"),
        ({"describe_table": refused("AccessDeniedException")}, "problem", "the right to dynamodb:DescribeTable"),
        ({"get_item": refused("AccessDeniedException")}, "problem", "the right to dynamodb:GetItem"),
        ({"query": refused("AccessDeniedException")}, "problem", r"the right to dynamodb:Query.*TABLE/index/\*"),
        ({"describe_time_to_live": {}}, "notice", "keeps for ever.*switch its time to live on.*expires_at"),
        ({"describe_time_to_live": refused("AccessDeniedException")}, "notice", "right to dynamodb:DescribeTimeToLive"),
        (
            {QUEUE: refused("AWS.SimpleQueueService.NonExistentQueue")},
            "problem",
            "DELIVERY_QUEUE_URL.*correct the name",
        ),
        ({QUEUE: refused("AccessDenied")}, "problem", "DELIVERY_QUEUE_URL.*right to sqs:GetQueueAttributes"),
        (
            {QUEUE: {"VisibilityTimeout": "30", "RedrivePolicy": json.dumps(POLICY)}},
            "problem",
            "visibility timeout is 30 s.*set it to at least 75 s",
        ),
        ({QUEUE: {"VisibilityTimeout": "360"}}, "problem", "no redrive policy.*maxReceiveCount 10"),
        (
            {QUEUE: {"VisibilityTimeout": "360", "RedrivePolicy": json.dumps(POLICY | {"maxReceiveCount": 1})}},
            "problem",
            "after 1 receipts.*set maxReceiveCount.*to 10",
        ),
        (
            {QUEUE: {"VisibilityTimeout": "360", "RedrivePolicy": json.dumps(POLICY | {"deadLetterTargetArn": "a:b"})}},
            "problem",
            "DELIVERY_DLQ_URL.*puts messages away into a:b.*set DELIVERY_DLQ_URL",
        ),
        ({DEAD: refused("AWS.SimpleQueueService.NonExistentQueue")}, "problem", "DELIVERY_DLQ_URL.*correct the name"),
        ({DEAD: {"ApproximateNumberOfMessages": "3"}}, "notice", "3 messages.*could not be read.*purge"),
        ({"head_bucket": refused("404")}, "problem", "PAYLOAD_BUCKET: bucket 'payloads'.*correct the name"),
        ({"head_bucket": refused("403")}, "problem", "PAYLOAD_BUCKET.*right to s3:ListBucket"),
        (
            {"describe_table": EndpointConnectionError(endpoint_url="http://x")},
            "problem",
            "does not answer.*AWS_REGION",
        ),
    ],
)
async def test_each_thing_that_does_not_fit(answers: dict[str, Any], status: str, said: str) -> None:
    """Is one finding, and at the start one error: unless it costs no event, then the start goes on."""
    [finding] = await found(**answers)
    assert finding.status == status
    assert finding.remedy
    assert re.search(said, finding.sentence)
    told = Told(**answers)
    clients = AwsClients(told, told, told)
    if status == "notice":
        assert await check(clients, PLACES, lease=LEASE) == [finding]
    else:
        with pytest.raises((SettingsError, LedgerAwayError)):
            await check(clients, PLACES, lease=LEASE)


async def test_who_is_away_is_waited_for() -> None:
    """Nobody answers: that is no wrong setting, and the start is tried again."""
    told = Told(describe_table=EndpointConnectionError(endpoint_url="http://x"))
    with pytest.raises(LedgerAwayError, match="does not answer"):
        await check(AwsClients(told, told, told), PLACES, lease=LEASE)


async def test_all_that_is_wrong_is_said_at_once() -> None:
    """Nobody has to mend the table to hear of the queue."""
    told = Told(**{"describe_table": refused("ResourceNotFoundException"), QUEUE: refused("AccessDenied")})
    with pytest.raises(SettingsError, match=r"EVENTS_TABLE_NAME.*; DELIVERY_QUEUE_URL"):
        await check(AwsClients(told, told, told), PLACES, lease=LEASE)


async def test_without_a_dead_letter_queue_it_is_a_notice() -> None:
    """It is optional: events are safe, messages that cannot be read only come again."""
    alone = PLACES._replace(dead_url=None)
    [finding] = await found(alone, **{QUEUE: {"VisibilityTimeout": "360"}})
    assert (finding.status, finding.remedy) == (
        "notice",
        "give it a dead-letter queue with maxReceiveCount 10, and set DELIVERY_DLQ_URL to it",
    )


async def test_the_look_over_the_wire(home: ItemHome) -> None:
    """What fits passes; what is missing or does not fit names its setting and the remedy."""
    table = home.ledger.dynamo.table
    url = (await make_queue(home, VisibilityTimeout="75")).url
    there = ItemPlaces(table, url)
    assert [one.name for one in await check(home.clients, there, lease=LEASE)] == ["expiry", "dead letters"]
    for places, lease, said in (
        (there._replace(table=table + "x"), LEASE, "EVENTS_TABLE_NAME.*ResourceNotFound"),
        (there._replace(queue_url=url + "x"), LEASE, "DELIVERY_QUEUE_URL.*cannot be used"),
        (there, LEASE + timedelta(seconds=1), "DELIVERY_QUEUE_URL.*set it to at least 76 s"),
    ):
        with pytest.raises(SettingsError, match=said):
            await check(home.clients, places, lease=lease)
