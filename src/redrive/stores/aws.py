"""The store over DynamoDB and SQS. Only triggers is kept there: its events with their deliveries, and all that people look at.

    dynamodb://TABLE?queue=URL&dlq=URL&bucket=NAME&region=REGION&endpoint=URL&lease=SECONDS

The lease is how long a message may be worked on; the queue must hide it for so long.

Nothing is ever found by reading a whole table. What no index serves is refused with one sentence.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

from redrive.access.aws.keys import ItemKeys
from redrive.access.aws.sessions import ItemSessions
from redrive.access.ports import Keys, Sessions
from redrive.core.table import LedgerTable
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import SettingsError, UsageError
from redrive.ledgers.aws.checks import ItemPlaces, StoreFinding, check, examine
from redrive.ledgers.aws.client import Dynamo
from redrive.ledgers.aws.ledger import DynamoLedger
from redrive.ledgers.aws.objects import Objects
from redrive.ledgers.aws.open import OwnClients
from redrive.ledgers.aws.queue import Queue, SqsQueue
from redrive.ledgers.sql.beside import Beside
from redrive.operator.aws.alerts import ItemAlerts
from redrive.operator.aws.audit import ItemAudit
from redrive.operator.aws.census import ItemCensus
from redrive.operator.aws.chain import NoChain
from redrive.operator.aws.figures import ItemFigures
from redrive.operator.aws.gates import ItemGates
from redrive.operator.aws.kinds import NoKinds
from redrive.operator.aws.pages import ItemTaskPages
from redrive.operator.aws.roster import ItemRoster
from redrive.operator.aws.search import ItemSearch
from redrive.operator.aws.turns import ItemTurns
from redrive.operator.no_operations import NoOperations
from redrive.operator.ports import (
    Alerts,
    Audit,
    Chain,
    CountedKinds,
    Figures,
    Operations,
    OperatorLedger,
    Roster,
    Turns,
)
from redrive.ports import Clock, Filter
from redrive.stores.port import NO_TASKS, ON_ITEMS

NO_HISTORY = "policies are tried on the history of SQLite and PostgreSQL: in DynamoDB it lies with each event, and cannot be read in one go"
QUESTIONS = frozenset({"queue", "dlq", "bucket", "region", "endpoint", "lease"})


class ItemStore:
    """All that a table of DynamoDB holds; see `Store`."""

    keeps_tasks = False
    file: Path | None = None

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.places, self._region, self._endpoint, self._lease = read_url(url)
        self.url = f"dynamodb://{self.places.table}"
        self._clients = OwnClients(
            region=self._region, endpoint_url=self._endpoint, with_s3=self.places.bucket is not None
        )
        self.dynamo = Dynamo(self._clients.late.dynamodb, self.places.table)
        self.clock: Clock = clock or self.dynamo.clock
        self.queue: Queue = SqsQueue(self._clients.late.sqs, self.places.queue_url)
        self.objects = None if self.places.bucket is None else Objects(self._clients.late.s3, self.places.bucket)
        self.keys: Keys = ItemKeys(self.dynamo, clock=self.clock)
        self.sessions: Sessions = ItemSessions(self.dynamo, clock=self.clock)
        self.audit: Audit = ItemAudit(self.dynamo, clock=self.clock)
        self.chain: Chain = NoChain()
        self.figures: Figures = ItemFigures(self.dynamo, clock=self.clock)
        self.alerts: Alerts = ItemAlerts(self.dynamo, clock=self.clock)
        self.turns: Turns = ItemTurns(self.dynamo, clock=self.clock)
        self.roster: Roster = ItemRoster(self.dynamo, clock=self.clock)
        self.kinds: CountedKinds = NoKinds()
        self.operations: Operations = NoOperations()

    @property
    def database(self) -> NoReturn:
        """See `Store.database`: there is none."""
        raise UsageError(NO_TASKS)

    def now(self) -> datetime:
        """See `Store.now`."""
        return self.clock.now()

    async def present(self) -> datetime:
        """See `Store.present`: DynamoDB has no clock."""
        return self.clock.now()

    async def open(self, systems: Collection[str] = ()) -> None:
        """See `Store.open`. Table and queue are made by deploy/aws; here they are looked at."""
        if others := [name for name in systems if name != ON_ITEMS]:
            raise UsageError(f"{', '.join(others)}: {NO_TASKS}")
        await check(await self._clients.ready(), self.places, lease=self._lease)

    async def examine(self) -> list[StoreFinding]:
        """All that can be found out about table and queues without changing anything."""
        return await examine(await self._clients.ready(), self.places, lease=self._lease)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._clients.close()

    async def find_systems(self) -> list[str]:
        """See `Store.find_systems`."""
        return [ON_ITEMS]

    async def answers(self) -> None:
        """See `Store.answers`."""
        await self.dynamo.get(("nobody", "nobody"))

    def trouble(self) -> str | None:
        """See `Store.trouble`: whoever may read may write."""
        return None

    async def describe(self) -> str:
        """See `Store.describe`."""
        queue = self.places.queue_url.rpartition("/")[2]
        return f"DynamoDB{f' in {self._region}' if self._region else ''}, deliveries wait in the queue {queue}"

    def own_ledger(self) -> NoReturn:
        """See `Store.own_ledger`: refused."""
        raise UsageError(NO_TASKS)

    async def open_ledger(self, table: LedgerTable, *, beside: Beside | None = None) -> NoReturn:  # noqa: ARG002
        """See `Store.open_ledger`: refused."""
        raise UsageError(NO_TASKS)

    def pages(self, ledger: OperatorLedger, *, limited: bool = True) -> ItemTaskPages:
        """See `Store.pages`."""
        return ItemTaskPages(_of_items(ledger), limited=limited)

    def gates(self, ledger: OperatorLedger, *, limited: bool = True) -> ItemGates:  # noqa: ARG002 - every look is limited
        """See `Store.gates`."""
        return ItemGates(_of_items(ledger))

    def history(self, ledger: OperatorLedger) -> NoReturn:  # noqa: ARG002
        """See `Store.history`: refused."""
        raise UsageError(NO_HISTORY)

    def census(self, ledger: OperatorLedger) -> ItemCensus:
        """See `Store.census`."""
        return ItemCensus(_of_items(ledger))

    def search(self, ledger: OperatorLedger, asked: Filter, shown: Any) -> ItemSearch:
        """See `Store.search`."""
        return ItemSearch(_of_items(ledger), asked, shown)


def read_url(url: str) -> tuple[ItemPlaces, str | None, str | None, timedelta]:
    """The places that a URL names, the region, where AWS is, and the lease; `SettingsError` for anything else."""
    parts = urlsplit(url)
    asked = dict(parse_qsl(parts.query))
    lease = asked.get("lease", f"{WorkerSettings().lease.total_seconds():g}")
    if (
        not parts.netloc
        or not _is_seconds(lease)
        or parts.path.strip("/")
        or "queue" not in asked
        or not asked.keys() <= QUESTIONS
    ):
        raise SettingsError(
            f"{url!r:.200} names no store: write dynamodb://TABLE?queue=URL, and &dlq=URL, &bucket=NAME, &region=REGION, &endpoint=URL, &lease=SECONDS where needed"
        )
    places = ItemPlaces(parts.netloc, asked["queue"], asked.get("dlq"), asked.get("bucket"))
    return places, asked.get("region"), asked.get("endpoint"), timedelta(seconds=float(lease))


def _is_seconds(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _of_items(ledger: OperatorLedger) -> DynamoLedger:
    assert isinstance(ledger, DynamoLedger), "a ledger of this table"
    return ledger
