"""Sunday night at 21:41, as facts: a deploy broke a kind, a bank is away, a worker was killed, and a kind has recovered."""

from datetime import UTC, datetime, timedelta

from redrive.core.gate_rules import GateRule
from redrive.core.gates import WaitsFor
from redrive.core.states import State
from redrive.operator.gates import GateDoes, GateView, RuleView
from redrive.operator.roster import WorkerSeen
from redrive.operator.verdict import CauseFacts, Facts, HeldFacts, KindFacts, KindPoint, LedgerNow, StoreNow

LEDGER = "redrive_task"
NOW = datetime(2026, 3, 15, 21, 41, 52, tzinfo=UTC)
"""A Sunday."""


def at(clock: str) -> datetime:
    """`21:35:40` of that night."""
    hour, minute, *second = (int(part) for part in clock.split(":"))
    return NOW.replace(hour=hour, minute=minute, second=second[0] if second else 0)


def worker(name: str, *, started: str, held: int = 5, seen: datetime | None = None, **given: object) -> WorkerSeen:
    host, _, pid = name.partition(":")
    facts = {
        "name": name, "host": host, "pid": int(pid), "version": "4f2a", "slots": 16, "holds": {LEDGER: {"mail.send": held}},
        "started_at": at(started), "seen_at": seen or NOW - timedelta(seconds=2), "stopped_at": None, "lease": timedelta(seconds=260),
    }  # fmt: skip
    return WorkerSeen(**(facts | given))  # type: ignore[arg-type]


WORKERS = (
    worker("app-3:2217", started="21:34:40", seen=at("21:38:12"), held=6,
           holds={LEDGER: {"mail.send": 3, "payment.capture": 2, "crm.sync": 1}}),
    worker("app-3:2219", started="21:34:41"),
    worker("app-1:902", started="21:34:12", held=6),
    worker("app-1:904", started="21:34:12", held=4),
    worker("app-2:1871", started="21:34:26", held=7),
    worker("app-2:1873", started="21:34:26"),
    worker("app-4:3310", started="21:34:55", held=6),
    worker("app-4:3312", started="21:34:56", held=4),
    worker("app-1:801", started="08:30:00", version="9c1e", stopped_at=at("21:34:10"), seen=at("21:34:10"), held=0),
)  # fmt: skip

MAIL = CauseFacts(
    ledger=LEDGER, id="9f86d081884c7d65", kind="mail.send", error="AttributeError: 'NoneType' object has no attribute 'body'",
    at="shop/mail.py:23 in render", since=at("21:35:40"), last_failure=NOW - timedelta(seconds=1), failures=812, tries=812,
    lately=655, died_lately=81, points=(*[0] * 53, 44, 128, 131, 127, 133, 130, 119),
    first_version="4f2a", last_version="4f2a", dead=81, dead_from=at("21:39:22"), dead_to=NOW - timedelta(seconds=1), waiting=120,
    tries_max=6, lasts=timedelta(seconds=240), arrives=32,
)  # fmt: skip

CRM = CauseFacts(
    ledger=LEDGER, id="2c26b46b68ffc68f", kind="crm.sync", error="HTTPStatusError: 503 Service Unavailable", at="shop/crm.py:61 in sync",
    since=at("20:41:03"), last_failure=at("21:12:11"), failures=3767, tries=3790, first_version="9c1e", last_version="9c1e",
    dead=1318, dead_from=at("20:41:40"), dead_to=at("21:12:11"), waiting=4, recovered_at=at("21:12:20"), tries_since=1074,
    points=(*[128] * 30, 52, *[0] * 29),
)  # fmt: skip

LIMITS = GateRule(concurrency=5, rate=20, failures=10, within=timedelta(minutes=1), probe=timedelta(seconds=30))


def gate(name: str, does: GateDoes, **given: object) -> GateView:
    rule = RuleView(pattern="*", rule=LIMITS, set_by="code", reason="", set_at=at("08:30"))
    facts = {
        "ledger": LEDGER, "name": name, "does": does, "why": "", "since": None, "until": None, "waits_for": None, "next_probe": None,
        "paused_at": None, "paused_until": None, "paused_by": None, "reason": None, "held": 0, "tries": 0.0, "failures": 0.0, "trips": 0,
        "rule": rule, "kinds": (), "tenant": "", "parked": 0, "version": 0, "at": NOW,
    }  # fmt: skip
    return GateView(**(facts | given))  # type: ignore[arg-type]


