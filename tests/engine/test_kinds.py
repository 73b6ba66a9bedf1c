"""Which kinds a worker asks for."""

from typing import Any

import pytest

from redrive import Policy
from redrive.engine import kinds as module
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.kinds import Kinds


class Looked:
    """A ledger that can only be asked for its open kinds, and counts how often it was."""

    def __init__(self, *open_kinds: str) -> None:
        self.kinds = list(open_kinds)
        self.looks = 0

    async def open_kinds(self) -> list[str]:
        self.looks += 1
        return self.kinds


def kinds_of(ledger: Any, *patterns: str) -> Kinds:
    handlers = Handlers()
    for pattern in patterns:
        handlers.add(make_handler(pattern, lambda task: None, Policy()))
    return Kinds(ledger, handlers)


async def test_named_kinds_need_no_look() -> None:
    """Handlers of named kinds are asked for without asking the ledger, also ahead."""
    ledger = Looked("other")
    kinds = kinds_of(ledger, "mail", "call")
    assert kinds.known() == await kinds.to_claim() == ["mail", "call"]
    assert ledger.looks == 0


async def test_patterns_are_known_only_after_a_look() -> None:
    """What a pattern stands for is not known before the ledger was asked, then it is, until it is forgotten."""
    ledger = Looked("mail.sent", "call")
    kinds = kinds_of(ledger, "mail.*")
    assert kinds.known() is None
    assert await kinds.to_claim() == ["mail.sent"]
    assert kinds.known() == ["mail.sent"]
    kinds.forget()
    assert kinds.known() is None


async def test_a_busy_worker_sees_new_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look grows old, so that one who always asks ahead must look again and finds a kind that came meanwhile."""
    ledger = Looked("mail.a")
    kinds = kinds_of(ledger, "mail.*")
    await kinds.to_claim()
    ledger.kinds.append("mail.b")
    assert kinds.known() == ["mail.a"]
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    assert kinds.known() is None
    assert await kinds.to_claim() == ["mail.a", "mail.b"]
