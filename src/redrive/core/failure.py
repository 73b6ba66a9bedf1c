"""Reading an exception: its class, the patience it asks for, and a text that is safe to keep.

A policy maps exceptions to classes by rules; what handlers raise on purpose (`TaskError`) speaks for itself. Texts are
redacted and shortened here, before anything is stored or logged, so no secret leaves the process by an error.
"""

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from redrive.core.durations import ZERO, read_span
from redrive.errors import (
    BusinessError,
    DurationError,
    PermanentError,
    PolicyError,
    RateLimitedError,
    TaskError,
    TransientError,
)

ERROR_CHARS_MAX = 2000


class ErrorClass(StrEnum):
    """What kind of trouble a failure is."""

    TRANSIENT = "transient"
    RATE_LIMITED = "rate_limited"
    PERMANENT = "permanent"
    BUSINESS = "business"
    WORKER_LOST = "worker_lost"


RETRIED = frozenset({ErrorClass.TRANSIENT, ErrorClass.RATE_LIMITED, ErrorClass.WORKER_LOST})
"""Classes that are tried again while the budget lasts."""

Rule = type[BaseException] | int | Callable[[BaseException], bool]
"""An exception type, an HTTP status, or a function of the exception."""

_SPOKEN: tuple[tuple[type[TaskError], ErrorClass], ...] = (
    (TransientError, ErrorClass.TRANSIENT),
    (RateLimitedError, ErrorClass.RATE_LIMITED),
    (PermanentError, ErrorClass.PERMANENT),
    (BusinessError, ErrorClass.BUSINESS),
)


def spoken_class(error: BaseException) -> ErrorClass | None:
    """The class that a `TaskError` names by itself."""
    # By its type: `isinstance` also asks the exception itself for its `__class__`, which may raise.
    kind = type(error)
    if not issubclass(kind, TaskError):
        return None
    return next((error_class for spoken, error_class in _SPOKEN if issubclass(kind, spoken)), None)


def read_rules(name: str, given: Rule | Collection[Rule]) -> tuple[Rule, ...]:
    """The rules as a tuple, one alone or many; raises `PolicyError` for one that can never match."""
    rules = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    for rule in rules:
        if isinstance(rule, bool) or (isinstance(rule, int) and not 100 <= rule <= 599):
            raise PolicyError(f"{name}: {rule!r} is not an HTTP status")
        if isinstance(rule, type) and not issubclass(rule, BaseException):
            raise PolicyError(f"{name}: {rule.__name__} is not an exception")
        if not isinstance(rule, type | int) and not callable(rule):
            raise PolicyError(f"{name}: {rule!r} is neither an exception type, an HTTP status nor a function")
    return rules


def matches(rule: Rule, error: BaseException) -> bool:
    """Whether the rule holds for the error. A rule that raises does not match."""
    if isinstance(rule, int):
        return http_status(error) == rule
    try:
        return isinstance(error, rule) if isinstance(rule, type) else bool(rule(error))
    except BaseException:  # neither a broken predicate nor a broken exception must lose the outcome of a run
        return False


def rule_name(rule: Rule) -> str:
    """The rule's name for explanations."""
    if isinstance(rule, int):
        return f"HTTP {rule}"
    return getattr(rule, "__qualname__", None) or repr(rule)


def http_status(error: BaseException) -> int | None:
    """The HTTP status that an exception of httpx, requests, aiohttp or urllib carries."""
    for holder in (_get(error, "response"), error):
        for name in ("status_code", "status", "code"):
            status = _get(holder, name)
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def asked_patience(error: BaseException) -> timedelta | None:
    """The wait that the error asks for: its `retry_after`, or the `Retry-After` header of its HTTP response."""
    if _has_no_facts(error):
        return None
    asked = _get(error, "retry_after")
    if isinstance(asked, timedelta):
        return max(asked, ZERO)
    # httpx and requests keep the headers with the response, aiohttp and urllib with the error itself.
    headers = _get(_get(error, "response"), "headers")
    if headers is None:
        headers = _get(error, "headers")
    if asked is None and headers is not None:
        try:
            asked = headers.get("Retry-After")
        except BaseException:
            return None
    return None if asked is None else _patience(asked, headers)


def _get(holder: object, name: str, otherwise: Any = None) -> Any:
    """The attribute, or `otherwise` if there is none or if reading it raises, as properties of foreign exceptions do."""
    try:
        return getattr(holder, name, otherwise)
    except BaseException:  # whatever a stranger's property raises, the failure itself must still be settled
        return otherwise


def _has_no_facts(error: BaseException) -> bool:
    """Whether an exception says nothing but its text, as most do: to ask it for each fact would take longer than all else here."""
    return is_bare(type(error)) and not error.__dict__  # type: ignore[arg-type]  # classes have a hash


