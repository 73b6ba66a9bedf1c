"""How late tasks start, at a thousand a second while a million wait for their time. It needs a quiet machine.

`python -m proof.drift URL TASKS` is the worker: it says how late each started. `python -m proof.drift` without them only sleeps, and
says how late it woke: that is the machine's part, whoever else works on it.
"""

import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count

from sqlalchemy import Connection, text

from bench.limits import PARK
from proof.ground import STORES, ground_on
from proof.scenario import Found, scenario, sized
from redrive import Redrive, Task, seconds
from redrive.lane import make_task
from redrive.running import tuned_runner
from tests.forks import ROOT

GROUP = 10
P99_MS_MAX = 100.0
NAP_SECONDS = 0.01
PARKED_AT_ONCE = 100_000


@scenario("tasks start on time, however many wait")
def drift(short: bool) -> Iterator[Found]:
    """One process adds, another works; half are due at once, half one to three seconds later."""
    rate, span, parked = (100, 3, 10_000) if short else (1000, sized(600), 1_000_000)
    for store in STORES[1:] if short else STORES:
        with ground_on(store) as ground:
            late, asleep = asyncio.run(_drift(ground.url, rate, span, parked))
        tried = f"{store}: {rate:,} tasks/s for {span} s while {parked:,} wait"
        if len(late) < rate * span:
            yield Found(tried=tried, figure=f"only {len(late):,} of {rate * span:,} ran", holds=False)
            continue
        cuts, nap = statistics.quantiles(late, n=1000), statistics.quantiles(asleep, n=1000)
        yield Found(
            tried=tried,
            figure=f"p50 {cuts[499]:.1f} ms, p99 {cuts[989]:.1f} ms, p99.9 {cuts[998]:.1f} ms, at most {max(late):.0f} ms late; "
            f"a process beside them that only sleeps woke p99 {nap[989]:.1f} ms, p99.9 {nap[998]:.1f} ms late",
            holds=short or cuts[989] <= P99_MS_MAX,
        )


async def _drift(url: str, rate: int, span: int, parked: int) -> tuple[list[float], list[float]]:
    """How late tasks started, and how late a process that only sleeps woke meanwhile."""
    async with Redrive(url) as app:
        for first in range(0, parked, PARKED_AT_ONCE):
            await app.database.write(_park, first, min(parked, first + PARKED_AT_ONCE))
        if app.database.dialect.name == "postgresql":
            await app.database.statement(lambda connection: connection.execute(text("VACUUM ANALYZE redrive_task")))
        command = [sys.executable, "-W", "ignore", "-m", "proof.drift", url, str(rate * span)]
        worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        sleeper = await asyncio.create_subprocess_exec(
            *command[:5], cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert worker.stdout is not None
            assert await worker.stdout.readline(), "the worker did not start"
            began = time.monotonic()
            for number in count(0, GROUP):
                if number >= rate * span:
                    break
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                delay = seconds(0) if number // GROUP % 2 else seconds(1 + number // GROUP % 20 / 10)
                await app.add_many(
                    make_task("tick", n, key=f"t{n}", delay=delay) for n in range(number, number + GROUP)
                )
            late: list[float] = json.loads(await worker.stdout.read())
            slept, _ = await sleeper.communicate(b"")  # and no more comes
            return late, json.loads(slept)
        finally:
            for process in (worker, sleeper):
                if process.returncode is None:
                    process.kill()
                await process.wait()


def _park(connection: Connection, first: int, last: int) -> None:
    connection.execute(text(PARK[connection.dialect.name]), {"first": first, "last": last})


async def _work(url: str, tasks: int) -> None:
    late: list[float] = []
    enough = asyncio.Event()
    async with Redrive(url) as app:

        @app.handler("tick")
        async def tick(task: Task) -> None:
            assert task.due_at is not None
            late.append((time.time() - task.due_at.timestamp()) * 1000)
            if len(late) == tasks:
                enough.set()

        workers = app.workers()
        running = asyncio.create_task(workers.run())
        await workers.ready.wait()
        print("ready", flush=True)
        await enough.wait()
        workers.stop()
        await running
    print(json.dumps(late), flush=True)


def _sleep() -> None:
    """Until the input ends."""
    over, late = threading.Event(), list[float]()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.is_set():
        began = time.perf_counter()
        time.sleep(NAP_SECONDS)
        late.append((time.perf_counter() - began - NAP_SECONDS) * 1000)
    print(json.dumps(late))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with tuned_runner() as runner:  # as `redrive worker` runs
            runner.run(_work(sys.argv[1], int(sys.argv[2])))
    else:
        _sleep()
