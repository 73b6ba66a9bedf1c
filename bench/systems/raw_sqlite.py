"""The raw limit on SQLite: the sqlite3 module and a few statements, doing the durable work of redrive and nothing else.

It works on redrive's own tables, with their indexes and constraints, and reads and writes what redrive does. Every batch of 1,000 is claimed with a fence and a lease, and settled
with the fence checked, one row of history per claim and all counters of the minute added up. WAL with synchronous=FULL: each transaction is on the disk when its commit returns.

Adding: one transaction for each batch, idempotent on the key.
"""

import json
import sqlite3
import time
import uuid
from typing import Any

from bench.job import ADD_BATCH, Audit, FirstTryError, Job, Tally
from bench.systems import redrive
from bench.systems.raw_postgres import EXPLANATION, HISTORY
from redrive.core.histograms import took_bucket, tries_bucket
from redrive.ledgers.build import build
from redrive.ledgers.rollup import COUNTED
from redrive.running import tuned_runner

BATCH = 1_000
"""As redrive takes them."""
LEASE_MICROSECONDS = 60_000_000
LEDGER = "raw"
WORKER = "bench"

ADD = """
insert into redrive_task (key, kind, payload, due_at, created_at, updated_at) values (?, 'attempt', ?, ?, ?, ?)
    on conflict (key) do nothing
"""

SEEN_RETRIES = """
select count(*) from (
    select 1 from redrive_task where gate is null and state = 'waiting' and failures > 0 and lease_until is null and kind = 'attempt' and coalesce(due_at, 0) <= ? limit ?
)
"""
CLAIM = """
update redrive_task set state = 'claimed', claim_id = ?, lease_until = ?, claimed_at = ?, updated_at = ?
 where id in (
    select id from redrive_task
     where gate is null and state = 'waiting' and failures {which} and lease_until is null and kind = 'attempt' and coalesce(due_at, 0) <= ?
     order by coalesce(due_at, 0) limit ?
 )
returning id, payload, failures, created_at, key, kind, failures_max, redrives, due_at, deadline_at, last_error, trace,
          gate, tenant, priority
"""
CLAIM_FIRST = CLAIM.format(which="<= 0")
CLAIM_RETRY = CLAIM.format(which="> 0")

SETTLE = """
update redrive_task
   set state = batch.value ->> 1, failures = batch.value ->> 2, due_at = ? + (batch.value ->> 3),
       lease_until = null, claim_id = null,
       last_error = coalesce(batch.value ->> 4, last_error), updated_at = ?,
       ended_at = case batch.value ->> 1 when 'done' then ? end
  from json_each(?) as batch
 where redrive_task.id = batch.value ->> 0 and redrive_task.claim_id = ?
"""
RECORD = f"insert into redrive_attempt ({', '.join(HISTORY)}) values ({', '.join('?' * len(HISTORY))})"
COUNT_MINUTE = f"""
insert into redrive_minute (minute, ledger, worker, {", ".join(COUNTED)}, run_seconds)
values (?, ?, ?, {"?, " * len(COUNTED)}?)
    on conflict (minute, ledger, worker) do update
   set {", ".join(f"{name} = {name} + excluded.{name}" for name in (*COUNTED, "run_seconds"))}
"""

AUDIT = """
select (select count(*) from redrive_task where state <> 'done') as left,
       (select count(*) from redrive_task where state = 'done') as done,
       (select count(*) from redrive_attempt where state = 'done') as done_attempts,
       (select count(*) from redrive_attempt where state = 'waiting') as failed_attempts,
       (select coalesce(sum(done), 0) from redrive_minute) as done_counted,
       (select coalesce(sum(retried), 0) from redrive_minute) as failed_counted
"""