@lru_cache(maxsize=512)
def is_bare(kind: type[BaseException]) -> bool:
    """Whether the exceptions of a class have only what is set on each of them."""
    names = {name for each in kind.__mro__ if each not in _PYTHONS for name in vars(each)}
    own = kind.__getattribute__ is not BaseException.__getattribute__
    return not own and names.isdisjoint({"__getattr__", "__dict__", "__class__", *_FACTS})


_PYTHONS = (BaseException, object)
_FACTS = ("retry_after", "response", "headers", "statement", "orig")
_PATIENCE_SECONDS_MAX = 1e9
"""What a `timedelta` holds with ease; the policy's `retry_after_max` is the bound that counts."""


def _patience(asked: object, headers: object) -> timedelta | None:
    try:
        if isinstance(asked, str) and not asked.strip().isdigit():
            with suppress(DurationError):
                return read_span("retry_after", asked.strip())
            # An HTTP date; the response's own Date is the clock that it was written by.
            date = headers.get("Date")  # type: ignore[attr-defined]
            asked = (parsedate_to_datetime(asked) - parsedate_to_datetime(date)).total_seconds()
        if isinstance(asked, str | int | float) and not isinstance(asked, bool):
            return timedelta(seconds=min(max(float(asked), 0.0), _PATIENCE_SECONDS_MAX))
    except BaseException:  # whatever a stranger wrote there, the failure itself must still be settled
        return None
    return None


_MISSING = object()


def describe_error(error: BaseException) -> str:
    """`Type: message`, redacted and shortened.

    SQLAlchemy's errors say the whole statement with its parameters, which are nobody else's business: the driver's words do.
    """
    is_sql = not _has_no_facts(error) and _get(error, "statement", _MISSING) is not _MISSING
    told = _get(error, "orig") if is_sql else None
    try:
        message = str(error if told is None else told)
    except BaseException:  # also a `SystemExit` from within its text: what is told here must not end anything
        message = "(its text cannot be read)"
    name = type(error).__name__
    return safe_text(f"{name}: {message}" if message else name)


def safe_text(text: str) -> str:
    """The text without secrets, without NUL and at most `ERROR_CHARS_MAX` long."""
    # When a thousand tasks fail they mostly say the same.
    return _safe_short_text(text) if len(text) <= _REMEMBERED_CHARS_MAX else _safe_text(text)


@lru_cache(maxsize=512)
def _safe_short_text(text: str) -> str:
    return _safe_text(text)


def _safe_text(text: str) -> str:
    # Cut first, with room for what redaction may remove, so that a huge message costs no more than a long one.
    looked_at = text[:_LOOKED_AT_CHARS_MAX]
    kept = redact(looked_at.replace("\0", "\ufffd"))
    if len(looked_at) < len(text) and len(kept) <= ERROR_CHARS_MAX:
        # So much was hidden that the cut would show, and half a secret may not look like one: drop the last word.
        kept = "".join(kept.rsplit(None, 1)[:-1]) + " …"
    kept = kept.encode("utf-8", "replace").decode("utf-8")
    return kept if len(kept) <= ERROR_CHARS_MAX else kept[: ERROR_CHARS_MAX - 1] + "…"


_REMEMBERED_CHARS_MAX = 500
_LOOKED_AT_CHARS_MAX = ERROR_CHARS_MAX * 4
HIDDEN = "[redacted]"
"""What stands where a secret was."""
_NOT_YET = r"(?!\[redacted\])"
_NAME = (
    r"(?=[acepst])(?:api[_-]?key|secret|passw(?:or)?d|passphrase|pwd|credential|signature|session[_-]?id|"
    r"(?:private|access|account|encryption|signing)[_-]?key|token(?!iz|s[\"']?\s*[:=]\s*\d+\b))[\w-]{0,40}"
)
_NAME_CLUES = "key secret passw passphrase pwd credential signature session token"
_QUOTED = r"[bru]?(?:\"(?:[^\"\\\n]|\\.)*+\"?|'(?:[^'\\\n]|\\.)*+'?|\\+\"[^\"\n]*+\"?)"
_VALUE = rf"{_NOT_YET}(?:(?:bearer|basic|[\w.-]{{1,40}}[:=])[^\S\n]+)*(?:{_QUOTED}|[^\s,;&}})\]]+)"

