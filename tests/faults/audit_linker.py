"""A process that acts and links the audit as fast as it can, until somebody kills it. It says a line after each round."""

import asyncio
import os
import sys

from redrive.ledgers.open import open_database, open_ledger
from redrive.ledgers.sql.audit_lines import record
from redrive.operator.sql.chain import SqlChain
from redrive.ports import Actor

LINES = 20


async def link_for_ever(url: str) -> None:
    """Write lines and link whatever waits."""
    database = open_database(url, durable=False)
    ledger, chain, who = await open_ledger(database), SqlChain(database), Actor(name=f"p{os.getpid()}", reason="storm")
    done = 0
    while True:
        for _ in range(LINES):
            done += 1
            things = [f"{os.getpid()}-{done}"]
            await database.write(
                lambda connection, told=things: record(
                    connection, ledger=ledger.name, act="redrive", things=told, actor=who, at=ledger.present(connection)
                )
            )
        await chain.link()
        print(done, flush=True)


if __name__ == "__main__":
    asyncio.run(link_for_ever(sys.argv[1]))
