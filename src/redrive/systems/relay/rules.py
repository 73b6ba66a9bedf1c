"""What kind of trouble a dead letter is: ordered rules that are data, read from a TOML file. The first that fits decides.

The rules that are used without a file are `dead_letters.toml`, beside this one; it says what a rule may hold. Errors are written by
strangers, so no rule may take long over one: texts and patterns have a limit, and RE2 matches in time linear to both.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import re2  # type: ignore[import-untyped]  # it ships no types
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from redrive.errors import SettingsError

TEXT_CHARS_MAX = 1000
"""So much of an error or of a header is looked at."""
PATTERN_CHARS_MAX = 2000
PATTERN_MEMORY_MAX = 1_048_576
"""So many bytes RE2 may use for one pattern; one that needs more is refused. The slowest known takes less than a tenth of a
second over the longest text."""
PATTERNS_MAX = 50
RULES_MAX = 200
NAMES_MAX = 50
FILE_BYTES_MAX = 1_048_576
NO_RULE = "none"
"""What stands in place of a rule's name where no rule fits."""


class LetterClass(StrEnum):
    """What kind of trouble a dead letter is."""

    TRANSIENT = "transient"
    """It will pass: it is retried. All others go to people."""
    BUSINESS = "business"
    TECHNICAL = "technical"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFacts:
    """What the rules look at."""

    queue: str
    reason: str
    error: str = ""
    deaths: int = 0
    headers: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LetterVerdict:
    """What was decided, and by which rule."""

    letter_class: LetterClass
    rule: str


def _pattern(text: Any) -> Any:
    if not isinstance(text, str):
        raise ValueError("it must be a regular expression in quotes")  # noqa: TRY004 - pydantic tells of a ValueError
    if len(text) > PATTERN_CHARS_MAX:
        raise ValueError(
            f"the pattern has {len(text):,} characters: write at most {PATTERN_CHARS_MAX:,}, or a list of several"
        )
    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True  # whether it fits is all that is asked
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_MAX
    try:
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace")
        raise ValueError(
            f"{text!r:.100} is not a regular expression of RE2 ({why:.100}): correct it, and write it in '…' so that \\ stays; "
            "look-around, back references, (?x) and large repeats are not supported"
        ) from None


def _one_or_more(given: Any) -> Any:
    return given if isinstance(given, list | tuple) else [given]


Pattern = Annotated[Any, BeforeValidator(_pattern)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_one_or_more), Field(min_length=1, max_length=PATTERNS_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more), Field(max_length=NAMES_MAX)]


class Rule(BaseModel):
    """One rule; a condition that it does not have holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=100, pattern=r"^[!-~]+$")
    letter_class: LetterClass = Field(alias="class")
    error: Patterns | None = None
    reason: Names | None = Field(default=None, min_length=1)
    queue: Names | None = Field(default=None, min_length=1)
    headers: dict[Name, Patterns] = Field(default_factory=dict, max_length=NAMES_MAX)
    deaths_min: int = Field(default=0, ge=0)

    def fits(self, trouble: DeadLetterFacts) -> bool:
        """Whether all conditions hold."""
        return (
            trouble.deaths >= self.deaths_min
            and (self.reason is None or trouble.reason in self.reason)
            and (self.queue is None or any(fnmatchcase(trouble.queue, glob) for glob in self.queue))
            and (self.error is None or _found(self.error, trouble.error))
            and all(
                name in trouble.headers and _found(patterns, text_of(trouble.headers[name]))
                for name, patterns in self.headers.items()
            )
        )


class Rules(BaseModel):
    """The rules in their order, and in which headers to look for what the broker does not say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error_headers: Names
    queue_headers: Names
    rules: tuple[Rule, ...] = Field(default=(), max_length=RULES_MAX, alias="rule")

    @field_validator("rules")
    @classmethod
    def _have_names_of_their_own(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        names: set[str] = set()
        for rule in rules:
            if rule.name in names:
                raise ValueError(f"two rules have the name {rule.name!r}: give one of them another")
            names.add(rule.name)
        return rules

    def classify(self, trouble: DeadLetterFacts) -> LetterVerdict:
        """What kind of trouble it is; every trouble gets a verdict."""
        for rule in self.rules:
            if rule.fits(trouble):
                return LetterVerdict(rule.letter_class, rule.name)
        return LetterVerdict(LetterClass.UNKNOWN, NO_RULE)


def load_rules(path: str | None = None) -> Rules:
    """The rules in this file, or redrive's own; a `SettingsError` names the rule that cannot be used and how to correct it.

    A file that does not say in which headers to look has redrive's.
    """
    own = tomllib.loads(_own_rules())
    if path is None:
        return Rules.model_validate(own)
    given: dict[str, Any] = {}
    try:
        given = tomllib.loads(_read(Path(path)))
        return Rules.model_validate({name: own[name] for name in ("error_headers", "queue_headers")} | given)
    except OSError as error:
        raise SettingsError(
            f"the rules in {path} cannot be read ({error.strerror}): change DEAD_LETTER_RULES"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"the rules in {path} are not TOML ({error}): correct the file") from None
    except ValidationError as error:
        problems = "; ".join(_sentence(problem, given) for problem in error.errors())
        raise SettingsError(f"the rules in {path} cannot be used: {problems}") from None


def _own_rules() -> str:
    return resources.files(__package__).joinpath("dead_letters.toml").read_text(encoding="utf-8")


def _read(path: Path) -> str:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise SettingsError(f"the rules in {path} are larger than {FILE_BYTES_MAX:,} bytes: write fewer")
    return path.read_text(encoding="utf-8")


def _sentence(problem: Any, given: Mapping[str, Any]) -> str:
    """What is wrong with which rule."""
    why = problem["msg"].removeprefix("Value error, ")
    place = list(problem["loc"])
    if len(place) >= 2 and place[0] == "rule":
        _, at, *rest = place
        rule = given["rule"][at]
        name = rule.get("name") if isinstance(rule, dict) else None
        what = f"rule {name!r:.100}" if isinstance(name, str) else f"rule number {at + 1}"
        return f"{what}: {'.'.join(map(str, rest))}: {why}" if rest else f"{what}: {why}"
    return f"{'.'.join(map(str, place))}: {why}"


def text_of(value: Any) -> str:
    """A header's value as the text that rules look at: what is not text is written as text."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value[:TEXT_CHARS_MAX]).decode("utf-8", "replace")
    return str(value)[:TEXT_CHARS_MAX]


def _found(patterns: tuple[Any, ...], text: str) -> bool:
    # RE2 reads UTF-8, which has no place for half a surrogate pair.
    looked_at = text[:TEXT_CHARS_MAX].encode("utf-8", "replace")
    return any(pattern.search(looked_at) is not None for pattern in patterns)