# Each: clues, one of which is in the lower-cased text wherever the pattern matches; the pattern; what it becomes.
# The clues spare most texts all substitutions: 0.7 µs for a short message instead of 10. Every pattern is linear even
# in a hostile text: what repeats is bounded, possessive, or ends where the pattern may begin again.
_SECRETS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = tuple(
    (tuple(clues.split()), re.compile(pattern), hidden)
    for clues, pattern, hidden in (
        # first of all, because the patterns below would hide only its first line
        (
            "-----begin",
            r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
            HIDDEN,
        ),
        # ("name", "value"), as lists of headers are printed
        (
            f"{_NAME_CLUES} authorization cookie",
            rf"(?i)(\(b?[\"'][\w-]{{0,40}}?(?:authorization|cookie|{_NAME})[\"'],\s*)b?(?:\"[^\"\n]*\"|'[^'\n]*')",
            rf"\1{HIDDEN}",
        ),
        # name=value, name: value, "name": "value", <name>value with a name that says secret; before the patterns that
        # hide words, because a name that is hidden no longer says so
        (
            _NAME_CLUES,
            rf"(?i)({_NAME}\\*[\"']?\]?(?:\s*+[:=]++>?+[^\S\n]*+|>(?=[^\s<]))){_VALUE}",
            rf"\1{HIDDEN}",
        ),
        # user:password@host in any URL or DSN; digits before a slash or a quote are a port
        (
            "://",
            r"(://[^\s:/\[]*):(?!\d{1,5}[/?#\"'])(?:[^\s@:\"]|:(?!//))*+@(?:[^\s@/\"]*@)*",
            rf"\1:{HIDDEN}@",
        ),
        # Authorization: Basic …, "Authorization": "Bearer …", Authorization: Digest a="b", c="d"
        (
            "authorization",
            rf"(?i)(authorization\\*[\"']?\s*+[:=]++>?+\s*+(?:[bru]?\\*[\"'])?+){_NOT_YET}(?:[\w-]+\s+)?[^\s\"',;\\]+"
            r"(?:(?<==)\"[^\"]*\")?(?:\s*,\s*[\w-]+=(?:\"[^\"]*\"|[^\s,\"']+))*",
            rf"\1{HIDDEN}",
        ),
        ("cookie", rf"(?i)(cookie\\*[\"']?\s*+[:=]\s*+(?:\\*[\"'])?+){_NOT_YET}[^\n\"']+", rf"\1{HIDDEN}"),
        ("bearer", r"(?i)\b(bearer)\s+(?!auth|credential|scheme)[a-z0-9._~+/=-]{8,}", rf"\1 {HIDDEN}"),
        # base64 holds a digit, a sign or a capital inside; "basic authentication" does not
        (
            "basic",
            r"(?i)\b(basic)\s+(?=[a-z]*(?:[0-9+/=]|(?-i:[a-z][A-Z])))[a-z0-9+/=]{8,}",
            rf"\1 {HIDDEN}",
        ),
        # known by their look: redrive's own keys, Stripe, GitHub, GitLab, Slack, AWS, Google, Azure, OpenAI, JWT
        ("rdk_", r"(?<![A-Za-z0-9])rdk_[\w-]{8,}", HIDDEN),
        ("_live_ _test_ whsec_", r"\b(?:(?:sk|pk|rk)_(?:live|test)|whsec)_[\w+/=]{8,}", HIDDEN),
        ("ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{16,}", HIDDEN),
        ("github_pat_", r"\bgithub_pat_\w{16,}", HIDDEN),
        ("glpat-", r"\bglpat-[\w-]{16,}", HIDDEN),
        ("xox", r"\bxox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{8,}", HIDDEN),
        ("xapp-", r"\bxapp-[A-Za-z0-9-]{8,}", HIDDEN),
        ("hooks.slack.com", r"(hooks\.slack\.com/(?:services|workflows)/)[\w/]+", rf"\1{HIDDEN}"),
        ("akia asia", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", HIDDEN),
        ("aiza", r"\bAIza[\w-]{35}", HIDDEN),
        ("sig=", r"(?i)(?<=[?&;])(sig=)[^\s&\"']+", rf"\1{HIDDEN}"),
        ("sk-", r"(?<![\w-])sk-(?=[a-z-]*[A-Z0-9])[\w-]{20,}", HIDDEN),
        ("eyj", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)+", HIDDEN),
    )
)
_ANY_CLUE = re.compile("|".join(sorted({re.escape(clue) for clues, _, _ in _SECRETS for clue in clues})))


def redact(text: str) -> str:
    """Replace passwords, keys, tokens and Authorization values by `[redacted]`."""
    lowered = text.lower()
    if _ANY_CLUE.search(lowered) is None:
        return text
    for clues, pattern, hidden in _SECRETS:
        for clue in clues:
            if clue in lowered:
                text = pattern.sub(hidden, text)
                break
    return text
