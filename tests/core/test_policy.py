"""Policies: how often, for which errors, and what is refused."""

from datetime import timedelta
from http import HTTPStatus

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import jitter
from redrive.core.backoff import Exponential, Fixed, Linear, Schedule
from redrive.core.durations import DURATION_MAX, seconds
from redrive.core.failure import ErrorClass
from redrive.core.policy import FAILURES_MAX, Policy, read_policy
from redrive.core.states import State
from redrive.core.task import Task
from redrive.errors import (
    BusinessError,
    DurationError,
    PermanentError,
    PolicyError,
    RateLimitedError,
    TaskError,
    TransientError,
    UsageError,
)


def http_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://example.org/hook")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


@given(st.integers(min_value=0, max_value=FAILURES_MAX - 1))
def test_retries_are_tries_after_the_first(retries):
    """`retries=n` allows n tries after the first, so the task dies at failure n + 1."""
    assert Policy(retries=retries).failures_max == retries + 1


@given(st.integers(min_value=1, max_value=FAILURES_MAX - 1))
def test_attempts_are_tries_in_all(attempts):
    """`attempts=n` allows n tries in all, so the task dies at failure n."""
    assert Policy(attempts=attempts).failures_max == attempts


def test_the_default_is_bounded():
    """A policy that says nothing gives six tries, exponential from one second to an hour, with jitter."""
    policy = Policy()
    assert policy.failures_max == 6
    assert policy.backoff == Exponential(seconds(1), timedelta(hours=1))
    assert policy.jitter is jitter.equal
    assert policy.retry_after_max == timedelta(days=1)
    assert policy.deadline is None


