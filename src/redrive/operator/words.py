"""Words for people: what went wrong without what looks like a secret, and spans as they are said."""

from redrive.core.durations import format_duration, rounded
from redrive.core.failure import describe_error, redact, safe_text

__all__ = ["describe_error", "format_duration", "redact", "rounded", "safe_text"]
