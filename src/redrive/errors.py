"""Every error that redrive raises, and every error that it knows from handlers: two trees.

    RedriveError                       what redrive raises by itself
    ├── UsageError (also ValueError)   what you gave cannot be used; the message names the remedy
    │   ├── DurationError              a span of time is missing, negative or too long
    │   ├── PolicyError                a policy out of range
    │   ├── PayloadError               a payload that is not JSON, or too large
    │   ├── EditError                  an edit that does not fit a payload
    │   ├── HandlerError               no such handler, two for one kind, or a function that cannot be one
    │   ├── KeyTakenError              the key belongs to a task of another kind
    │   ├── SettingsError              a setting or URL that cannot be used
    │   └── TableError                 an adopted table that does not fit; carries the migration
    ├── MissingExtraError (also ImportError)   an optional dependency is not installed
    └── LedgerError                    the store refused, or cannot do what was asked
        ├── LedgerAwayError            the store cannot be reached now; trying again may work
        ├── TooSlowError               a look that took longer than it may; ask for less, or search in the background
        ├── NotMigratedError           redrive's tables are missing or old
        ├── NewerSchemaError           the store was migrated by a newer redrive
        ├── NoResultError              the task is not done, or never will be: it has no result
        ├── StaleError                 somebody else has acted since you looked; look again
        └── TransitionError            a change of state that the state machine does not list

    TaskError                          what a handler raises to say how its failure is treated
    ├── TransientError                 try again with backoff, not before `retry_after`
    ├── RateLimitedError               the same, because the other side asked for patience
    ├── PermanentError                 will never work: dead at once
    ├── BusinessError                  refused by a rule of the business: dead at once
    └── NotHappened                    the effect did not happen, for certain: an ordinary failure; a probe returns it, too

The second tree is yours to raise, so `except RedriveError` around a call of redrive never swallows what a handler meant to
say. Handlers may raise anything; a policy maps foreign exceptions to the same four classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta


class RedriveError(Exception):
    """The root: `except RedriveError` catches all that redrive raises by itself."""


class UsageError(RedriveError, ValueError):
    """What was given cannot be used."""


class DurationError(UsageError):
    """A span of time is missing, negative, not finite or too long."""


class PolicyError(UsageError):
    """A policy is out of range."""


class PayloadError(UsageError):
    """A payload is not JSON or larger than a ledger takes."""


class EditError(UsageError):
    """An edit does not fit a payload, which stays as it is."""


class HandlerError(UsageError):
    """There is no such handler, there would be two for one kind, or the function cannot be one."""


class KeyTakenError(UsageError):
    """The key belongs to a task of another kind."""


class SettingsError(UsageError):
    """A setting, a URL or an application path cannot be used."""


class TableError(UsageError):
    """An adopted table does not fit its `LedgerTable`.

    `problems` says what is wrong, one sentence each; `migration` is the SQL that would mend it.
    """

    def __init__(self, table: str, problems: list[str], migration: list[str]) -> None:
        self.table = table
        self.problems = problems
        self.migration = migration
        lines = [f"table {table!r} cannot be a ledger yet:", *(f"  - {problem}" for problem in problems)]
        if migration:
            lines += ["this migration mends it:", *(f"  {statement};" for statement in migration)]
        super().__init__("\n".join(lines))


class MissingExtraError(RedriveError, ImportError):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, what: str, extra: str, missing: str = "an extra", *, of_room: bool = False) -> None:
        self.extra = extra
        self.missing = missing
        self.of_room = of_room
        """Whether it is a whole room that is missing: every extra that needs the room brings it."""
        super().__init__(f"{what} needs {missing}: pip install 'redrive[{extra}]'")


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Say which extra to install if an import inside fails for want of a package, or of a room that the extra brings."""
    try:
        yield
    except MissingExtraError as error:
        if not error.of_room:
            raise
        raise MissingExtraError(what, extra, error.missing, of_room=True) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "redrive":
            raise
        raise MissingExtraError(what, extra) from error


class LedgerError(RedriveError):
    """The store refused or cannot do what was asked."""


class LedgerAwayError(LedgerError):
    """The store cannot be reached now. Nothing is known to be lost; try again."""


class TooSlowError(LedgerError):
    """A look at the store took longer than it was allowed to, and was given up."""


class NotMigratedError(LedgerError):
    """redrive's own tables are missing or older than this code."""


class NewerSchemaError(LedgerError):
    """The store was migrated by a newer redrive than this one."""


class NoResultError(LedgerError):
    """The task is not done yet, or never will be. `ended` says which: whether it is dead or cancelled."""

    def __init__(self, message: str, *, ended: bool) -> None:
        self.ended = ended
        super().__init__(message)


class StaleError(LedgerError):
    """Somebody else has acted since you looked, and nothing was changed."""


class TransitionError(LedgerError):
    """A change of state that the state machine does not list."""


class TaskError(Exception):
    """What a handler raises to say how its failure is to be treated."""

    def __init__(self, message: str = "", *, retry_after: timedelta | float | str | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TransientError(TaskError):
    """It may work later: try again with backoff, not before `retry_after` if given."""


class RateLimitedError(TaskError):
    """The other side asked for patience: try again, not before `retry_after` if given."""


class PermanentError(TaskError):
    """It will never work: dead at once, for a person to look at."""


class BusinessError(TaskError):
    """A rule of the business says no: dead at once, and not a technical fault."""


class NotHappened(TaskError):  # noqa: N818 - an answer as well: a probe returns it
    """The effect did not happen, for certain: raised inside an effect it is an ordinary failure, and a probe returns it."""
