"""The raw limit on PostgreSQL: asyncpg and two statements, doing the durable work of redrive and nothing else.

It works on redrive's own tables, with their indexes and constraints, and reads and writes what redrive does. Every batch of 1,000 is claimed with a fence and a
lease, and settled by one statement that locks what nobody else has locked, checks the fence, writes one row of history per claim and adds up all counters of the
minute. Two connections take turns, so the server writes one batch while this process runs another: a connection for claims and one
for settlements did 18,000 a second at fail_once where this does 28,000. Every commit is synchronous.

Adding: one statement for each batch, idempotent on the key, over both connections in turn.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any

import asyncpg

from bench.job import ADD_BATCH, Audit, FirstTryError, Job, Tally
from bench.systems import redrive
from redrive.core.histograms import took_bucket, tries_bucket
from redrive.ledgers.build import build
from redrive.ledgers.rollup import COUNTED

BATCH = 1_000
"""As redrive takes them."""
STREAMS = 2
IDLE_SECONDS = 0.001
TRIES_MAX = 10_000
LEASE = timedelta(seconds=60)
RETRY_DELAY = timedelta(0)
LEDGER = "raw"
WORKER = "bench"
EXPLANATION = json.dumps(
    {
        "error_class": "transient", "rule": "default", "policy": "default", "verdict": "retry", "backoff": "fixed 0s",
        "jitter": "none", "cap_seconds": None, "failures": 1, "failures_max": 3, "budget_left": 2, "wait_seconds": 0.0,
        "delay_seconds": 0.0, "stack": "0123456789abcdef", "at": "bench/job.py:93 in attempt",
    }
)  # fmt: skip
"""As long as one of redrive's."""

HISTORY = (
    "ledger", "task_id", "claim_id", "number", "started_at", "ended_at", "outcome", "state", "worker", "duration_seconds",
    "delay_seconds", "error_class", "error", "explanation", "version",
)  # fmt: skip

ADD = """
insert into redrive_task (key, kind, payload, due_at, created_at, updated_at)
select key, 'attempt', payload, statement_timestamp(), statement_timestamp(), statement_timestamp()
  from unnest($1::text[], $2::json[]) as added (key, payload)
    on conflict (key) do nothing
"""

# Retries first, but at least a quarter for first tries while any are due. State words are literals and the ids go
# through an array: bound words hide the partial indexes, and a join may be planned through the wrong one.
CLAIM = """
with seen as materialized (
    select count(*) as amount from (
        select 1 from redrive_task
         where gate is null and state = 'waiting' and failures > 0 and lease_until is null and kind = 'attempt' and coalesce(due_at, '-infinity'::timestamptz) <= statement_timestamp()
         limit $1 * 3 / 4
    ) as few
), first as materialized (
    select id from redrive_task
     where gate is null and state = 'waiting' and failures <= 0 and lease_until is null and kind = 'attempt' and coalesce(due_at, '-infinity'::timestamptz) <= statement_timestamp()
     order by coalesce(due_at, '-infinity'::timestamptz) limit $1 - (select amount from seen)
       for update skip locked
), retry as materialized (
    select id from redrive_task
     where gate is null and state = 'waiting' and failures > 0 and lease_until is null and kind = 'attempt' and coalesce(due_at, '-infinity'::timestamptz) <= statement_timestamp()
     order by coalesce(due_at, '-infinity'::timestamptz) limit $1 - (select count(*) from first)
       for update skip locked
)
update redrive_task
   set state = 'claimed', claim_id = $2, lease_until = statement_timestamp() + $3,
       claimed_at = statement_timestamp(), updated_at = statement_timestamp()
 where id = any (array (select id from first union all select id from retry))
returning id, key, kind, payload, failures, failures_max, redrives, due_at, deadline_at, last_error, trace, created_at,
          gate, tenant, priority, claimed_at
"""

SETTLE = f"""
with free as materialized (
    select id from redrive_task where id = any ($3) and claim_id = $1 for no key update skip locked
), settled as (
    update redrive_task
       set state = batch.state, failures = batch.failures, due_at = statement_timestamp() + batch.delay,
           lease_until = null, claim_id = null, last_error = coalesce(batch.error, redrive_task.last_error),
           updated_at = statement_timestamp(),
           ended_at = case when batch.state = 'done' then statement_timestamp() end
      from rows from (
               unnest($3::bigint[]), unnest($4::text[]), unnest($5::integer[]), unnest($6::interval[]),
               unnest($7::double precision[]), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]),
               unnest($11::json[]), generate_series(1, cardinality($3::bigint[]))
           ) as batch (id, state, failures, delay, duration, outcome, error_class, error, explanation)
     where redrive_task.id = batch.id and redrive_task.id = any (array (select id from free))
       and (select count(*) from free) = cardinality($3::bigint[])
    returning batch.*
), history as (
    insert into redrive_attempt ({", ".join(HISTORY)})
    select '{LEDGER}', id::text, $1, failures + (state = 'done')::integer, $2, statement_timestamp(), outcome, state,
           '{WORKER}', duration, extract(epoch from delay), error_class, error, explanation, $14
      from settled
), counted as (
    insert into redrive_minute (minute, ledger, worker, {", ".join(COUNTED)}, run_seconds)
    select date_trunc('minute', statement_timestamp()), '{LEDGER}', '{WORKER}',
           {", ".join(f"($12::bigint[])[{position}]" for position in range(1, len(COUNTED) + 1))}, $13
     where exists (select from settled)
        on conflict (minute, ledger, worker) do update
       set {", ".join(f"{name} = redrive_minute.{name} + excluded.{name}" for name in (*COUNTED, "run_seconds"))}
)
select count(*) from settled
"""

