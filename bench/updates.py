"""What a hundred thousand updates leave behind, with PostgreSQL's own settings of the tables and with ours. `python -m bench.updates`.

Tasks fail once and succeed then, beside many that ended long ago: each is claimed and settled twice. Updates of a task cannot be HOT,
since each moves it between indexes; those of a counter can. Autovacuum looks every second here instead of every minute.
"""

import argparse
import asyncio
import sys
import time

import psycopg
from rich.console import Console
from rich.table import Table

from bench.servers import servers
from redrive import Fixed, Policy, Redrive, Task, TransientError, jitter, seconds
from redrive.lane import make_task
from redrive.ledgers.sql.migrate import migrate

ENDED = 200_000
TABLES = ("redrive_task", "redrive_attempt", "redrive_minute")
VACUUM = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05"
VARIANTS: dict[str, dict[str, str]] = {
    "as PostgreSQL comes": {},
    "tasks with fillfactor 70": {"redrive_task": "fillfactor = 70"},
    "chosen": {"redrive_task": VACUUM},
}
RESET = "RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_analyze_scale_factor)"


async def work(url: str, amount: int) -> float:
    """Work off tasks that fail once; the seconds that it took."""
    app = Redrive(url)

    @app.handler("work", policy=Policy(Fixed(seconds(0)), retries=2, jitter=jitter.none))
    async def handle(task: Task) -> None:
        if task.failures == 0:
            raise TransientError("not yet")

    async with app:
        for first in range(0, amount, 1000):
            await app.add_many(make_task("work", {}, key=f"new-{n}") for n in range(first, first + 1000))
        began = time.perf_counter()
        await app.work_off(app.tasks)
        return time.perf_counter() - began


async def make(url: str) -> None:
    app = Redrive(url)
    await migrate(app.database)
    await app.close()


def main(arguments: list[str]) -> int:
    """Print a table for each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=25_000, help="each is updated four times")
    given = parser.parse_args(arguments)
    console = Console(width=140)
    told = Table("variant", "table", "updates", "HOT", "dead rows", "vacuums", "table MiB", "indexes MiB", "seconds")
    with servers(None, postgres=True, rabbitmq=False) as running:
        assert running.postgres is not None
        for number, (variant, settings) in enumerate(VARIANTS.items()):
            url = running.postgres.create(f"v{number}")
            asyncio.run(make(url))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
                connection.execute("SELECT pg_reload_conf()")
                for name in TABLES:
                    connection.execute(f"ALTER TABLE {name} {RESET}")
                    if settings.get(name):
                        connection.execute(f"ALTER TABLE {name} SET ({settings[name]})")
                connection.execute(
                    "INSERT INTO redrive_task (key, kind, payload, state, created_at, updated_at, ended_at) "
                    f"SELECT 'old-' || n, 'work', '{{}}', 'done', now(), now(), now() FROM generate_series(1, {ENDED}) n"
                )
                connection.execute("VACUUM ANALYZE redrive_task")
                connection.execute("SELECT pg_stat_reset()")
                took = asyncio.run(work(url, given.tasks))
                time.sleep(2)
                for name in TABLES:
                    row = connection.execute(
                        "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup, autovacuum_count, pg_table_size(relid), pg_indexes_size(relid) "
                        "FROM pg_stat_user_tables WHERE relname = %s", [name]
                    ).fetchone()  # fmt: skip
                    updates, hot, dead, vacuums, size, indexes = row
                    share = f"{100 * hot / updates:.0f} %" if updates else "–"
                    told.add_row(
                        variant, name, f"{updates:,}", share, f"{dead:,}", str(vacuums), f"{size / 2**20:.1f}",
                        f"{indexes / 2**20:.1f}", f"{took:.1f}",
                    )  # fmt: skip
            running.postgres.drop(f"v{number}")
    console.print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
