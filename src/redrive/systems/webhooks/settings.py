"""The settings of the inbox."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AnyHttpUrl, BeforeValidator, Field

from redrive.settings import Section, span

BYTES_DEFAULT = 1 << 20
BYTES_MAX = 16 << 20
"""What a worker has in memory at once is up to WORKER_COUNT webhooks of this size."""

Wait = Annotated[timedelta, BeforeValidator(span(timedelta(0)))]


class WebhookSettings(Section):
    """How webhooks are taken in and worked off."""

    worker_count: int = Field(default=85, ge=1, le=10_000, description="How many webhooks are processed at once")
    queue_maxsize: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="While more webhooks than this are due and not processed, new ones are refused with 429",
    )
    max_attempts: int = Field(default=5, ge=1, le=1000, description="How often a webhook is tried, in all")
    retry_base_delay: Wait = Field(
        default=timedelta(seconds=5), description="A webhook is tried again after this × 2^attempts: 10s, 20s, 40s, 80s"
    )
    retry_max_delay: Wait = Field(default=timedelta(seconds=300), description="But never later than after this")
    retention_days: float = Field(
        default=30,
        ge=0,
        le=366,
        description="How long webhooks are kept once they are completed or failed; 0: for ever",
    )
    cleanup_interval_hours: float = Field(
        default=1, ge=0.01, le=24 * 30, description="How often older ones are deleted, in hours"
    )
    webhook_max_bytes: int = Field(
        default=BYTES_DEFAULT, ge=1, le=BYTES_MAX, description="The largest body that a webhook may have, up to 16 MiB"
    )
    webhook_open: bool = Field(default=False, description="Whether POST /webhooks is open to all, without a key")
    webhook_forward_url: AnyHttpUrl | None = Field(
        default=None, description="Where webhooks are POSTed to if the application has no handlers for them"
    )
    redrive_config: Path = Field(
        default=Path("redrive.toml"), description="The file with the senders that sign: [webhooks.sources.NAME]"
    )

    @property
    def payload_bytes_max(self) -> int:
        """What is stored may be a little larger than its body: numbers are written in our own way."""
        return max(self.webhook_max_bytes, BYTES_DEFAULT)
