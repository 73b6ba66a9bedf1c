"""Keys for whoever lets callers in by a way of their own: the same keys, looked up many at a time."""

from redrive.ledgers.keys import ApiKey, Keys, NewKey, Scope, digest, read_keys

__all__ = ["ApiKey", "Keys", "NewKey", "Scope", "digest", "read_keys"]
