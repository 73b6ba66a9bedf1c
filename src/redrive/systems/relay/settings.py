"""The settings of the relay: where the broker is, which queues, how long messages wait."""

from datetime import timedelta
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from redrive.settings import Section

DAY_MS = 86_400_000
QUEUE_BYTES_MAX = 255
"""AMQP's own limit for the name of a queue."""
INVALID_SUFFIX = ".invalid"


class RelaySettings(Section):
    """What can be set for the relay."""

    rabbitmq_url: str = Field(
        default="amqp://localhost:5672",
        description="The broker; `redrive serve` runs the relay only when this is set",
    )
    retry_queue: str = Field(default="retry.scheduled", min_length=1, description="Where failed messages arrive")
    manual_review_queue: str = Field(
        default="manual-review.pending",
        min_length=1,
        description="Where messages go whose retries are spent",
    )
    default_max_retries: int = Field(
        default=3, ge=0, le=1000, description="How often a message is retried that does not say it itself"
    )
    base_delay_ms: int = Field(default=2000, ge=1, le=DAY_MS, description="The wait before the first retry")
    max_delay_ms: int = Field(default=60_000, ge=1, le=DAY_MS, description="No wait is longer, jitter aside")
    retry_poll_interval_ms: int = Field(
        default=10_000, ge=10, le=3_600_000, description="The safety net: how often the relay looks without a reason"
    )
    rabbitmq_prefetch: int = Field(
        default=100, ge=1, le=10_000, description="How many messages may be under way from the broker to the database"
    )
    relay_max_message_bytes: int = Field(
        default=1_048_576, ge=1, le=134_217_728, description="A larger message is bad input"
    )

    @field_validator("rabbitmq_url")
    @classmethod
    def _is_amqp(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            usable = (
                parts.scheme in ("amqp", "amqps") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
            )
        except ValueError:
            usable = False
        if not usable:
            raise ValueError("it must look like amqp://user:password@host:5672/vhost, or amqps:// for TLS")
        return url

    @field_validator("retry_queue", "manual_review_queue")
    @classmethod
    def _is_queue_name(cls, name: str, info: ValidationInfo) -> str:
        longest = QUEUE_BYTES_MAX - (len(INVALID_SUFFIX) if info.field_name == "retry_queue" else 0)
        if len(name.encode()) > longest:
            raise ValueError(f"a name of at most {longest} bytes is needed")
        first = info.data.get("retry_queue")
        if info.field_name == "manual_review_queue" and first is not None and name in (first, first + INVALID_SUFFIX):
            raise ValueError("it must be another queue than RETRY_QUEUE and the one for its invalid messages")
        return name

    @field_validator("max_delay_ms")
    @classmethod
    def _is_not_below_the_first(cls, most: int, info: ValidationInfo) -> int:
        first = info.data.get("base_delay_ms")
        if first is not None and most < first:
            raise ValueError(f"it must be at least BASE_DELAY_MS, which is {first}")
        return most

    @property
    def invalid_queue(self) -> str:
        """Where bad input goes."""
        return self.retry_queue + INVALID_SUFFIX

    @property
    def base_delay(self) -> timedelta:
        """The wait before the first retry."""
        return timedelta(milliseconds=self.base_delay_ms)

    @property
    def max_delay(self) -> timedelta:
        """The longest wait, jitter aside."""
        return timedelta(milliseconds=self.max_delay_ms)

    @property
    def poll(self) -> timedelta:
        """How long the worker waits for a wake-up before it looks by itself."""
        return timedelta(milliseconds=self.retry_poll_interval_ms)
