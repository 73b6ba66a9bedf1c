"""How often, how long, and for which errors a task is tried again."""

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from redrive.core import jitter as jitters
from redrive.core.backoff import Backoff, Exponential, Wait, read_backoff
from redrive.core.durations import OptionalSpanField, SpanField
from redrive.core.failure import ErrorClass, Rule, is_bare, matches, read_rules, rule_name, spoken_class
from redrive.core.jitter import Jitter
from redrive.core.task import Task
from redrive.errors import PolicyError

FAILURES_MAX = 1_000_000
RETRIES_DEFAULT = 5
BACKOFF_DEFAULT = Exponential()

WORDS = ("retries", "attempts", "jitter", "permanent", "business", "rate_limited", "transient", "deadline")
"""What a decorator may say of a policy, besides `wait`."""
CLASSIFIED_MAX = 1024

_CLASSES = tuple(each for each in ErrorClass if each is not ErrorClass.WORKER_LOST)
"""The classes that an error can have; a lost worker raises none."""


_RULED = (ErrorClass.PERMANENT, ErrorClass.BUSINESS, ErrorClass.RATE_LIMITED, ErrorClass.TRANSIENT)
"""The classes that rules name, in the order in which they are asked."""


@dataclass(frozen=True)
class Policy:
    """Backoff, jitter, how many failures are allowed, and which errors are which class.

    Say how much in one of two ways: `retries=3` is one first try and up to three more, `attempts=4` is four tries in
    all. Both are kept as one number, `failures_max`: the failure at which a task dies.

    `permanent`, `business`, `rate_limited` and `transient` take an exception type, an HTTP status or a function of the
    exception, or a list of them. They are asked in this order; an error that none of them matches is `otherwise`.

    `own_backoff` may find another backoff in a task, where each brings its own; None takes the policy's. It must not raise.
    """

    backoff: Backoff = BACKOFF_DEFAULT
    _: KW_ONLY
    retries: int | None = None
    attempts: int | None = None
    jitter: Jitter = jitters.equal
    permanent: Rule | Collection[Rule] = ()
    business: Rule | Collection[Rule] = ()
    rate_limited: Rule | Collection[Rule] = ()
    transient: Rule | Collection[Rule] = ()
    otherwise: ErrorClass | str = ErrorClass.TRANSIENT
    retry_after_max: SpanField = SpanField(timedelta(days=1))
    deadline: OptionalSpanField = OptionalSpanField()
    own_backoff: Callable[[Task], Backoff | None] | None = None
    name: str = "default"
    failures_max: int = field(init=False)
    _rules: tuple[tuple[ErrorClass, tuple[Rule, ...]], ...] = field(init=False, repr=False, compare=False)
    # Kept because every explanation of a failure needs them: 3 µs each time otherwise.
    backoff_words: str = field(init=False, repr=False, compare=False)
    jitter_words: str = field(init=False, repr=False, compare=False)
    is_same_for_all: bool = field(init=False, repr=False, compare=False)
    """Whether all tasks that fail alike are told the same: nothing is drawn, and no task brings anything of its own."""
    has_deadline: bool = field(init=False, repr=False, compare=False)
    """Whether it has one: each run asks, and a field that holds a span is a call."""
    told: dict[Any, Any] = field(init=False, repr=False, compare=False)
    """What they are told, for `decide`."""
    _is_by_class: bool = field(init=False, repr=False, compare=False)
    """Whether the class of an exception is all that its rules look at."""
    _classified: dict[type[BaseException], tuple[ErrorClass, str]] = field(init=False, repr=False, compare=False)
    """What exceptions of these classes were found to be, where that is so."""

    def __post_init__(self) -> None:
        if isinstance(self.backoff, type) or not isinstance(self.backoff, Backoff):
            raise PolicyError(f"backoff must be Exponential, Schedule, Fixed or Linear, not {self.backoff!r}")
        if not isinstance(self.jitter, Jitter):
            raise PolicyError(f"jitter must be one of redrive.jitter, such as jitter.full, not {self.jitter!r}")
        set_field = partial(object.__setattr__, self)
        set_field("failures_max", _failures_max(self.retries, self.attempts))
        rules = tuple((each, read_rules(each, getattr(self, each))) for each in _RULED)
        for each, read in rules:
            set_field(each, read)
        set_field("_rules", rules)
        if self.otherwise not in _CLASSES:
            raise PolicyError(f"otherwise must be one of {', '.join(_CLASSES)}, not {self.otherwise!r}")
        set_field("otherwise", ErrorClass(self.otherwise))
        set_field("backoff_words", self.backoff.describe())
        set_field("jitter_words", self.jitter.describe())
        set_field("is_same_for_all", self.jitter is jitters.none and self.deadline is None and self.own_backoff is None)
        set_field("has_deadline", self.deadline is not None)
        set_field("told", {})
        set_field("_is_by_class", all(type(rule) is type for _, each in rules for rule in each))
        set_field("_classified", {})

    def for_task(self, task: Task) -> "Policy":
        """The policy as it holds for one task."""
        own = None if self.own_backoff is None else self.own_backoff(task)
        return self if own is None else replace(self, backoff=own)

    def delay(self, failures: int, key: str) -> timedelta:
        """The delay after this many failures of the task with this key. Pure and total."""
        return self.jitter.delay(self.backoff, failures, lambda number: jitters.draw(key, number, self.name))

    def ceiling(self, failures: int) -> timedelta:
        """No delay after this many failures is longer, whatever the key; a `Retry-After` may still be."""
        return self.jitter.ceiling(self.backoff, failures)

    def classify(self, error: BaseException) -> tuple[ErrorClass, str]:
        """The class of an error, and the rule that said so."""
        known = self._classified.get(type(error))
        if known is not None:
            return known
        spoken = spoken_class(error)
        if spoken is not None:
            return spoken, type(error).__name__
        found = self._by_rules(error)
        kind: Any = type(error)
        if self._is_by_class and len(self._classified) < CLASSIFIED_MAX and is_bare(kind):
            self._classified[kind] = found
        return found

    def _by_rules(self, error: BaseException) -> tuple[ErrorClass, str]:
        for error_class, rules in self._rules:
            for rule in rules:
                if matches(rule, error):
                    return error_class, rule_name(rule)
        assert isinstance(self.otherwise, ErrorClass)
        return self.otherwise, "otherwise"


