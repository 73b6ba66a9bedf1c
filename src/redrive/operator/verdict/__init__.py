"""How things are, in sentences: what is wrong, how it moves, what happens by itself, and what is safe to press.

Pure: `judge(facts)` makes a `Verdict` of what a store knows, and asks nobody for the time. Who renders it may rely on this:

- `Verdict.troubles` come worst first. Each has its four answers as sentences, never empty, and at most one advised button; where
  `button` is None the sentence of `safe` says that there is nothing to press, or what to do elsewhere.
- A sentence is a row of pieces. Their texts, joined, read as plain English. A piece with `when` is an instant, written in UTC and
  meant to be shown in the reader's zone. A piece with `link` names a thing and no address: whoever renders makes the address.
- All texts are redacted, but nothing is escaped for HTML.
- `Verdict.kinds` come by trouble first, then the busiest. Numbers of kinds are of the last five minutes, those of a trouble count
  since it began.
- What is not known is None or left out of a sentence; no number is made up.
"""

from redrive.operator.verdict.facts import CauseFacts, Facts, HeldFacts, KindFacts, LedgerNow, StoreNow
from redrive.operator.verdict.judge import judge
from redrive.operator.verdict.values import (
    Button,
    ButtonAct,
    Figure,
    KindHealth,
    KindPoint,
    LinkTo,
    Piece,
    Rank,
    Sentence,
    Subject,
    Target,
    Tone,
    Trend,
    Trouble,
    Verdict,
    plain,
)
from redrive.operator.verdict.views import kind_json, sentence_json, trouble_json, verdict_json

__all__ = [
    "Button", "ButtonAct", "CauseFacts", "Facts", "Figure", "HeldFacts", "KindFacts", "KindHealth", "KindPoint", "LedgerNow", "LinkTo",
    "Piece", "Rank", "Sentence", "StoreNow", "Subject", "Target", "Tone", "Trend", "Trouble", "Verdict", "judge", "kind_json", "plain", "sentence_json",
    "trouble_json", "verdict_json",
]  # fmt: skip
