"""The settings of triggers on AWS. `EVENTS_TABLE_NAME` alone chooses it: events are then kept there, and nowhere else."""

from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from redrive.settings import Section, Settings, load

NAMESPACE = "Triggers"
TABLE = "EVENTS_TABLE_NAME"
QUEUE = "DELIVERY_QUEUE_URL"


def _queue_url(url: str) -> str:
    if not url.startswith(("https://", "http://")) or url.count("/") < 4:
        raise ValueError(
            "it must be the URL of a queue, such as https://sqs.eu-west-1.amazonaws.com/123456789012/deliveries"
        )
    if url.endswith(".fifo"):
        raise ValueError("it is a FIFO queue: use a standard one, order is kept in the table")
    return url


def _endpoint(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise ValueError("it must begin with http:// or https://")
    return url


def _namespace(name: str) -> str:
    if name.lower().startswith("aws/"):
        raise ValueError("names that begin with AWS/ belong to AWS: choose another one")
    return name


QueueUrl = Annotated[str, AfterValidator(_queue_url)]


class AwsSettings(Section):
    """Where events are kept on AWS. All but the table is looked at only where the table is given."""

    events_table_name: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_.-]{3,255}$", description="The table of DynamoDB in which events are kept"
    )
    delivery_queue_url: QueueUrl | None = Field(
        default=None, validate_default=True, description="The queue of SQS in which deliveries wait"
    )
    delivery_dlq_url: QueueUrl | None = Field(
        default=None, description="The queue in which SQS puts messages that cannot be read"
    )
    aws_region: str | None = Field(
        default=None, pattern=r"^[a-z]{2}(-[a-z]+)+-\d$", description="The region; by default as everywhere on AWS"
    )
    aws_endpoint_url: Annotated[str, AfterValidator(_endpoint)] | None = Field(
        default=None, description="Where AWS is, for tests"
    )
    metrics_namespace: Annotated[str, AfterValidator(_namespace)] = Field(
        default=NAMESPACE,
        pattern=r"^[A-Za-z0-9_./#:-]{1,255}$",
        description="Where CloudWatch keeps the metrics",
    )
    dashboard_name: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]{1,255}$", description="The dashboard of CloudWatch, which doctor names"
    )
    payload_bucket: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        description="The bucket of S3 for payloads above 8,000 bytes; without it they are kept in the table, up to 400,000",
    )

    @field_validator(
        "delivery_queue_url", "delivery_dlq_url", "metrics_namespace", "dashboard_name", "payload_bucket", mode="after"
    )
    @classmethod
    def _goes_with_the_table(cls, value: Any, info: ValidationInfo) -> Any:
        if "events_table_name" not in info.data:
            return value  # the table's own name is wrong, which is said already
        table = info.data["events_table_name"]
        default = cls.model_fields[info.field_name or ""].default
        if table is None and value != default:
            raise ValueError(
                f"{TABLE} is not set, and without a table nothing is kept on AWS: set it too, or leave this out"
            )
        if table is not None and value is None and info.field_name == QUEUE.lower():
            raise ValueError(
                f"{TABLE} is set, and deliveries wait in a queue: set it to the output QueueUrl of the stack"
            )
        return value

    @property
    def chosen(self) -> bool:
        """Whether events are kept on AWS."""
        return self.events_table_name is not None

    @property
    def store_url(self) -> str | None:
        """The store as an application is given it; None where it is not chosen."""
        if self.events_table_name is None:
            return None
        given = {
            "queue": self.delivery_queue_url,
            "dlq": self.delivery_dlq_url,
            "bucket": self.payload_bucket,
            "region": self.aws_region,
            "endpoint": self.aws_endpoint_url,
            "lease": f"{load(Settings).worker_lease.total_seconds():g}",
        }
        return f"dynamodb://{self.events_table_name}?{urlencode({key: value for key, value in given.items() if value})}"
