"""The template as values, what it makes on a server of AWS, and who may do what by its roles."""

import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import yaml

from tests.ledgers.aws.servers import AWS

TEMPLATE = Path(__file__).parents[4] / "deploy" / "aws" / "template.yaml"
REGION = AWS["AWS_DEFAULT_REGION"]
GIVEN = {"CodeBucket": "code", "AdminKey": "an-admin-key-of-tests", "SecretKey": "A" * 43 + "="}
"""The parameters without a default."""


class _Loader(yaml.SafeLoader):
    """Reads `!Ref x` as `{"Ref": x}`, and all other functions in their long form."""


def _function(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
        value = value.split(".", 1) if tag == "GetAtt" else value
    else:
        value = (
            loader.construct_sequence(node, deep=True)
            if isinstance(node, yaml.SequenceNode)
            else loader.construct_mapping(node, deep=True)
        )
    return {tag if tag == "Ref" else f"Fn::{tag}": value}


_Loader.add_multi_constructor("!", _function)


@cache
def template() -> dict[str, Any]:
    """The template with its functions in their long form."""
    return yaml.load(TEMPLATE.read_text(), _Loader)  # a loader of plain values


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """The resources of one kind, with their names."""
    return {name: one for name, one in template()["Resources"].items() if one["Type"] == kind}


def resolved(node: Any, known: Mapping[str, str], *, told: bool = False) -> Any:
    """A part of the template with its functions worked out. `known` has parameters, names of resources, and their attributes."""
    match node:
        case {"Ref": "AWS::NoValue"}:
            return None
        case {"Ref": name}:
            return known[name]
        case {"Fn::GetAtt": [name, attribute]}:
            return known[f"{name}.{attribute}"]
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{([^}]+)\}", lambda found: str(known[found[1]]), text)
        case {"Fn::If": ["KeepsPayloads", then, otherwise]}:
            return resolved(then if known.get("PayloadsInS3") == "true" else otherwise, known, told=told)
        case {"Fn::If": [_, then, otherwise]}:
            return resolved(then if told else otherwise, known, told=told)
        case dict():
            return {key: resolved(value, known, told=told) for key, value in node.items()}
        case list():
            return [resolved(value, known, told=told) for value in node]
        case _:
            return node


def parameters(**given: str) -> dict[str, str]:
    """All parameters: as given, else the ones that tests give, else their defaults."""
    asked = template()["Parameters"]
    defaults = {name: str(one["Default"]) for name, one in asked.items() if "Default" in one}
    return defaults | GIVEN | given


@dataclass(frozen=True)
class Stack:
    """What was made of the template."""

    url: str
    outputs: Mapping[str, str]
    names: Mapping[str, str]
    """From the template's names of resources to their own."""
    given: Mapping[str, str]

    def client(self, service: str) -> Any:
        return client(self.url, service)

    @property
    def known(self) -> dict[str, str]:
        """What the functions of the template refer to."""
        arns = {
            **{name: f"arn:aws:s3:::{self.names[name]}" for name in resources("AWS::S3::Bucket") if name in self.names},
            "EventsTable": f"arn:aws:dynamodb:{REGION}:123456789012:table/{self.names['EventsTable']}",
            **{
                name: f"arn:aws:sqs:{REGION}:123456789012:{self.names[name].rpartition('/')[2]}"
                for name in ("DeliveryQueue", "DeadLetterQueue")
            },
            **{
                name: f"arn:aws:logs:{REGION}:123456789012:log-group:{self.names[name]}:*"
                for name in resources("AWS::Logs::LogGroup")
            },
        }
        return {
            **parameters(**self.given),
            **self.names,
            **{f"{name}.Arn": arn for name, arn in arns.items()},
            **{
                f"{name}.QueueName": self.names[name].rpartition("/")[2]
                for name in ("DeliveryQueue", "DeadLetterQueue")
            },
            "AWS::Region": REGION,
        }

    def variables(self, function: str) -> dict[str, str]:
        """The environment of a function, as the template gives it."""
        given = template()["Resources"][function]["Properties"]["Environment"]["Variables"]
        return {name: str(value) for name, value in resolved(given, self.known).items() if value is not None}

    def statements(self, role: str) -> list[dict[str, Any]]:
        """What a role allows and denies."""
        policies = list(template()["Resources"][role]["Properties"]["Policies"])
        more = resources("AWS::IAM::Policy").items()
        policies += [
            one["Properties"]
            for name, one in more
            if name in self.names and {"Ref": role} in one["Properties"]["Roles"]
        ]
        return [one for policy in policies for one in resolved(policy["PolicyDocument"]["Statement"], self.known)]