@pytest.mark.parametrize(
    ("given_", "error", "phrase"),
    [
        ({"retries": 3, "attempts": 4}, PolicyError, "say either retries= .* or attempts= .*, not both"),
        ({"retries": -1}, PolicyError, "retries must be a whole number from 0 to 999,999, not -1"),
        ({"retries": 1_000_000}, PolicyError, "from 0 to 999,999"),
        ({"retries": 2.5}, PolicyError, "whole number"),
        ({"retries": True}, PolicyError, "whole number"),
        ({"retries": "3"}, PolicyError, "whole number"),
        ({"attempts": 0}, PolicyError, "attempts must be a whole number from 1 to 999,999, not 0"),
        ({"backoff": 5}, PolicyError, "backoff must be Exponential, Schedule, Fixed or Linear, not 5"),
        ({"backoff": seconds(5)}, PolicyError, "backoff must be Exponential"),
        ({"backoff": Exponential}, PolicyError, "backoff must be Exponential"),
        ({"backoff": None}, PolicyError, "backoff must be Exponential"),
        ({"jitter": "full"}, PolicyError, r"jitter must be one of redrive\.jitter, such as jitter\.full, not 'full'"),
        ({"jitter": jitter.percent}, PolicyError, "such as jitter.full"),
        ({"jitter": jitter}, PolicyError, "such as jitter.full"),
        ({"jitter": None}, PolicyError, "such as jitter.full"),
        ({"otherwise": "fatal"}, PolicyError, "otherwise must be one of transient, rate_limited, permanent, business"),
        ({"otherwise": "worker_lost"}, PolicyError, "otherwise must be one of"),
        ({"otherwise": None}, PolicyError, "otherwise must be one of"),
        ({"permanent": 40}, PolicyError, "permanent: 40 is not an HTTP status"),
        ({"business": int}, PolicyError, "business: int is not an exception"),
        ({"transient": "ValueError"}, PolicyError, "transient: 'ValueError' is neither an exception type"),
        ({"rate_limited": None}, PolicyError, "rate_limited: None is neither"),
        ({"permanent": [404, 40]}, PolicyError, "permanent: 40 is not an HTTP status"),
        ({"permanent": [600]}, PolicyError, "600 is not an HTTP status"),
        ({"permanent": [True]}, PolicyError, "True is not an HTTP status"),
        ({"permanent": [int]}, PolicyError, "permanent: int is not an exception"),
        ({"permanent": ["ValueError"]}, PolicyError, "neither an exception type, an HTTP status nor a function"),
        ({"retry_after_max": "soon"}, DurationError, "retry_after_max must be written as seconds"),
        ({"retry_after_max": True}, DurationError, "retry_after_max must be a number of seconds"),
        ({"retry_after_max": timedelta(days=367)}, DurationError, "retry_after_max must lie between 0 and 366 days"),
        ({"deadline": float("nan")}, DurationError, "nan is not an amount of time"),
        ({"deadline": -1}, DurationError, "deadline must lie between 0 and 366 days"),
        ({"deadline": timedelta(seconds=-1)}, DurationError, "deadline must lie between 0 and 366 days"),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_is_refused_with_its_remedy(given_, error, phrase):
    """A policy out of range raises a usage error that names the argument and what it takes."""
    with pytest.raises(error, match=phrase):
        Policy(**given_)
    assert issubclass(error, UsageError)


def test_the_ends_of_the_ranges_are_accepted():
    """What is refused begins one beyond these."""
    assert Policy(retries=0).failures_max == 1
    assert Policy(attempts=1).failures_max == 1
    assert Policy(retries=FAILURES_MAX - 1).failures_max == FAILURES_MAX
    assert Policy(permanent=[100, 599]).permanent == (100, 599)
    assert Policy(retry_after_max=timedelta(0), deadline=DURATION_MAX).deadline == DURATION_MAX


@pytest.mark.parametrize("rule", [ValueError, lambda error: isinstance(error, ValueError)], ids=["type", "function"])
@pytest.mark.parametrize("name", ["permanent", "business", "rate_limited", "transient"])
def test_a_single_rule_needs_no_list(name, rule):
    """Each of the lists takes one rule as it is."""
    policy = Policy(**{name: rule}, otherwise="permanent" if name == "transient" else "transient")
    assert policy.classify(ValueError())[0] == name
    assert getattr(policy, name) == (rule,)
    assert Policy(permanent=404).classify(http_error(404)) == (ErrorClass.PERMANENT, "HTTP 404")


def test_numbers_are_seconds():
    """Where a policy takes a span, a number is seconds; what is kept is a timedelta."""
    policy = Policy(Exponential(2, 300), deadline=60, retry_after_max=0.5)
    assert policy == Policy(
        Exponential(timedelta(seconds=2), timedelta(minutes=5)),
        deadline=timedelta(minutes=1),
        retry_after_max=timedelta(milliseconds=500),
    )
    assert (policy.deadline, policy.retry_after_max) == (timedelta(minutes=1), timedelta(milliseconds=500))
    assert jitter.additive(30) == jitter.additive(timedelta(seconds=30))


@pytest.mark.parametrize(
    ("wait", "backoff"),
    [
        (5, Fixed(timedelta(seconds=5))),
        ("2s", Fixed(timedelta(seconds=2))),
        (["1s", 5, "1m"], Schedule([seconds(1), seconds(5), seconds(60)])),
        (timedelta(minutes=1), Fixed(timedelta(minutes=1))),
        ([1, 5, timedelta(minutes=1)], Schedule([seconds(1), seconds(5), seconds(60)])),
        (Exponential(2, 300), Exponential(seconds(2), seconds(300))),
        (None, Exponential()),
    ],
)
def test_a_policy_can_be_said_in_words(wait, backoff):
    """`wait` is a span, a list of spans or a backoff; the other words are those of a policy; nothing said is the default."""
    assert read_policy(wait=wait, retries=3, permanent=ValueError) == Policy(backoff, retries=3, permanent=[ValueError])
    assert read_policy(retries=None, jitter=None) == Policy()
    assert read_policy() == Policy()


@pytest.mark.parametrize("wait", ["soon", "", True, Exponential, {1, 5}, [], [1, "soon"], -1, [float("nan")]])
def test_a_wait_that_is_none_is_refused(wait):
    """What cannot be read as a wait is a usage error, never an error of Python's own."""
    with pytest.raises(UsageError):
        read_policy(wait=wait)


def test_a_policy_is_said_once():
    """A whole policy and words beside it contradict each other; what is given as a policy is one."""
    whole = Policy(retries=1)
    assert read_policy(whole) is whole
    with pytest.raises(PolicyError, match=r"say either policy= or retries=, wait=, not both"):
        read_policy(whole, retries=3, wait=5)
    with pytest.raises(PolicyError, match="policy must be a Policy"):
        read_policy(Exponential())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransientError("later"), "transient"),
        (RateLimitedError("slow down"), "rate_limited"),
        (PermanentError("never"), "permanent"),
        (BusinessError("not allowed"), "business"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_handler_says_beats_the_rules(error, expected):
    """An error that names its own class keeps it, whatever the policy's rules and default say."""
    policy = Policy(permanent=[TransientError], transient=[PermanentError, TaskError], otherwise="business")
    assert policy.classify(error) == (ErrorClass(expected), type(error).__name__)


def test_rules_are_looked_through_in_the_documented_order():
    """The first list that matches decides: permanent, business, rate_limited, transient, then `otherwise`."""
    everywhere = {name: [ValueError] for name in ("permanent", "business", "rate_limited", "transient")}
    for name in ("permanent", "business", "rate_limited", "transient"):
        assert Policy(**everywhere, otherwise="business").classify(ValueError()) == (ErrorClass(name), "ValueError")
        del everywhere[name]
    assert Policy(otherwise="business").classify(ValueError()) == (ErrorClass.BUSINESS, "otherwise")


def test_an_unknown_exception_is_transient():
    """Without a rule an error is tried again; a bare `TaskError` says nothing and is unknown too."""
    assert Policy().classify(RuntimeError("?")) == (ErrorClass.TRANSIENT, "otherwise")
    assert Policy().classify(TaskError("?")) == (ErrorClass.TRANSIENT, "otherwise")


def test_a_type_rule_matches_subclasses_only():
    """An exception type matches itself and what derives from it, nothing above it."""
    policy = Policy(permanent=[LookupError])
    assert policy.classify(KeyError("id")) == (ErrorClass.PERMANENT, "LookupError")
    assert policy.classify(Exception("id"))[0] is ErrorClass.TRANSIENT


@given(st.integers(min_value=100, max_value=599), st.integers(min_value=100, max_value=599))
def test_a_status_rule_matches_that_status_alone(listed, status):
    """An HTTP status in a rule matches errors with this status and no other."""
    classified = Policy(permanent=[listed]).classify(http_error(status))
    assert classified == (
        (ErrorClass.PERMANENT, f"HTTP {listed}") if listed == status else (ErrorClass.TRANSIENT, "otherwise")
    )


def test_a_status_may_be_written_as_an_enum():
    """`HTTPStatus.GONE` is a rule like 410."""
    assert Policy(permanent=[HTTPStatus.GONE]).classify(http_error(410)) == (ErrorClass.PERMANENT, "HTTP 410")


def test_a_function_rule_is_named_in_the_explanation():
    """A predicate decides by the error itself, and the explanation carries its name."""

    def mentions_quota(error: BaseException) -> bool:
        return "quota" in str(error)

    policy = Policy(rate_limited=[mentions_quota])
    error_class, rule = policy.classify(RuntimeError("quota used up"))
    assert error_class is ErrorClass.RATE_LIMITED
    assert rule.endswith("mentions_quota")
    assert policy.classify(RuntimeError("boom"))[1] == "otherwise"


def test_a_rule_that_raises_does_not_match():
    """A broken predicate is passed over; the rules after it still count."""
    policy = Policy(permanent=[lambda error: error.nothing, ValueError])
    assert policy.classify(ValueError()) == (ErrorClass.PERMANENT, "ValueError")
    assert policy.classify(KeyError())[0] is ErrorClass.TRANSIENT


def test_a_policy_is_a_value():
    """Two policies of the same numbers are equal and hash alike; lists become tuples; nothing can be changed."""
    policy = Policy(Fixed(seconds(1)), retries=3, permanent=[ValueError])
    assert policy == Policy(Fixed(seconds(1)), retries=3, permanent=(ValueError,))
    assert hash(policy) == hash(Policy(Fixed(seconds(1)), retries=3, permanent=(ValueError,)))
    assert policy != Policy(Fixed(seconds(1)), attempts=5, permanent=[ValueError])
    with pytest.raises(AttributeError):
        policy.retries = 5


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ({}, False),
        ({"jitter": jitter.none}, True),
        ({"jitter": jitter.none, "deadline": 5}, False),
        ({"jitter": jitter.none, "own_backoff": lambda task: None}, False),
        ({"deadline": 5}, False),
        ({"own_backoff": lambda task: None}, False),
    ],
)
def test_what_is_kept_for_explanations(words, same):
    """Its backoff and jitter in words, whether it has a deadline, and whether all that fail alike are told the same."""
    policy = Policy(Fixed(5), **words)
    assert policy.backoff_words == "fixed 5s"
    assert policy.jitter_words == ("none" if "jitter" in words else "equal")
    assert policy.is_same_for_all is same
    assert policy.has_deadline is ("deadline" in words)
    assert policy.told == {}


