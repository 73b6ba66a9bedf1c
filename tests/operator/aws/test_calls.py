"""Every question that people and services ask of a store over items: none of them scans the table."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from redrive.access.aws.keys import ItemKeys
from redrive.access.aws.sessions import ItemSessions
from redrive.access.ports import Keys, Sessions
from redrive.core.durations import minutes
from redrive.core.states import State
from redrive.ledgers.aws.client import Dynamo
from redrive.operator import ports
from redrive.operator.aws.alerts import ItemAlerts
from redrive.operator.aws.audit import ItemAudit
from redrive.operator.aws.census import ItemCensus
from redrive.operator.aws.figures import ItemFigures
from redrive.operator.aws.gates import ItemGates
from redrive.operator.aws.pages import ItemTaskPages
from redrive.operator.aws.roster import ItemRoster
from redrive.operator.aws.search import ItemSearch
from redrive.operator.aws.turns import ItemTurns
from redrive.operator.roster import WorkerSign
from redrive.ports import Filter, LedgerReader
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import ItemHome, make_ledger
from tests.ledgers.homes import ADA, LEASE, PERMANENT, START

STORES = ("aws",)
DOCUMENTED = {f"{call}_item" for call in ("get", "batch_get", "put", "update", "delete")} | {
    "query",
    "transact_write_items",
}
HOUR, DEAD = timedelta(hours=1), Filter(state=State.DEAD)

Asked = dict[str, Callable[[], Awaitable[Any]]]

REFUSED = {ports.Chain, ports.CountedKinds, ports.History, ports.Operations}
"""What there is none of on items: nothing is asked for it."""


def questions_of(protocol: type) -> set[str]:
    """All that a protocol promises."""
    return {name for name in vars(protocol) if not name.startswith("_")}


async def test_nothing_is_ever_scanned(home: ItemHome, monkeypatch: Any) -> None:
    """Each method of each protocol is called here, and makes only calls that read or write items by their keys."""
    monkeypatch.setattr("redrive.operator.aws.audit.EARLIEST", START)
    client, clock = CuttingClient(home.ledger.dynamo._client), home.clock
    dynamo = Dynamo(client, home.ledger.dynamo.table)
    ledger = make_ledger(dynamo, home.ledger.queue, clock)
    [first, *_] = await home.put(4)
    await home.run(PERMANENT)
    keys, sessions, turns = (
        ItemKeys(dynamo, clock=clock),
        ItemSessions(dynamo, clock=clock),
        ItemTurns(dynamo, clock=clock),
    )
    figures, alerts, audit = (
        ItemFigures(dynamo, clock=clock),
        ItemAlerts(dynamo, clock=clock),
        ItemAudit(dynamo, clock=clock),
    )
    census, pages, search = ItemCensus(ledger), ItemTaskPages(ledger), ItemSearch(ledger, DEAD, dict)
    gates, roster = ItemGates(ledger), ItemRoster(dynamo, clock=clock)
    sign = WorkerSign(name="w1", host="h", pid=7, started_at=clock.now())
    [waits] = await home.put(1)
    await ledger.pause_gate("ep-00", ADA)
    await ledger.claim(10, LEASE)
    waiting = await ledger.get(waits)
    assert waiting is not None
    key = (await keys.create("ann", ["viewer"])).key
    states = await figures.states()
    now, name = clock.now(), ledger.name
    asked: dict[type, Asked] = {
        Keys: {
            "create": lambda: keys.create("bob", ["viewer"]), "list": keys.list, "find": lambda: keys.find("secret"),
            "page": lambda: keys.page(owner="ann"), "get": lambda: keys.get(key.id), "ensure_first": keys.ensure_first,
            "change": lambda: keys.change(key.id, forever=True), "revoke": lambda: keys.revoke(key.id),
        },
        Sessions: {
            "start": lambda: sessions.start("token", key.id, now, now + HOUR), "find": lambda: sessions.find("token"),
            "end": lambda: sessions.end("token"),
        },
        ports.Turns: {
            "take": lambda: turns.take("chore", HOUR), "give_back": lambda: turns.give_back("chore", now + HOUR),
            "forget": turns.forget,
        },
        ports.Roster: {"sign": lambda: roster.sign(sign), "seen": roster.seen, "forget": roster.forget},
        ports.Alerts: {
            "note": lambda: alerts.note({"a": ("rule", "text")}), "told": lambda: alerts.told(["a"], ["b"]),
            "active": alerts.active, "known": alerts.known,
        },
        ports.Audit: {
            "page": lambda: audit.page(name), "get": lambda: audit.get("a/b"), "things": lambda: audit.things("a/b"),
        },
        ports.Census: {
            "waiting": lambda: census.waiting(["mail"]), "take_if_due": census.take_if_due, "take": census.take, "hurry": census.hurry,
            "amounts_now": lambda: census.amounts_now(next(iter(states.values()))) if states else pages.present(),
        },
        ports.Figures: {
            "states": figures.states, "ledgers": figures.ledgers, "sums": lambda: figures.sums([name], START),
            "series": lambda: figures.series([name], START, minutes(1)), "groups": lambda: figures.groups([name]),
            "depths": lambda: figures.depths([name], START, minutes(1)), "fold": lambda: figures.fold(now + HOUR),
            "sample": lambda: figures.sample(name, {}, None),
        },
        ports.TaskPages: {
            "page": lambda: pages.page(DEAD), "ids": lambda: pages.ids(Filter(cause="x")),
            "count": lambda: pages.count(DEAD), "present": pages.present, "due_until": lambda: pages.due_until(now + HOUR),
        },
        ports.Gates: {
            "page": gates.page, "holding": gates.holding, "one": lambda: gates.one("ep-00"), "rules": gates.rules,
            "rule_for": lambda: gates.rule_for("ep-00"), "parked": lambda: gates.parked(waiting), "sums": gates.sums,
            "spans": lambda: gates.spans(["ep-00"], START), "record": gates.record,
            "parked_over": lambda: gates.parked_over(["ep-00"], START),
        },
        ports.Search: {"chunk": lambda: search.chunk(None)},
        LedgerReader: {
            "find": lambda: ledger.find(DEAD), "get": lambda: ledger.get(first), "get_by_key": lambda: ledger.get_by_key("x"),
            "attempts": lambda: ledger.attempts(first), "deeds": lambda: ledger.deeds(first), "counts": ledger.counts,
        },
    }  # fmt: skip
    assert {
        one for one in vars(ports).values() if getattr(one, "_is_protocol", False) and one.__module__ == ports.__name__
    } - {ports.OperatorLedger, *REFUSED} <= set(asked)
    for protocol, questions in asked.items():
        assert set(questions) == questions_of(protocol), protocol
        for ask in questions.values():
            await ask()
    assert client.calls.total() > sum(map(len, asked.values()))
    assert set(client.calls) <= DOCUMENTED
