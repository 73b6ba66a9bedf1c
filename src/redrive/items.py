"""The door for systems that keep what they own in items of DynamoDB: heads, their parts, and what follows from them.

What a `Beside` writes in the commits of a ledger over SQL, a `Follower` answers as values, and the ledger writes it in the same write.
"""

from redrive.ledgers.aws.follow import FailedPart, Followed, Follower
from redrive.ledgers.aws.heads import Head, Part

__all__ = ["FailedPart", "Followed", "Follower", "Head", "Part"]
