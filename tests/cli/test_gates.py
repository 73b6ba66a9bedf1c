"""`redrive gates`: looking and acting, on both databases."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Redrive, TransientError, seconds
from redrive.core.decide import decide
from redrive.core.outcome import Failed
from redrive.gates import Breaker
from tests.ledgers.homes import POLICY

from .said import Said

Run = Callable[..., Said]
WHY = ("--reason", "the bank moves")


@pytest.fixture
def gated(url: str) -> None:
    """A bank that is down, with a task parked behind it, and one that is well."""

    async def make() -> None:
        app = Redrive(url, durable=False)
        app.gate("bank:*", concurrency=5, rate="20/s", breaker=Breaker(failures=2))
        async with app:
            for number in range(3):
                await app.add("pay", key=f"pay-{number}", gate="bank:DE")
            ledger = await app.tasks.ledger()
            claims = await ledger.claim(2, seconds(30))
            failed = [decide(claim, Failed(TransientError("no")), POLICY) for claim in claims]
            assert await ledger.settle(failed, worker="w") == []
            await app.add("pay", key="fr", gate="bank:FR")

    asyncio.run(make())


@pytest.mark.usefixtures("gated")
def test_list_and_show(stored: Run) -> None:
    """What holds comes first; pages, filters and one gate with all that is known of it."""
    listed = stored("gates", "list", "--lane", "redrive_task", "--json").json
    assert [(gate["name"], gate["does"], gate["parked"]) for gate in listed["gates"]] == [
        ("bank:DE", "holding", 1), ("bank:FR", "letting through", 1),
    ]  # fmt: skip
    assert [(rule["pattern"], rule["set_by"]) for rule in listed["rules"]] == [("bank:*", "code")]
    first = stored("gates", "list", "--limit", "1", "--json").json
    rest = stored("gates", "list", "--limit", "1", "--after", first["after"], "--json").json
    assert [gate["name"] for gate in first["gates"] + rest["gates"]] == ["bank:DE", "bank:FR"]
    assert stored("gates", "list", "--does", "letting-through", "--json").json["gates"][0]["name"] == "bank:FR"
    said = " ".join(stored("gates", "list").out.split())
    assert "bank:DE" in said
    assert "bank:*: 5 at once, 20/s, holds after 2 failures within 1m, a probe every 30s, set by code" in said
    shown = stored("gates", "show", "bank:DE")
    assert "The breaker tripped after 2 failures within 1m" in " ".join(shown.out.split())
    assert "bank:*, set by code" in shown.out
    task = stored("tasks", "show", "pay-2")
    assert "parked behind bank:DE, earliest" in " ".join(task.out.split())
    assert stored("tasks", "show", "pay-2", "--json").json["parked"]["by"] == "bank:DE"
    assert stored("tasks", "show", "fr", "--json").json["parked"] is None
    missing = stored("gates", "show", "bank:UK")
    assert (missing.code, "no task has named it yet" in missing.err) == (1, True)


@pytest.mark.usefixtures("gated")
def test_pause_and_resume(stored: Run) -> None:
    """Gates, kinds and the ledger, with who and why; the second of two who saw the same is told who was quicker."""
    version = stored("gates", "show", "bank:DE", "--json").json["version"]
    act: Any = ("bank:DE", *WHY, "--by", "ada", "--version", str(version))
    paused = stored("gates", "pause", *act, "--for", "1h", "--json").json
    assert (paused["changed"], paused["gate"]["does"], paused["gate"]["paused_by"]) == (True, "paused", "ada")
    late = stored("gates", "pause", *act)
    assert (late.code, "ada was quicker (gate paused)" in late.err) == (1, True)
    assert stored("gates", "resume", "bank:DE", *WHY).code == 0
    again = stored("gates", "resume", "bank:DE", *WHY)
    assert (again.code, "nothing changed" in again.err) == (1, True)
    lane = ("--lane", "redrive_task")
    assert stored("gates", "pause", "--kind", "pay", *WHY, *lane).code == 0
    until = (datetime.now(UTC) + timedelta(days=30)).isoformat()
    assert stored("gates", "pause", "--all", *WHY, *lane, "--until", until).code == 0
    listed = stored("gates", "list", "--does", "paused", "--json").json["gates"]
    assert [(gate["name"], gate["title"]) for gate in listed] == [
        ("kind:*", "the whole ledger"), ("kind:pay", "kind pay"),
    ]  # fmt: skip
    assert (
        stored("tasks", "show", "fr", "--json")
        .json["parked"]["sentence"]
        .startswith(f"held by the pause of the whole ledger, earliest {until[:10]}")
    )
    assert "gate paused by ada: the bank moves" in stored("gates", "show", "bank:DE").out
    for wrong, said in (
        (("pause", "bank:DE"), "say why"),
        (("pause", *WHY), "say which: a gate, --kind or --all"),
        (("pause", "bank:DE", "--all", *WHY), "say which"),
        (("pause", "bank:DE", "--until", "soon", *WHY), "--until is an instant"),
        (("pause", "--kind", "pay", *WHY), "say in which ledger with --lane"),
        (("list", "--does", "open"), "the state of a gate is one of paused"),
        (("set", "bank:DE", *WHY), "say which limits"),
        (("set", "bank:DE", "--rate", "many", *WHY), "rate must look like"),
        (("set", "bank:DE", "--concurrency", "-1", *WHY), "--concurrency is a whole number or none"),
    ):
        refused = stored("gates", *wrong)
        assert (refused.code, said in refused.err) == (2, True), (wrong, refused.err)


@pytest.mark.usefixtures("gated")
def test_limits(stored: Run) -> None:
    """Those that are named change, the others stay as they hold; unset, the wider pattern holds again."""
    done = stored("gates", "set", "bank:DE", "--rate", "5/s", "--probe", "10s", *WHY, "--json").json
    limits = done["gate"]["limits"]
    assert (limits["rate"], limits["concurrency"]) == ("5/s", 5)
    assert (limits["breaker"]["failures"], limits["breaker"]["probe_seconds"]) == (2, 10)
    limits = stored("gates", "set", "bank:DE", "--failures", "none", "--rate", "none", *WHY, "--json").json["gate"][
        "limits"
    ]
    assert (limits["breaker"], limits["rate"], limits["concurrency"]) == (None, None, 5)
    same = stored("gates", "set", "bank:DE", "--concurrency", "5", *WHY)
    assert (same.code, "nothing changed" in same.err) == (1, True)
    assert stored("gates", "set", "bank:DE", "--unset", *WHY, "--json").json["gate"]["rule"]["pattern"] == "bank:*"
