"""The audit as a chain: each line carries the hash of the one before, so one that was changed or removed is found. Pure.

What the chain can show: that a line is as it was when it was linked, and that none in between is missing. What it cannot show by itself: that lines at its
end were removed, or that somebody who may write to the database has made a whole new chain. Both are found by comparing with a head that
was kept elsewhere.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime

from redrive.errors import UsageError

AUDITED = "redrive_audit"
"""What the audit calls itself: where its old lines were pruned, it says so."""
PRUNED = "pruned"
FINDINGS_MAX = 100
"""So many findings are named; more are counted."""
HASH_CHARS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """What a line of the audit tells; all of it is hashed. `things` and `asked` are JSON as it is stored, to the letter."""

    id: int
    ledger: str
    act: str
    actor: str
    origin: str
    reason: str
    at: datetime
    amount: int
    things: str
    asked: str | None
    whole: str | None
    leads: bool
    folded: bool

    def __str__(self) -> str:
        return f"{self.act} by {self.actor} on {self.ledger} at {self.at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The end of a chain, or a place in it: a number and a hash. Keep it elsewhere, and lines that are removed at the end are found."""

    number: int = 0
    hash: str = "0" * HASH_CHARS

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


@dataclass(frozen=True, slots=True)
class Linked:
    """A line in its place."""

    line: AuditLine
    place: ChainHead
    previous: str
    """The hash of the line before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFinding:
    """What is wrong with the chain, in a sentence that names the line."""

    number: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What a look through the whole chain came to."""

    lines: int
    """How many lines are there and linked."""
    head: ChainHead
    begins: ChainHead
    """The place before the first line: of a chain whose old lines were pruned, the last one of those."""
    folded: int
    """How many lines tell of what was done before them: what happened to those facts until they were linked is not known."""
    unlinked: int = 0
    """How many lines are not linked yet: those are not protected."""
    findings: Sequence[ChainFinding] = ()
    more: int = 0
    """How many findings are not named."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def link(head: ChainHead, lines: Iterable[AuditLine]) -> list[Linked]:
    """Put lines behind the head, one after the other."""
    linked = []
    for line in lines:
        place = ChainHead(head.number + 1, _hash(head.number + 1, head.hash, line))
        linked.append(Linked(line, place, head.hash))
        head = place
    return linked


def read_head(text: str) -> tuple[int | None, str]:
    """A head as it was printed, `412:9f86…`, or its hash alone."""
    number, _, hashed = text.strip().rpartition(":")
    is_number = not number or (number.isascii() and number.isdigit() and len(number) < 19)
    if not is_number or len(hashed) != HASH_CHARS or not set(hashed) <= set("0123456789abcdef"):
        raise UsageError("a head is what `redrive audit head` prints, such as 412:9f86…, or its 64 hexadecimal digits")
    return int(number) if number else None, hashed


def pruned_at(line: AuditLine) -> ChainHead | None:
    """The place up to which a line says that the audit was pruned; None if it says nothing of the kind."""
    if (line.ledger, line.act) != (AUDITED, PRUNED):
        return None
    try:
        number, hashed = read_head(json.loads(line.things)[0])
    except (ValueError, UsageError, IndexError, TypeError, KeyError):
        return None
    return None if number is None else ChainHead(number, hashed)


@dataclass(slots=True)
class Check:
    """Goes through a chain from its first line to its last; `verdict` says what was found. `kept` is a head that was kept elsewhere."""

    kept: str | None = None
    _lines: int = 0
    _folded: int = 0
    _begins: ChainHead | None = None
    _last: Linked | None = None
    _checkpoints: dict[int, str] = field(default_factory=dict)
    _missing: list[tuple[int, int, str]] = field(default_factory=list)
    _wrong: list[ChainFinding] = field(default_factory=list)
    _kept_seen: bool = False

    def take(self, one: Linked) -> None:
        """The next line that is there, in the order of their numbers."""
        before, number = self._last, one.place.number
        if before is None:
            self._begins = ChainHead(number - 1, one.previous)
        elif number > before.place.number + 1:
            self._missing.append((before.place.number + 1, number - 1, f"between {_named(before)} and {_named(one)}"))
        elif one.previous != before.place.hash:
            said = f"{_named(one)} does not follow from {_named(before)}: one of them was changed"
            self._wrong.append(ChainFinding(number=number, sentence=said))
        if _hash(number, one.previous, one.line) != one.place.hash:
            self._wrong.append(ChainFinding(number=number, sentence=f"{_named(one)} was changed"))
        elif (pruned := pruned_at(one.line)) is not None:
            self._checkpoints[pruned.number] = pruned.hash
        self._lines += 1
        self._folded += one.line.folded
        self._last = one
        if self.kept is not None and read_head(self.kept)[1] in (one.place.hash, one.previous):
            self._kept_seen = True

    def verdict(self, *, unlinked: int = 0) -> ChainVerdict:
        """What was found, in the order of the numbers."""
        begins, head = self._begins or ChainHead(), ChainHead() if self._last is None else self._last.place
        pruned_to = max(self._checkpoints, default=0)
        wrong = [*self._wrong]
        if begins.number and self._checkpoints.get(begins.number) != begins.hash:
            said = f"{_range(1, begins.number)} missing at the beginning, and no line says that they were pruned there"
            wrong.append(ChainFinding(number=1, sentence=said))
        for first, last, where in self._missing:
            if last > pruned_to:  # else somebody has pruned them while they were read
                wrong.append(ChainFinding(number=first, sentence=f"{_range(first, last)} missing, {where}"))
        wrong += self._compared(head, pruned_to)
        wrong.sort(key=lambda one: one.number)
        return ChainVerdict(
            lines=self._lines,
            head=head,
            begins=begins,
            folded=self._folded,
            unlinked=unlinked,
            findings=wrong[:FINDINGS_MAX],
            more=max(0, len(wrong) - FINDINGS_MAX),
        )

    def _compared(self, head: ChainHead, pruned_to: int) -> list[ChainFinding]:
        if self.kept is None or self._kept_seen:
            return []
        number, hashed = read_head(self.kept)
        if hashed == head.hash:  # of a chain without a line
            return []
        if number is not None and number <= pruned_to:
            said = f"line {number} of the head that you kept was pruned with those before it: keep a newer head"
        elif number is not None and number > head.number:
            said = f"{_range(head.number + 1, number)} missing at the end: the head that you kept is line {number}"
        elif number is not None:
            said = f"line {number} has another hash than the head that you kept: it was changed, or one before it"
        else:
            said = "no line has the hash that you kept: lines were changed, or removed at the end"
        return [ChainFinding(number=head.number + 1 if number is None else number, sentence=said)]


def _hash(number: int, previous: str, line: AuditLine) -> str:
    told = [
        number,
        previous,
        *(one.astimezone(UTC).isoformat() if isinstance(one, datetime) else one for one in astuple(line)),
    ]
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _named(one: Linked) -> str:
    return f"line {one.place.number} ({one.line})"


def _range(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"
