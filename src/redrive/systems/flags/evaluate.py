"""Whether a flag is on for a user. Pure: the rules in their order, and nothing else."""

import hashlib
from typing import NamedTuple


class FlagFacts(NamedTuple):
    """What an evaluation needs to know of a flag."""

    id: int
    enabled: bool
    rollout_percentage: int


def is_on(flag: FlagFacts | None, override: str | None, user_id: str | None) -> bool:
    """Whether the flag is on for this user, who may have an override, `include` or `exclude`.

    Unknown or disabled flags are off, whatever else is said. Then overrides speak, then the percentage: 100 is everybody,
    0 nobody, and between them who is not named is let in, everyone else by their bucket.
    """
    if flag is None or not flag.enabled:
        return False
    if override is not None:
        return override == "include"
    if flag.rollout_percentage >= 100:
        return True
    if flag.rollout_percentage <= 0:
        return False
    return user_id is None or bucket(user_id) < flag.rollout_percentage


def bucket(user_id: str) -> int:
    """The user's place from 0 to 99, the same for every flag: the first 8 hex digits of SHA-256, mod 100."""
    digest = hashlib.sha256(user_id.encode("utf-8", "surrogatepass")).hexdigest()
    return int(digest[:8], 16) % 100