BANK = HeldFacts(
    gate=gate("bank:DE", GateDoes.HOLDING, since=at("21:29:05"), until=at("21:42:05"), next_probe=at("21:42:05"), waits_for=WaitsFor.PROBE,
              trips=1, parked=1204, kinds=("payment.capture",)),
    error="ConnectionRefusedError: pay.example:443", probes=25, points=(*[0] * 47, *range(0, 1300, 100)),
)  # fmt: skip
ACME = HeldFacts(
    gate=gate("endpoint:acme", GateDoes.PAUSED, since=at("21:10"), paused_at=at("21:10"), paused_until=at("22:30"), paused_by="ada",
              reason="acme moves its server", parked=86, kinds=("webhook.deliver",)),
)  # fmt: skip


def kind(
    name: str,
    tries: int,
    failures: int,
    p50: float,
    p95: float,
    oldest: float,
    waiting: int,
    parked: int = 0,
    dead: int = 0,
) -> KindFacts:
    points = [
        KindPoint(NOW.replace(second=0) - timedelta(minutes=back), tries // 5, failures // 5)
        for back in range(59, -1, -1)
    ]
    return KindFacts(
        ledger=LEDGER, kind=name, tries=tries, failures=failures, p50=timedelta(milliseconds=p50), p95=timedelta(milliseconds=p95),
        oldest_due=timedelta(seconds=oldest), waiting=waiting, parked=parked, dead=dead, points=points,
    )  # fmt: skip


KINDS = (
    kind("order.confirm", 1235, 5, 41, 180, 0.3, 21),
    kind("webhook.deliver", 770, 8, 96, 410, 4, 28, parked=86),
    kind("mail.send", 655, 655, 9, 31, 1, 120, dead=81),
    kind("stock.reserve", 503, 0, 12, 44, 0.1, 0),
    kind("invoice.render", 260, 1, 610, 1900, 1.1, 6),
    kind("payment.capture", 214, 10, 212, 890, 0.4, 9, parked=1204),
    kind("crm.sync", 178, 0, 340, 1100, 0.2, 4, dead=1318),
    *(kind(f"other.kind{number}", 40 - number, 0, 20, 60, 0.1, 0) for number in range(8)),
)

SUNDAY = Facts(
    now=NOW,
    store=StoreNow(
        wrote_at=NOW - timedelta(seconds=1), write_took=timedelta(milliseconds=3), settled_at=NOW - timedelta(seconds=0.4)
    ),
    ledgers=[
        LedgerNow(
            ledger=LEDGER, amounts={State.WAITING: 188 + 1290, State.CLAIMED: 37, State.DONE: 9_000_000, State.DEAD: 1399},
            oldest_due=timedelta(seconds=4), done_lately=41_286, dead_lately=81, next_due=timedelta(seconds=0.3),
        )
    ],
    kinds=KINDS, causes=(MAIL, CRM), held=(BANK, ACME), workers=WORKERS,
)  # fmt: skip

CALM = Facts(
    now=datetime(2026, 3, 16, 9, 14, 7, tzinfo=UTC),
    store=StoreNow(
        wrote_at=datetime(2026, 3, 16, 9, 14, 6, tzinfo=UTC), write_took=timedelta(milliseconds=3),
        settled_at=datetime(2026, 3, 16, 9, 14, 6, 900_000, tzinfo=UTC),
    ),
    ledgers=[
        LedgerNow(
            ledger=LEDGER, amounts={State.WAITING: 61, State.CLAIMED: 34, State.DONE: 9_100_000}, oldest_due=timedelta(seconds=0.2),
            done_lately=38_902, next_due=timedelta(seconds=0.8),
        )
    ],
    kinds=[kind(f"kind{number}", 1000 - number, 3, 40, 171, 0.2, 18) for number in range(15)],
    workers=[
        worker(f"app-{number}:90{number}", started="21:50", version="51bd", seen=datetime(2026, 3, 16, 9, 14, 5, tzinfo=UTC), slots=16)
        for number in range(8)
    ],
    last_trouble_at=datetime(2026, 3, 15, 22, 4, tzinfo=UTC),
)  # fmt: skip
"""Monday at 09:14: nothing is wrong."""