def test_a_policy_delays_by_its_backoff_and_its_jitter():
    """Drawn for the key, the failure and the policy's name; and its ceiling is that of its jitter."""
    policy = Policy(Exponential(2, 300), jitter=jitter.additive(30), name="bank")
    assert policy.delay(3, "a") == seconds(8) + seconds(30) * jitter.draw("a", 3, "bank")
    assert policy.ceiling(3) == seconds(38)


def test_a_policy_holds_for_a_task_that_brings_its_own_backoff():
    """All else stays; a task that brings none has the policy itself."""
    task = Task(id=1, key="own", kind="k", payload=None, state=State.CLAIMED, failures=0)
    policy = Policy(Fixed(5), retries=2, own_backoff=lambda one: Fixed(7) if one.key == "own" else None)
    own = policy.for_task(task)
    assert (own.backoff, own.failures_max, own.backoff_words) == (Fixed(7), 3, "fixed 7s")
    assert policy.for_task(task._replace(key="other")) is policy
    plain = Policy(Fixed(5))
    assert plain.for_task(task) is plain


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            lambda: Policy(retries=3, attempts=4),
            "say either retries= (after the first try) or attempts= (tries in all), not both",
        ),
        (lambda: Policy(retries="3"), "retries must be a whole number from 0 to 999,999, not '3'"),
        (lambda: Policy(attempts=0), "attempts must be a whole number from 1 to 999,999, not 0"),
        (
            lambda: Policy(otherwise="x"),
            "otherwise must be one of transient, rate_limited, permanent, business, not 'x'",
        ),
        (lambda: Policy(business=int), "business: int is not an exception"),
        (lambda: Policy(business=99), "business: 99 is not an HTTP status"),
        (lambda: Policy(business="x"), "business: 'x' is neither an exception type, an HTTP status nor a function"),
        (
            lambda: read_policy(Policy(), wait=5, retries=3),
            "say either policy= or retries=, wait=, not both: put the words into the policy",
        ),
        (
            lambda: read_policy(tries=3, retry=2),
            "there is no retry=, tries=: the words of a policy are wait=, retries=, attempts=, jitter=, permanent=, business=, "
            "rate_limited=, transient=, deadline=",
        ),
        (lambda: read_policy(5), "policy must be a Policy, such as Policy(retries=3), not 5"),
        (
            lambda: read_policy(wait=object),
            "wait must be a span, a list of spans or a backoff, such as 5, '2s', [1, 5, 15] or Exponential(2, 300), "
            "not <class 'object'>",
        ),
        (lambda: Exponential(factor=0.5), "factor must lie between 1 and 1000, not 0.5"),
        (lambda: Exponential(9, 5), "cap (5s) must not be shorter than first (9s)"),
        (lambda: Linear(9, 1, 5), "cap (5s) must not be shorter than first (9s)"),
        (lambda: Schedule([]), "a schedule has 1 to 1000 waits, not 0"),
        (
            lambda: Schedule(5),
            "a schedule takes a list of waits, such as [10, 60] or [seconds(10), minutes(1)], not 5",
        ),
        (lambda: Schedule([-1]), "waits must lie between 0 and 366 days, not -1s"),
        (lambda: jitter.percent(101), "jitter percent must lie between 0 and 100, not 101"),
        (lambda: jitter.plus_minus(True), "jitter plus_minus must lie between 0 and 100, not True"),
    ],
)
def test_what_is_said_of_a_wrong_policy(build, sentence):
    """Whole sentences, with what would be right."""
    with pytest.raises((PolicyError, DurationError)) as refused:
        build()
    assert str(refused.value) == sentence


