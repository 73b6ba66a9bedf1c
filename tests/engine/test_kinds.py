"""Which kinds a worker asks for."""

from typing import Any

import pytest

from redrive import Policy
from redrive.engine import kinds as module
from redrive.engine.handlers import Handlers, make_handler
from redrive.engine.kinds import Kinds
from redrive.ports import Page


class Looked:
    """A ledger that can only be asked for its open kinds, and counts how often it was."""

    def __init__(self, *open_kinds: str, page: int = 1000) -> None:
        self.kinds = list(open_kinds)
        self.page = page
        self.looks = 0

    async def list_kinds(self, *, prefix: str = "", after: str | None = None) -> Page[str]:
        self.looks += 1
        found = [kind for kind in sorted(self.kinds) if kind.startswith(prefix) and (after is None or kind > after)]
        return Page(items=found[: self.page], cursor=found[self.page - 1] if len(found) >= self.page else None)


def kinds_of(ledger: Any, *patterns: str, pauses: Any = None) -> Kinds:
    handlers = Handlers()
    for pattern in patterns:
        handlers.add(make_handler(pattern, lambda task: None, Policy()))
    return Kinds(ledger, handlers, pauses)


class Held:
    """Pauses of one kind, which are looked up when they are asked."""

    fresh = False
    looks = 0

    async def look(self) -> None:
        self.looks += 1
        self.fresh = True

    def without(self, kinds: list[str]) -> list[str]:
        return [kind for kind in kinds if kind != "held"]


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


NOBODYS = [f"a{number}" for number in range(100)]


async def test_a_prefix_is_found_behind_kinds_that_nobody_handles() -> None:
    """However many kinds nobody handles come first, a pattern finds its own at once; so does a kind that is named in full."""
    kinds = kinds_of(Looked(*NOBODYS, "m", "z.1", "z.2", page=10), "z.*", "m")
    assert await kinds.to_claim() == ["m", "z.1", "z.2"]


async def test_patterns_without_a_prefix_come_in_turn() -> None:
    """Where a pattern begins with a star, the pages are turned: no look reads them all, and each kind has its turn."""
    ledger = Looked(*NOBODYS, "m.z", "z.z", page=10)
    kinds = kinds_of(ledger, "*.z")
    seen: set[str] = set()
    for _ in range(8):
        before = ledger.looks
        seen |= set(await kinds.to_claim())
        assert ledger.looks - before <= 1 + module.PAGES_PER_LOOK
        kinds.forget()
    assert seen == {"m.z", "z.z"}


async def test_few_kinds_cost_one_look() -> None:
    """While all kinds are listed at once nothing else is asked."""
    ledger = Looked("mail.a", "call.b", "other")
    assert await kinds_of(ledger, "mail.*", "call.*", "*").to_claim() == ["call.b", "mail.a", "other"]
    assert ledger.looks == 1


async def test_what_is_paused_is_not_asked_for() -> None:
    """Pauses are looked up where what is known of them has grown old, and nothing is asked ahead while it has."""
    pauses = Held()
    kinds = kinds_of(Looked(), "mail", "held", pauses=pauses)
    assert kinds.known() is None
    assert await kinds.to_claim() == ["mail"]
    assert kinds.known() == ["mail"]
    assert await kinds.to_claim() == ["mail"]
    assert pauses.looks == 1


async def test_patterns_and_pauses_are_both_to_be_known() -> None:
    """What is asked for ahead needs neither a look for kinds nor one for pauses."""
    pauses = Held()
    kinds = kinds_of(Looked("held", "mail.a"), "*", pauses=pauses)
    assert await kinds.to_claim() == ["mail.a"]
    assert kinds.known() == ["mail.a"]
    kinds.forget()
    assert kinds.known() is None


async def test_a_look_turns_as_few_pages_as_it_needs() -> None:
    """It goes on behind the first page, until it finds a kind with a handler; after the last page the next look begins there again."""
    ledger = Looked(*NOBODYS[:15], "m.z", page=10)
    kinds = kinds_of(ledger, "*.z")
    for looks in (2, 4, 6):
        assert await kinds.to_claim() == ["m.z"]
        assert ledger.looks == looks
        kinds.forget()


async def test_a_prefix_needs_one_page_more() -> None:
    """Its own kinds are asked for by name; of the others one page is turned, in case the ledger sorts them apart."""
    ledger = Looked(*NOBODYS, "z.1", page=10)
    assert await kinds_of(ledger, "z.*").to_claim() == ["z.1"]
    assert ledger.looks == 3


async def test_a_look_ends_with_the_first_page_that_has_a_kind() -> None:
    """However many pages follow: they have their turn in the next looks."""
    ledger = Looked(
        *(f"a{number:02}" for number in range(10)), "b.z", *(f"c{number:02}" for number in range(30)), page=10
    )
    assert await kinds_of(ledger, "*.z").to_claim() == ["b.z"]
    assert ledger.looks == 2
