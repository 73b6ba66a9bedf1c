"""What SQLite complains of, in our words."""

from redrive.errors import LedgerAwayError, NotMigratedError, TooSlowError


def translated(error: BaseException) -> Exception:
    """The driver's error as one of ours, where we have a word for it."""
    said = str(getattr(error, "orig", None) or error)
    if "no such table: redrive_" in said or "no such column: redrive_" in said:
        return NotMigratedError(f"redrive's tables are missing or old ({said}): run `redrive migrate`")
    if said == "interrupted":
        return TooSlowError("the database took too long to read this")
    away = (
        "is locked",
        "unable to open",
        "disk I/O",
        "disk is full",
        "readonly database",
        "not a database",
        "malformed",
    )
    if any(word in said for word in away):
        return LedgerAwayError(f"SQLite cannot be used now: {said}")
    return error if isinstance(error, Exception) else RuntimeError(said)
