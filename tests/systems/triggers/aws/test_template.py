"""The template: what it makes is what the code needs, and nobody may do more than they must."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redrive.cli import app as cli
from redrive.ledgers.aws.asking import PATIENCE
from redrive.ledgers.aws.checks import examine
from redrive.ledgers.aws.open import open_clients
from redrive.ledgers.aws.table import INDEXES, TTL, definition, problems_of, queue_problems
from redrive.settings import Settings, load
from redrive.stores.aws import read_url
from redrive.systems.triggers.aws.settings import AwsSettings
from tests.faults.aws_session import READ_SECONDS
from tests.ledgers.aws.servers import AWS

from .stack import REGION, Deed, Stack, allowed, deeds, parameters, resolved, resources, template

ROLES = {"ApiRole": "ApiFunction", "DeliverRole": "DeliverFunction", "SweepRole": "SweepFunction"}
NAMES = {"AWS::Region": "us-east-1", "DeliveryQueue.QueueName": "waiting", "DeadLetterQueue.QueueName": "dead"}


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = template()["Resources"][name]["Properties"]
    return found


def test_the_table_is_the_one_of_the_code() -> None:
    """Keys, indexes and what they hold are those that the ledger is tested with, so neither can change alone."""
    asked, made = definition("t"), properties("EventsTable")
    for name in ("BillingMode", "KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes"):
        assert made[name] == asked[name], name


def test_what_is_kept_is_safe() -> None:
    """Recovery to any second, no deletion by mistake, and what may go goes by itself: servers of tests leave these out in silence."""
    table = template()["Resources"]["EventsTable"]
    assert (table["DeletionPolicy"], table["UpdateReplacePolicy"]) == ("Retain", "Retain")
    made = table["Properties"]
    assert made["DeletionProtectionEnabled"] is True
    assert made["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert made["TimeToLiveSpecification"] == {"AttributeName": TTL, "Enabled": True}


def test_the_bucket_is_private_and_recoverable() -> None:
    """Nobody else reads it, it stays with the table, and what was deleted can be brought back as long as the table can: 35 days."""
    bucket = template()["Resources"]["PayloadBucket"]
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    made = bucket["Properties"]
    assert set(made["PublicAccessBlockConfiguration"].values()) == {True}
    assert made["VersioningConfiguration"] == {"Status": "Enabled"}
    [rule] = made["LifecycleConfiguration"]["Rules"]
    assert (rule["Status"], rule["NoncurrentVersionExpiration"]) == ("Enabled", {"NoncurrentDays": 35})
    assert "ExpirationInDays" not in rule  # failed events are kept, and so are their payloads


def test_without_a_bucket_nobody_may_touch_s3() -> None:
    """It is made only where it is asked for, and so are the rights to it."""
    assert parameters()["PayloadsInS3"] == "false"
    conditional = {name for name, one in template()["Resources"].items() if one.get("Condition") == "KeepsPayloads"}
    assert conditional == {"PayloadBucket", "ApiPayloads", "DeliverPayloads", "SweepPayloads"}
    given = properties("ApiFunction")["Environment"]["Variables"]["PAYLOAD_BUCKET"]
    assert resolved(given, parameters()) is None
    assert "s3:" not in json.dumps([properties(role) for role in ROLES])


def test_whoever_runs_processes_is_told_the_names() -> None:
    """What functions get of the stack by their environment, the stack also says: under the name of the setting."""
    told = {one["Description"]: one["Value"] for one in template()["Outputs"].values()}
    given = {
        name: value["Fn::If"][1] if isinstance(value, dict) and "Fn::If" in value else value
        for function in ROLES.values()
        for name, value in properties(function)["Environment"]["Variables"].items()
    }
    made = {
        name: value
        for name, value in given.items()
        if isinstance(value, dict) and value.get("Ref") in template()["Resources"]
    }
    assert {"EVENTS_TABLE_NAME", "DELIVERY_QUEUE_URL", "PAYLOAD_BUCKET"} <= set(made)
    assert {name: told.get(name) for name in made} == made


def test_the_queue_outlasts_the_function() -> None:
    """Messages stay hidden six times as long as the function runs, the lease outlives it, and what cannot be read is put away."""
    queue, deliver = properties("DeliveryQueue"), properties("DeliverFunction")
    assert queue["VisibilityTimeout"] >= 6 * deliver["Timeout"]
    assert queue_problems({"VisibilityTimeout": str(queue["VisibilityTimeout"])}, deliver["Timeout"]) == []
    assert float(deliver["Environment"]["Variables"]["WORKER_LEASE"]) > deliver["Timeout"]
    assert queue["RedrivePolicy"]["maxReceiveCount"] == 10
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]}
    assert properties("DeadLetterQueue")["MessageRetentionPeriod"] > queue["MessageRetentionPeriod"]
    source = properties("DeliverySource")
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["ScalingConfig"] == {"MaximumConcurrency": {"Ref": "MaximumConcurrency"}}
    assert source["BatchSize"] == 10


def test_the_api_answers_before_its_function_is_ended() -> None:
    """While DynamoDB is away a caller gets our 503, not the error of AWS: we ask again and wait for an answer for less time than there is."""
    assert PATIENCE.total_seconds() + READ_SECONDS < properties("ApiFunction")["Timeout"] < 30


def test_the_sweep_comes_every_minute() -> None:
    """It ends before the next one begins, and may be called by its rule alone."""
    assert properties("SweepRule")["ScheduleExpression"] == "rate(1 minute)"
    assert properties("SweepFunction")["Timeout"] < 60
    assert properties("SweepPermission")["SourceArn"] == {"Fn::GetAtt": ["SweepRule", "Arn"]}


def test_every_function_has_its_role_and_its_log() -> None:
    """Three of each; log lines go after a while."""
    functions = resources("AWS::Lambda::Function")
    assert {one["Properties"]["Role"]["Fn::GetAtt"][0]: name for name, one in functions.items()} == ROLES
    groups = resources("AWS::Logs::LogGroup")
    assert {one["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] for one in functions.values()} == set(groups)
    assert all(one["Properties"]["RetentionInDays"] == {"Ref": "LogRetentionDays"} for one in groups.values())
    given = [one["Properties"]["Environment"]["Variables"] for one in functions.values()]
    assert given[0] == given[1] == given[2]


def test_every_parameter_has_a_default_or_must_be_given() -> None:
    """Nothing but the package and two keys must be given, and the keys are not shown."""
    asked = template()["Parameters"]
    assert {name for name, one in asked.items() if "Default" not in one} == {"CodeBucket", "AdminKey", "SecretKey"}
    assert {name for name, one in asked.items() if one.get("NoEcho")} == {"AdminKey", "SecretKey"}
    assert all(one.get("Description") for one in asked.values())


# --- alarms and dashboard -----------------------------------------------------------------------------------------------


def test_five_alarms() -> None:
    """Failed events, old messages, dead letters, slow deliveries and throttles; a topic is told if there is one."""
    alarms = resources("AWS::CloudWatch::Alarm")
    assert set(alarms) == {
        "FailedEventsAlarm", "OldestMessageAlarm", "DeadLetterAlarm", "SlowDeliveryAlarm", "ThrottleAlarm",
    }  # fmt: skip
    known = parameters(AlarmTopicArn="arn:topic") | {"AWS::Region": "us-east-1", "EventsTable": "t"}
    for alarm in alarms.values():
        made = alarm["Properties"]
        assert made["AlarmDescription"]
        assert resolved(made["AlarmActions"], known, told=True) == resolved(made["OKActions"], known, told=True)
        assert resolved(made["AlarmActions"], known, told=True) == ["arn:topic"]
        assert resolved(made["AlarmActions"], known) is None
        assert made["TreatMissingData"] == "notBreaching"
    assert {name: alarms[name]["Properties"]["Threshold"] for name in ("FailedEventsAlarm", "OldestMessageAlarm")} == {
        "FailedEventsAlarm": 5,
        "OldestMessageAlarm": 3600,
    }
    throttled = {
        one["Value"]
        for metric in alarms["ThrottleAlarm"]["Properties"]["Metrics"]
        for one in metric.get("MetricStat", {}).get("Metric", {}).get("Dimensions", [])
        if one["Name"] == "GlobalSecondaryIndexName"
    }
    assert throttled == set(INDEXES)


def dashboard() -> list[dict[str, Any]]:
    """The widgets."""
    body = resolved(properties("Dashboard")["DashboardBody"], parameters() | NAMES)
    widgets: list[dict[str, Any]] = json.loads(body)["widgets"]
    return widgets


def test_seven_widgets() -> None:
    """What the requirement asks to see, in periods of five minutes, none on top of another."""
    widgets = dashboard()
    assert [one["properties"]["view"] for one in widgets] == [
        "pie", "timeSeries", "gauge", "bar", "timeSeries", "timeSeries", "timeSeries",
    ]  # fmt: skip
    assert {one["properties"]["period"] for one in widgets} == {300}
    taken = [
        (x, y)
        for one in widgets
        for x in range(one["x"], one["x"] + one["width"])
        for y in range(one["y"], one["y"] + one["height"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


# --- what it makes ------------------------------------------------------------------------------------------------------


def test_it_makes_what_the_code_needs(stack: Stack) -> None:
    """Deployed to a server: the table fits, the queue fits, functions, schedule and dashboard are there."""
    described = stack.client("dynamodb").describe_table(TableName=stack.outputs["TableName"])["Table"]
    assert problems_of(described) == []
    asked = stack.client("sqs").get_queue_attributes(QueueUrl=stack.outputs["QueueUrl"], AttributeNames=["All"])
    assert queue_problems(asked["Attributes"], 60) == []
    assert json.loads(asked["Attributes"]["RedrivePolicy"])["deadLetterTargetArn"].endswith(
        stack.outputs["DeadLetterQueueUrl"].rpartition("/")[2]
    )
    functions = stack.client("lambda").list_functions()["Functions"]
    assert {one["Handler"].rpartition(".")[2] for one in functions} == {"api", "deliver", "sweep"}
    for one in functions:
        assert one["Environment"]["Variables"]["EVENTS_TABLE_NAME"] == stack.outputs["TableName"]
        assert one["Environment"]["Variables"]["DELIVERY_QUEUE_URL"] == stack.outputs["QueueUrl"]
    [source] = stack.client("lambda").list_event_source_mappings()["EventSourceMappings"]
    assert source["BatchSize"] == 10
    [rule] = stack.client("events").list_rules()["Rules"]
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    [shown] = stack.client("cloudwatch").list_dashboards()["DashboardEntries"]
    assert shown["DashboardName"] == parameters()["DashboardName"]


# --- rights -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_nobody_may_do_what_nobody_does(role: str, stack: Stack) -> None:
    """No role scans, deletes the table or its queue, reads other tables, or names all actions or resources."""
    statements = stack.statements(role)
    table, queue = stack.known["EventsTable.Arn"], stack.known["DeliveryQueue.Arn"]
    for action in ("Scan", "DeleteTable", "UpdateTable", "CreateTable", "PartiQLSelect", "BatchWriteItem"):
        assert not allowed(statements, Deed(f"dynamodb:{action}", table)), action
    for action in ("DeleteQueue", "PurgeQueue", "SetQueueAttributes"):
        assert not allowed(statements, Deed(f"sqs:{action}", queue)), action
    assert not allowed(statements, Deed("dynamodb:GetItem", table + "x"))
    bucket = stack.known["PayloadBucket.Arn"]
    may = {
        action
        for action in ("Put", "Get", "Delete")
        if allowed(statements, Deed(f"s3:{action}Object", f"{bucket}/payloads/x"))
    }
    assert may == {"ApiRole": {"Put", "Get", "Delete"}, "DeliverRole": {"Get"}, "SweepRole": {"Delete"}}[role]
    for deed in (
        Deed("s3:GetObject", f"{bucket}/x"),
        Deed("s3:DeleteBucket", bucket),
        Deed("s3:PutBucketPolicy", bucket),
    ):
        assert not allowed(statements, deed), deed
    for one in statements:
        if one["Effect"] == "Allow":
            assert "*" not in one["Action"]
            assert all(
                "*" not in action for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
            )
            assert one["Resource"] != "*"


def test_who_delivers_sees_no_key(stack: Stack) -> None:
    """Keys of the API are for the API alone; all else in the table is for each."""
    asked = {"TableName": stack.outputs["TableName"], "Key": {"pk": {"S": "K#abc"}, "sk": {"S": "K"}}}
    [key] = deeds("dynamodb", "GetItem", asked)
    [event] = deeds("dynamodb", "GetItem", asked | {"Key": {"pk": {"S": "E#abc"}, "sk": {"S": "E"}}})
    [both] = deeds("dynamodb", "BatchGetItem", {"RequestItems": {asked["TableName"]: {"Keys": [asked["Key"]]}}})
    [listed] = deeds(
        "dynamodb",
        "Query",
        {
            "TableName": asked["TableName"],
            "KeyConditionExpression": "#n0 = :v0",
            "ExpressionAttributeValues": {":v0": {"S": "KEYS"}},
        },
    )
    may = {role: [allowed(stack.statements(role), one) for one in (event, key, both, listed)] for role in ROLES}
    assert may == {
        "ApiRole": [True, True, True, True],
        "DeliverRole": [True, False, False, False],
        "SweepRole": [True, False, False, False],
    }


async def test_the_look_at_start_finds_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings that the template gives to its functions, over the wire."""
    for name, value in {**AWS, **stack.variables("DeliverFunction")}.items():
        monkeypatch.setenv(name, value)
    settings = load(AwsSettings)
    places, *_ = read_url(settings.store_url or "")
    assert places.bucket == stack.names["PayloadBucket"]
    async with open_clients(region=REGION, endpoint_url=stack.url, with_s3=True) as clients:
        findings = await examine(clients, places, lease=load(Settings).worker_lease)
    assert [(one.name, one.status) for one in findings] == [
        ("table", "ok"), ("expiry", "ok"), ("queue", "ok"), ("dead letters", "ok"), ("bucket", "ok"),
    ]  # fmt: skip


def test_the_doctor_finds_all_well(stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By settings alone it looks at table and queues, and names the dashboard; a queue that is gone is a problem with its remedy."""
    monkeypatch.chdir(tmp_path)
    given = {**AWS, **stack.variables("ApiFunction"), "AWS_REGION": REGION, "AWS_ENDPOINT_URL": stack.url}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    said = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)
    assert said["healthy"], said
    assert {one["name"] for one in said["findings"]} >= {
        "table",
        "expiry",
        "queue",
        "dead letters",
        "bucket",
        "dashboard",
    }
    monkeypatch.setenv("DELIVERY_QUEUE_URL", f"{given['DELIVERY_QUEUE_URL']}x")
    gone = CliRunner().invoke(cli, ["doctor", "--json"])
    [problem] = [one for one in json.loads(gone.stdout)["findings"] if one["status"] == "problem"]
    assert "DELIVERY_QUEUE_URL" in problem["said"]
    assert problem["remedy"]
    assert gone.exit_code == 1