def client(url: str, service: str) -> Any:
    """A client of the server for tests."""
    session = boto3.Session(AWS["AWS_ACCESS_KEY_ID"], AWS["AWS_SECRET_ACCESS_KEY"], region_name=REGION)
    return session.client(service, endpoint_url=url)


def deploy(url: str, name: str, **given: str) -> Stack:
    """Make all that the template says on this server."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("nothing.py", "")
    client(url, "s3").create_bucket(Bucket="code")
    client(url, "s3").put_object(Bucket="code", Key=parameters()["CodeKey"], Body=package.getvalue())
    formation = client(url, "cloudformation")
    formation.create_stack(
        StackName=name,
        TemplateBody=TEMPLATE.read_text(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in {**GIVEN, **given}.items()],
    )
    [stack] = formation.describe_stacks(StackName=name)["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE", stack
    made = formation.describe_stack_resources(StackName=name)["StackResources"]
    names = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in made if "PhysicalResourceId" in one}
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    # What the server leaves out in silence; the template itself is looked at in another test.
    lasting = template()["Resources"]["EventsTable"]["Properties"]["TimeToLiveSpecification"]
    client(url, "dynamodb").update_time_to_live(TableName=outputs["TableName"], TimeToLiveSpecification=lasting)
    return Stack(url, outputs, names, given)


# --- who may do what ----------------------------------------------------------------------------------------------------


class Deed(NamedTuple):
    """Something that needs a right: the action, on what, and the partitions of a table that it touches."""

    action: str
    resource: str
    partitions: frozenset[str] = frozenset()


_ACTIONS = {
    "HeadBucket": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}
"""Calls whose right has another name."""


def deeds(service: str, call: str, request: Mapping[str, Any]) -> list[Deed]:
    """The rights that a call needs."""
    if service == "sqs":
        name = request["QueueUrl"].rpartition("/")[2]
        return [Deed(f"sqs:{_ACTIONS.get(call, call)}", f"arn:aws:sqs:{REGION}:123456789012:{name}")]
    if service == "s3":
        name = "/".join(request[part] for part in ("Bucket", "Key") if part in request)
        return [Deed(f"s3:{_ACTIONS.get(call, call)}", f"arn:aws:s3:::{name}")]
    match call:
        case "TransactWriteItems":
            return [
                deed for one in request["TransactItems"] for kind, part in one.items() for deed in _item(kind, part)
            ]
        case "BatchGetItem" | "BatchWriteItem":
            return [
                Deed(f"dynamodb:{call}", _table(table), frozenset(_partition(one) for one in _keys(asked)))
                for table, asked in request["RequestItems"].items()
            ]
        case _:
            return _item(call, request)


def _item(call: str, request: Mapping[str, Any]) -> list[Deed]:
    resource = _table(request["TableName"])
    if "IndexName" in request:
        resource += f"/index/{request['IndexName']}"
    partitions: set[str] = set()
    if call == "Query":
        [given] = re.findall(r"^\S+ = (:\w+)", request["KeyConditionExpression"])
        partitions = {request["ExpressionAttributeValues"][given]["S"]}
    elif "Key" in request or "Item" in request:
        partitions = {_partition(request.get("Key") or request["Item"])}
    return [Deed(f"dynamodb:{_ACTIONS.get(call, call)}", resource, frozenset(partitions))]


def _table(name: str) -> str:
    return f"arn:aws:dynamodb:{REGION}:123456789012:table/{name}"


def _keys(asked: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(asked, Mapping):
        return list(asked["Keys"])
    return [one["Key"] if "Key" in (one := next(iter(each.values()))) else one["Item"] for each in asked]


def _partition(key: Mapping[str, Any]) -> str:
    return str(key["pk"]["S"])


def allowed(statements: Iterable[Mapping[str, Any]], deed: Deed) -> bool:
    """Whether these statements let somebody do this: one of them must allow it, and none deny it."""
    effects = {one["Effect"] for one in statements if _meets(one, deed)}
    return effects == {"Allow"}


def _meets(statement: Mapping[str, Any], deed: Deed) -> bool:
    if not any(fnmatchcase(deed.action, pattern) for pattern in _listed(statement["Action"])):
        return False
    if not any(fnmatchcase(deed.resource, pattern) for pattern in _listed(statement["Resource"])):
        return False
    match statement.get("Condition"):
        case None:
            return True
        case {"ForAnyValue:StringLike": {"dynamodb:LeadingKeys": patterns}}:
            return any(fnmatchcase(one, pattern) for one in deed.partitions for pattern in _listed(patterns))
        case unknown:
            raise AssertionError(f"a condition that this evaluator does not know: {json.dumps(unknown)}")


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given