def connect(job: Job) -> sqlite3.Connection:
    connection = sqlite3.connect(job.url, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection


def now_microseconds() -> int:
    return time.time_ns() // 1_000


def prepare(job: Job) -> None:
    redrive.prepare(job)


def add(job: Job) -> None:
    connection = connect(job)
    for first in range(0, job.tasks, ADD_BATCH):
        numbers = range(first, min(first + ADD_BATCH, job.tasks))
        now = now_microseconds()
        connection.execute("begin immediate")
        connection.executemany(ADD, [(f"task-{number}", str(number), now, now, now) for number in numbers])
        connection.execute("commit")
    connection.close()


def work(job: Job, tally: Tally) -> None:
    """Settling one batch and claiming the next is one transaction: one wait for the disk for each batch."""
    tuned_runner().close()  # the garbage collector as a worker sets it
    connection = connect(job)
    done = 0
    connection.execute("begin immediate")
    claim_id, started_at, claimed = claim(connection)
    connection.execute("commit")
    while done < job.tasks:
        attempts = [attempt(tally, *task[:3]) for task in claimed]
        connection.execute("begin immediate")
        done += settle(connection, claim_id, started_at, attempts, [task[3] for task in claimed])
        claim_id, started_at, claimed = claim(connection)
        connection.execute("commit")
    connection.close()


def claim(connection: sqlite3.Connection) -> tuple[str, int, list[tuple[Any, ...]]]:
    """Retries first, but at least a quarter for first tries while any are due."""
    now = now_microseconds()
    claim_id = uuid.uuid4().hex
    hold = (claim_id, now + LEASE_MICROSECONDS, now, now, now)
    [seen] = connection.execute(SEEN_RETRIES, (now, BATCH * 3 // 4)).fetchone()
    claimed = connection.execute(CLAIM_FIRST, (*hold, BATCH - seen)).fetchall()
    claimed += connection.execute(CLAIM_RETRY, (*hold, BATCH - len(claimed))).fetchall()
    return claim_id, now, claimed


def attempt(tally: Tally, task_id: int, payload: str, failures: int) -> tuple[Any, ...]:
    """Run the handler: task, state, failures, delay, error, seconds, outcome, class and explanation."""
    started = time.perf_counter()
    try:
        tally.attempt(int(payload), first_try=failures == 0)
    except FirstTryError as error:
        seconds = time.perf_counter() - started
        told = f"{type(error).__name__}: {error}"
        return (task_id, "waiting", failures + 1, 0, told, seconds, "failed", "transient", EXPLANATION)
    return (task_id, "done", failures, None, None, time.perf_counter() - started, "done", None, None)


def settle(
    connection: sqlite3.Connection, claim_id: str, started_at: int, attempts: list[tuple[Any, ...]], created: list[int]
) -> int:
    """End the claims, write their history, count the minute. How many tasks are done by it."""
    now = now_microseconds()
    batch = json.dumps([each[:5] for each in attempts])
    settled = connection.execute(SETTLE, (now, now, now, batch, claim_id)).rowcount
    if settled != len(attempts):
        raise RuntimeError(f"{len(attempts) - settled} claims were lost, though nobody else is at work")
    version = build()
    connection.executemany(
        RECORD,
        [
            (LEDGER, str(task_id), claim_id, failures + (state == "done"), started_at, now, outcome, state, WORKER,
             seconds, delay, error_class, error, explanation, version)
            for task_id, state, failures, delay, error, seconds, outcome, error_class, explanation in attempts
        ],
    )  # fmt: skip
    amounts = dict.fromkeys(COUNTED, 0)
    for at, (_, state, failures, _, _, seconds, *_) in zip(created, attempts, strict=True):
        if state == "done":
            amounts["done"] += 1
            amounts[tries_bucket(failures + 1)] += 1
            amounts[took_bucket((started_at - at) / 1_000_000 + seconds)] += 1
        else:
            amounts["retried"] += 1
    minute = now - now % 60_000_000
    run_seconds = sum(each[5] for each in attempts)
    connection.execute(COUNT_MINUTE, (minute, LEDGER, WORKER, *amounts.values(), run_seconds))
    return amounts["done"]


def audit(job: Job) -> Audit:
    """Tasks, history and rollup must tell the same story."""
    connection = connect(job)
    left, done, done_attempts, failed_attempts, done_counted, failed_counted = connection.execute(AUDIT).fetchone()
    connection.close()
    if (done_attempts, failed_attempts) != (done_counted, failed_counted):
        raise RuntimeError(f"history and rollup differ: {done_attempts=} {done_counted=} {failed_attempts=}")
    if done != done_attempts:
        raise RuntimeError(f"tasks and history differ: {done=} {done_attempts=}")
    return Audit(left=left, succeeded=done_attempts, failed=failed_attempts)
