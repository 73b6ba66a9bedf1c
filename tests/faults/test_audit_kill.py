"""Processes that link the audit are killed: the chain stays whole, and no line is lost, linked twice or left out."""

import random
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from redrive.ledgers.open import open_database
from redrive.ledgers.sql import schema
from redrive.operator.sql.chain import SqlChain
from tests import forks
from tests.breadth import WIDE

from .processes import Ground

KILLS = 6 if WIDE else 3
AT_ONCE = 3
WITHIN_SECONDS = 120
"""Only a real fault takes longer."""


def rounds(log: Path) -> int:
    """How often a process has linked."""
    return len(log.read_text().split())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_a_chain_survives_those_who_link_it(ground: Ground, rng: random.Random) -> None:
    """Three at a time write lines and link each other's; each is killed in the middle of a round."""
    living: list[tuple[forks.Process, Path]] = []
    for number in range(KILLS):
        while len(living) < AT_ONCE:
            log = ground.folder / f"linker-{number}-{len(living)}.log"
            living.append((forks.run(ground.url, module="tests.faults.audit_linker", folder=forks.ROOT, log=log), log))
        process, log = living.pop(0)
        ends, wanted = time.monotonic() + WITHIN_SECONDS, rounds(log) + rng.randint(1, 3)
        while rounds(log) < wanted:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, "it does not link"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(WITHIN_SECONDS)
    for process, _ in living:
        process.send_signal(signal.SIGKILL)
        process.wait(WITHIN_SECONDS)

    database = open_database(ground.url, durable=False)
    try:
        chain = SqlChain(database)
        while await chain.unlinked():
            await chain.link()
        verdict = await chain.verify()
        assert verdict.is_whole, verdict
        told = await database.read(
            lambda connection: connection.execute(
                select(func.count(), func.count(func.distinct(schema.deed.c.task_id)), func.count(schema.deed.c.line)).select_from(schema.deed)
            ).one()
        )  # fmt: skip
        assert tuple(told) == (verdict.lines,) * 3
        assert verdict.lines >= KILLS * 20
    finally:
        await database.close()