AUDIT = """
select (select count(*) from redrive_task where state <> 'done') as left,
       (select count(*) from redrive_task where state = 'done') as done,
       (select count(*) from redrive_attempt where state = 'done') as done_attempts,
       (select count(*) from redrive_attempt where state = 'waiting') as failed_attempts,
       (select coalesce(sum(done), 0) from redrive_minute) as done_counted,
       (select coalesce(sum(retried), 0) from redrive_minute) as failed_counted
"""


async def connect(job: Job) -> asyncpg.Connection:
    """Plans cached while a table is small stay; without sequential scans they stay good."""
    return await asyncpg.connect(job.url, server_settings={"timezone": "UTC", "enable_seqscan": "off", "jit": "off"})


def prepare(job: Job) -> None:
    redrive.prepare(job)


def add(job: Job) -> None:
    batches = iter(range(0, job.tasks, ADD_BATCH))

    async def insert() -> None:
        connection = await connect(job)
        statement = await connection.prepare(ADD)
        for first in batches:
            numbers = range(first, min(first + ADD_BATCH, job.tasks))
            await statement.fetch([f"task-{n}" for n in numbers], [str(n) for n in numbers])
        await connection.close()

    async def insert_in_streams() -> None:
        await asyncio.gather(*(insert() for _ in range(STREAMS)))

    redrive.run(insert_in_streams())


def work(job: Job, tally: Tally) -> None:
    redrive.run(Loop(job, tally).run())


class Loop:
    """Streams that take turns: while the server writes for one, this process runs the batch of the other."""

    def __init__(self, job: Job, tally: Tally) -> None:
        self.job = job
        self.tally = tally
        self.done = 0

    async def run(self) -> None:
        await asyncio.gather(*(self.stream() for _ in range(STREAMS)))

    async def stream(self) -> None:
        """Claim, run, settle, until every task is done."""
        connection = await connect(self.job)
        claim, settle = await connection.prepare(CLAIM), await connection.prepare(SETTLE)
        while self.done < self.job.tasks:
            claim_id = uuid.uuid4()
            # In the order of the ids, so that two settlements never wait for each other crosswise.
            rows = sorted(await claim.fetch(BATCH, claim_id, LEASE), key=itemgetter("id"))
            if not rows:
                await asyncio.sleep(IDLE_SECONDS)
                continue
            settlements = [self.attempt(row["id"], row["payload"], row["failures"]) for row in rows]
            columns = [list(column) for column in zip(*settlements, strict=True)]
            claimed_at = rows[0]["claimed_at"]
            amounts = counted((row["created_at"] for row in rows), claimed_at, settlements)
            settling = (claim_id, claimed_at, *columns, amounts, sum(columns[4]), build())
            # The other stream's claim may have locked a row that it saw before it was claimed here: all or nothing, so once more.
            for _ in range(TRIES_MAX):
                if settled := await settle.fetchval(*settling):
                    break
                await asyncio.sleep(IDLE_SECONDS)
            if settled != len(rows):
                raise RuntimeError(f"{len(rows) - settled} claims were lost, though every lease is long")
            self.done += columns[1].count("done")
        await connection.close()

    def attempt(self, task_id: int, payload: str, failures: int) -> tuple[Any, ...]:
        """Run the handler; what comes back is one row of the settlement."""
        started = time.perf_counter()
        try:
            self.tally.attempt(int(payload), first_try=failures == 0)
        except FirstTryError as error:
            seconds = time.perf_counter() - started
            failed = ("transient", f"{type(error).__name__}: {error}", EXPLANATION)
            return (task_id, "waiting", failures + 1, RETRY_DELAY, seconds, "failed", *failed)
        return (task_id, "done", failures, None, time.perf_counter() - started, "done", None, None, None)


def counted(created: Iterable[datetime], claimed_at: datetime, settlements: Iterable[tuple[Any, ...]]) -> list[int]:
    """What a batch adds to the counters of its minute: states, tries, and how long tasks took."""
    amounts = dict.fromkeys(COUNTED, 0)
    for at, (_, state, failures, _, seconds, *_) in zip(created, settlements, strict=True):
        if state == "done":
            amounts["done"] += 1
            amounts[tries_bucket(failures + 1)] += 1
            amounts[took_bucket((claimed_at - at).total_seconds() + seconds)] += 1
        else:
            amounts["retried"] += 1
    return list(amounts.values())


def audit(job: Job) -> Audit:
    """Tasks, history and rollup must tell the same story."""

    async def count() -> Audit:
        connection = await connect(job)
        row = await connection.fetchrow(AUDIT)
        await connection.close()
        if (row["done_attempts"], row["failed_attempts"]) != (row["done_counted"], row["failed_counted"]):
            raise RuntimeError(f"history and rollup differ: {dict(row)}")
        if row["done"] != row["done_attempts"]:
            raise RuntimeError(f"tasks and history differ: {dict(row)}")
        return Audit(left=row["left"], succeeded=row["done_attempts"], failed=row["failed_attempts"])

    return redrive.run(count())
