"""What gates cost: nothing where there are none, and nothing for what they keep back. `python -m bench.gates`.

All compared things take turns in rounds, and what is printed is the ratio of their medians: a noisy minute falls on both.

- a claim behind gates with a million tasks parked behind one that is shut, and with ten thousand shut or idle gates, beside an empty one;
- work without gates on a table that has a column for them, beside one that has none; and two that have none beside each other, as a control;
- how long a tenant's task waits for its start while another tenant's tasks fill every slot.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import uvloop
from rich.console import Console
from sqlalchemy import Connection, MetaData, Table
from sqlalchemy.schema import CreateIndex, CreateTable

from bench.frame import FLAT_BOUND, Limit, conclude, fresh, parser
from bench.servers import servers
from redrive import Redrive, Task, seconds
from redrive.app import WorkerSettings
from redrive.core.decide import decide
from redrive.core.outcome import Done
from redrive.core.policy import Policy
from redrive.core.table import TASKS, LedgerTable
from redrive.lane import make_task
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger
from redrive.ledgers.sql.predicates import ledger_indexes
from redrive.ports import Actor

LEASE = seconds(60)
BENCH = Actor(name="bench", reason="a bench")
UNGATED_BOUND = 1 / 0.97
"""Ungated work keeps 97 % of its speed: so much more processor time it may take."""
CONTROL_BOUND = 1.01
TENANT_BOUND_MS = 50.0
PAGE = 5_000
COPIED = 100_000
KINDS = ["tick"]
"""As a worker says them: who does not know its kinds looks for them first."""


# --- what is parked -----------------------------------------------------------------------------------------------------


async def parked_ratio(urls: tuple[str, str], parked: int, gates: int, claims: int) -> tuple[float, float]:
    """A claim that finds nothing behind gates: its median in ms on an empty database, and how much longer it takes on a full one."""
    async with Redrive(urls[0]) as empty, Redrive(urls[1]) as full:
        ledgers: list[Any] = [await app.tasks.ledger() for app in (empty, full)]
        for ledger in ledgers:  # one gate that has nothing to do, or no claim would look behind any
            await ledger.add([make_task("tick", 0, key="first", gate="first")])
            first = await ledger.claim(1, LEASE, kinds=KINDS)
            await ledger.settle([decide(claim, Done(), Policy()) for claim in first], worker="bench")
        if parked:
            await _park(full, "bank", parked)
        for start in range(0, gates, PAGE):
            few = range(start, min(gates, start + PAGE))
            await full.add_many(make_task("tick", n, key=f"g{n}", gate=f"endpoint:{n}") for n in few)
        if gates:
            # Half of them are shut, and half have nothing left to do.
            await full.database.write(_shut_half)
            while claimed := await ledgers[1].claim(1000, LEASE, kinds=KINDS):
                await ledgers[1].settle([decide(claim, Done(), Policy()) for claim in claimed], worker="bench")
        for app, ledger in zip((empty, full), ledgers, strict=True):
            while await app.database.read(_is_ready):  # a gate sleeps after a look that found nothing
                await ledger.claim(1000, LEASE, kinds=KINDS)
        await _analyzed(empty, full)
        return await _compared(
            [lambda ledger=ledger: ledger.claim(100, LEASE, kinds=KINDS) for ledger in ledgers], claims
        )


async def _park(app: Redrive, gate: str, amount: int) -> None:
    """One task by the ledger, and the others as copies of its row: to add a million of them would take longer than all else here."""
    ledger: Any = await app.tasks.ledger()
    await ledger.pause_gate(gate, BENCH)
    await app.add_many([make_task("tick", 0, key="p0", gate=gate)])
    for start in range(1, amount, COPIED):
        await app.database.write(_copy, start, min(amount, start + COPIED) - 1)


def _copy(connection: Connection, first: int, last: int) -> None:
    connection.exec_driver_sql(
        f"WITH RECURSIVE numbers (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) "
        "INSERT INTO redrive_task (key, kind, payload, state, due_at, created_at, updated_at, gate) "
        "SELECT 'p' || n, kind, payload, state, due_at, created_at, updated_at, gate FROM redrive_task, numbers WHERE key = 'p0'"
    )


def _shut_half(connection: Connection) -> None:
    connection.exec_driver_sql(
        "UPDATE redrive_gate SET ready = false, waits_for = 'person', paused_at = turn_at, paused_by = 'bench', reason = 'a bench',"
        " wake_at = NULL WHERE name LIKE 'endpoint:%' AND length(name) % 2 = 0"
    )


def _is_ready(connection: Connection) -> bool:
    return connection.exec_driver_sql("SELECT 1 FROM redrive_gate WHERE ready LIMIT 1").first() is not None


async def _analyzed(*apps: Redrive) -> None:
    for app in apps:
        postgres = app.database.dialect.name == "postgresql"
        said = "VACUUM ANALYZE" if postgres else "ANALYZE"
        await app.database.statement(lambda connection, said=said: connection.exec_driver_sql(said))


async def _compared(calls: Sequence[Callable[[], Awaitable[Any]]], rounds: int) -> tuple[float, float]:
    """The median of the first in ms, and the ratio of the second's to it; in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            assert await call() == []
            taken.append((time.perf_counter() - began) * 1000)
    first, second = (statistics.median(taken[rounds // 10 :]) for taken in times)
    return first, second / first


# --- what has no gate -----------------------------------------------------------------------------------------------------


def _shape(name: str, *, gated: bool) -> tuple[LedgerTable, Table]:
    told = replace(TASKS, name=name)
    if not gated:
        told = replace(told, gate=None, tenant=None, priority=None)
    table = schema.task.to_metadata(MetaData(), name=name)
    table.indexes.clear()
    for one in [one for one in table.constraints if one.name is not None]:
        one.name = f"{name}_{one.name}"[:60]
    ledger_indexes(told, table)
    return told, table


async def ungated_ratios(url: str, tasks: int, rounds: int) -> tuple[float, float, float]:
    """Add, claim and settle: µs of processor time a task without a column for gates; and how much more with one, and as a control without."""
    async with Redrive(url) as app:
        ledgers = []
        for name, gated in (("plain", False), ("with_gates", True), ("control", False)):
            told, table = _shape(name, gated=gated)
            await app.database.write(_create, table)
            ledgers.append(SqlLedger(app.database, told, table))
        spent: list[list[float]] = [[] for _ in ledgers]
        for round_ in range(rounds):
            order = list(range(len(ledgers)))
            for place in order if round_ % 2 else reversed(order):
                began = time.process_time()
                await _work(ledgers[place], tasks, round_)
                spent[place].append((time.process_time() - began) * 1e6 / tasks)
        plain, gated_, control = (statistics.median(one[1:]) for one in spent)
        return plain, gated_ / plain, control / plain


def _create(connection: Connection, table: Table) -> None:
    connection.execute(CreateTable(table))
    for index in table.indexes:
        connection.execute(CreateIndex(index))


async def _work(ledger: SqlLedger, tasks: int, round_: int) -> None:
    for start in range(0, tasks, 500):
        await ledger.add([make_task("tick", n, key=f"{round_}-{start + n}") for n in range(500)])
        claims = await ledger.claim(500, LEASE, kinds=["tick"], gates=False)
        assert len(claims) == 500
        await ledger.settle([decide(claim, Done(), Policy()) for claim in claims], worker="bench")


# --- a tenant that hangs --------------------------------------------------------------------------------------------------


async def tenant_ms(url: str, hanging: int, tries: int) -> tuple[list[float], list[float]]:
    """From adding a task of one tenant to its start: on an idle worker, and while all slots hang with another tenant's."""
    starts: dict[str, asyncio.Future[float]] = {}
    ended = asyncio.Event()
    found = []
    async with Redrive(url) as app:
        app.gate("endpoint:*", concurrency=10)

        @app.handler("deliver")
        async def deliver(task: Task) -> None:
            if task.tenant == "hog":
                await ended.wait()
            else:
                starts[task.key].set_result(time.perf_counter())

        workers = app.workers(WorkerSettings(concurrency=100))
        running = asyncio.create_task(workers.run())
        await workers.ready.wait()
        for load in ("idle", "hanging"):
            if load == "hanging":
                for start in range(0, hanging, PAGE):
                    few = range(start, min(hanging, start + PAGE))
                    await app.add_many(
                        make_task("deliver", key=f"h{n}", gate=f"endpoint:{n % 1000}", tenant="hog") for n in few
                    )
                await asyncio.sleep(3)
            late = []
            for number in range(tries):
                key = f"{load}-{number}"
                starts[key] = asyncio.get_running_loop().create_future()
                began = time.perf_counter()
                await app.add("deliver", key=key, gate="endpoint:other", tenant="other")
                late.append((await asyncio.wait_for(starts[key], 30) - began) * 1000)
                await asyncio.sleep(0.05)
            found.append(late)
        ended.set()
        workers.stop()
        await running
    return found[0], found[1]


# --- together -------------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, console: Console) -> list[Limit]:
    limits: list[Limit] = []

    def keep(measure: str, store: str, value: float, unit: str, bound: float) -> None:
        limits.append(Limit(measure, store, round(value, 3), unit, round(bound, 3)))
        console.print(f"{store}: {measure}: {value:.3f} {unit} (at most {bound:.3f})", highlight=False)

    with servers(options.folder, postgres="postgres" in options.stores, rabbitmq=False) as running:
        for store in options.stores:
            both = fresh(running, store, "gates_empty_1"), fresh(running, store, "gates_parked")
            first, ratio = uvloop.run(parked_ratio(both, options.parked, 0, options.claims))
            keep(
                f"claim with {options.parked:,} parked behind a shut gate / empty ({first:.2f} ms)",
                store,
                ratio,
                "×",
                FLAT_BOUND,
            )
            both = fresh(running, store, "gates_empty_2"), fresh(running, store, "gates_many")
            first, ratio = uvloop.run(parked_ratio(both, 0, options.gates, options.claims))
            keep(
                f"claim with {options.gates:,} gates shut or idle / empty ({first:.2f} ms)",
                store,
                ratio,
                "×",
                FLAT_BOUND,
            )
            plain, gated, control = uvloop.run(
                ungated_ratios(fresh(running, store, "gates_ungated"), options.tasks, options.rounds)
            )
            keep(f"work without a gate, table with gates / without ({plain:.0f} µs)", store, gated, "×", UNGATED_BOUND)
            keep("the control: two tables without", store, control, "×", CONTROL_BOUND)
            idle, late = uvloop.run(tenant_ms(fresh(running, store, "gates_tenant"), options.hanging, 20))
            for which, of in (("usual", statistics.median), ("slowest", max)):
                keep(f"{which} start of a tenant's task while {options.hanging:,} of another hang (idle {of(idle):.1f} ms)", store,
                     of(late), "ms", 2 * of(idle) + TENANT_BOUND_MS)  # fmt: skip
    return limits


def main(argv: Sequence[str]) -> int:
    arguments = parser("gates", __doc__)
    arguments.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    arguments.add_argument("--parked", type=int, default=1_000_000, help="tasks behind a shut gate")
    arguments.add_argument("--gates", type=int, default=10_000, help="gates that are shut or idle")
    arguments.add_argument("--claims", type=int, default=200, help="claims of each")
    arguments.add_argument("--tasks", type=int, default=20_000, help="tasks without a gate in a round")
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--hanging", type=int, default=10_000)
    options = arguments.parse_args(argv)
    console = Console()
    limits = measure(options, console)
    return conclude(limits, options.output, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
