"""The examples of the page do what it says, in a program of their own, since they register handlers for the whole process."""

import re
import subprocess
import sys
from pathlib import Path

from redrive.systems import commands

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "systems" / "commands.md").read_text()

STORY = """
import asyncio
from sqlalchemy.ext.asyncio import AsyncSession

async def done(**asked):
    return sorted(one.command_id for one in (await bus.query_commands(**asked)).items)

async def story():
    async with app:
        await order()
        working = asyncio.create_task(work())
        while await done(status="COMPLETED") != ["debit-7"]:
            await asyncio.sleep(0.01)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await settle_orders()
        async with app.database.transaction() as transaction, AsyncSession(transaction.connection) as session:
            await place_order(session, 8)
        assert await done(status="PENDING") == ["debit-8"]
        batch = await nightly()
        assert (batch.total, batch.pending, batch.name) == (3, 3, "nightly")
        for command_id, data in (("r-1", {"amount": 101}), ("r-2", {"amount": 1, "account": None}), ("r-3", {"amount": 1, "account": 1})):
            await bus.send("payments", "Refund", command_id, data)
        await bus.send("shipping", "Pack", "p-1")
        await bus.send("shipping", "Ship", "p-2")
        await app.work_off(bus.lane)
        assert await done(status="FAILED") == ["r-1"]
        assert await done(status="IN_TROUBLESHOOTING_QUEUE") == ["r-2"]
        assert await done(domain="shipping", status="COMPLETED") == ["p-1", "p-2"]
        await look_after()
        assert await done(status="PENDING") == ["r-2", "r-3"]
        assert (await bus.get_batch("payments", batch.batch_id)).status == "COMPLETED"

asyncio.run(story())
print("the end")
"""


def test_the_examples_work(tmp_path: Path) -> None:
    """All code of the page, in its order, and then a day in its life."""
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(code) >= 8
    (tmp_path / "shop.py").write_text("\n".join([*code, STORY]))
    ran = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "debit-7 SUCCESS {'debited': 10} None" in ran.stdout
    assert "r-2 NO_ACCOUNT there is no account to refund to" in ran.stdout
    assert ran.stdout.endswith("the end\n")


def test_the_page_names_what_there_is() -> None:
    """Every error and every status that a user meets, and every setting, stands on the page."""
    names = [*commands.CommandStatus, *(name for name in commands.__all__ if name.endswith("Error"))]
    missing = [name for name in names if name not in PAGE and name not in ("CommandBusError", "CommandNotFoundError")]
    settings = [name.upper() for name in commands.CommandSettings.model_fields if name.upper() not in PAGE]
    assert (missing, settings) == ([], [])