def read_policy(policy: Policy | None = None, *, wait: Wait | None = None, **words: Any) -> Policy:
    """The policy that a decorator names: whole, by single words, or the default.

    `wait` is a span, a list of spans or a backoff; the other words are those of `Policy`. A word that is None was not said.
    """
    if unknown := words.keys() - WORDS:
        names = ", ".join(f"{name}=" for name in sorted(unknown))
        known = ", ".join(f"{word}=" for word in WORDS)
        raise PolicyError(f"there is no {names}: the words of a policy are wait=, {known}")
    said = {name: word for name, word in words.items() if word is not None}
    if wait is not None:
        said["backoff"] = read_backoff(wait)
    if policy is None:
        return Policy(**said)
    if said:
        names = ", ".join(f"{'wait' if name == 'backoff' else name}=" for name in said)
        raise PolicyError(f"say either policy= or {names}, not both: put the words into the policy")
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy must be a Policy, such as Policy(retries=3), not {policy!r}")
    return policy


def _failures_max(retries: int | None, attempts: int | None) -> int:
    if retries is not None and attempts is not None:
        raise PolicyError("say either retries= (after the first try) or attempts= (tries in all), not both")
    for name, amount, least in (("retries", retries, 0), ("attempts", attempts, 1)):
        if amount is not None and (
            isinstance(amount, bool) or not isinstance(amount, int) or not least <= amount < FAILURES_MAX
        ):
            raise PolicyError(f"{name} must be a whole number from {least} to {FAILURES_MAX - 1:,}, not {amount!r}")
    if attempts is not None:
        return attempts
    return (RETRIES_DEFAULT if retries is None else retries) + 1
