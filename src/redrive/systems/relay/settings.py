"""The settings of the relay: where the broker is, which queues, how long messages wait, and where dead letters come from."""

from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from redrive.settings import Section

DAY_MS = 86_400_000
QUEUE_BYTES_MAX = 255
"""AMQP's own limit for the name of a queue."""
INVALID_SUFFIX = ".invalid"


ANY_KEY = "#"
"""The routing key that stands for all; a topic exchange takes it so, and others but a direct one do not ask."""


def _is_name(name: str) -> str:
    if len(name.encode()) > QUEUE_BYTES_MAX:
        raise ValueError(f"it must be a name of 1 to {QUEUE_BYTES_MAX} bytes")
    return name


def _with_commas(given: Any) -> Any:
    return tuple(key.strip() for key in given.split(",") if key.strip()) if isinstance(given, str) else given


Name = Annotated[str, Field(min_length=1), AfterValidator(_is_name)]
Keys = Annotated[tuple[Name, ...], NoDecode, BeforeValidator(_with_commas), Field(min_length=1, max_length=100)]


class DeadLetterSettings(Section):
    """What can be set for `redrive relay dead-letters`, besides the settings of the relay."""

    dead_letter_exchange: Name = Field(
        default="dead-letters",
        description="The exchange whose messages are taken; where only DEAD_LETTER_QUEUE is given, that queue is taken as it is",
    )
    dead_letter_queue: Name = Field(default="dead-letters.pending", description="The queue that is bound to it")
    dead_letter_routing_keys: Keys = Field(
        default=(ANY_KEY,), description="The keys that it is bound with, separated by commas; # stands for all"
    )
    dead_letter_rules: str | None = Field(
        default=None, description="The file with the rules that say what is retried; without it redrive's own"
    )

    @property
    def exchange(self) -> str | None:
        """The exchange; None if there is only a queue, which is taken as it is."""
        only_queue = (
            "dead_letter_queue" in self.model_fields_set and "dead_letter_exchange" not in self.model_fields_set
        )
        return None if only_queue else self.dead_letter_exchange


class RelaySettings(Section):
    """What can be set for the relay."""

    rabbitmq_url: str = Field(
        default="amqp://localhost:5672",
        description="The broker; `redrive serve` runs the relay, where it is named, only when this is set",
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
    # In a review message the payload is base64, a third larger, and a broker takes 16 MiB where nobody has told it otherwise.
    relay_max_message_bytes: int = Field(
        default=1_048_576, ge=1, le=12_000_000, description="A larger message is bad input"
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
            raise ValueError(f"it must be a name of 1 to {longest} bytes")
        first = info.data.get("retry_queue")
        if info.field_name == "manual_review_queue" and first is not None and name in (first, first + INVALID_SUFFIX):
            raise ValueError("it must differ from RETRY_QUEUE and from the queue for invalid messages")
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