def test_what_the_class_alone_decides_is_told_of_each_class() -> None:
    """What is remembered of a class holds for that class: not for those below it, and not where another policy has other rules."""
    lookups, keys = Policy(permanent=LookupError), Policy(permanent=KeyError)
    for _ in range(2):
        assert lookups.classify(KeyError("id")) == (ErrorClass.PERMANENT, "LookupError")
        assert lookups.classify(Exception("id")) == (ErrorClass.TRANSIENT, "otherwise")
        assert keys.classify(LookupError("id")) == (ErrorClass.TRANSIENT, "otherwise")
        assert keys.classify(KeyError("id")) == (ErrorClass.PERMANENT, "KeyError")


def test_a_rule_that_looks_at_the_exception_is_asked_each_time() -> None:
    """Two exceptions of one class may be two things: for a function, for an HTTP status, and for one that tells its class itself."""

    class ToldError(Exception):
        def __init__(self, told: type) -> None:
            self.told = told

        @property
        def __class__(self) -> type:  # type: ignore[override]
            return self.told

    gone = Policy(permanent=lambda error: "gone" in str(error))
    status = Policy(permanent=410)
    lookups = Policy(permanent=LookupError)
    for _ in range(2):
        assert gone.classify(ValueError("gone"))[0] is ErrorClass.PERMANENT
        assert gone.classify(ValueError("busy"))[0] is ErrorClass.TRANSIENT
        assert status.classify(http_error(410))[0] is ErrorClass.PERMANENT
        assert status.classify(http_error(503))[0] is ErrorClass.TRANSIENT
        assert lookups.classify(ToldError(KeyError))[0] is ErrorClass.PERMANENT
        assert lookups.classify(ToldError(ValueError))[0] is ErrorClass.TRANSIENT
