"""Five outages, each staged on a real service and answered by the first screen, without a click.

What is wrong, since when, why with file and line, what happens by itself, and what is safe to press: all of it in one row.
"""

import asyncio
import os
import re
import signal
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from redrive import Fixed, Policy, Redrive, Schedule, Task, minutes, seconds
from redrive.ledgers.build import build
from redrive.operator.roster import SILENT_AFTER
from redrive.operator.verdict import Facts, StoreNow, Subject
from redrive.operator.verdict.judge import WROTE_MAX
from tests import forks

from .conftest import log_in, refresh
from .replay import failures_of, line_of, named_after, shown_after
from .site import Site, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

VERSION = "4f2a"
HERE = "tests/browser/test_outages.py"
IN_TIME = timedelta(seconds=10)
"""From the tenth failure to a screen that names it: by the times in the history, see `replay`."""
TRIES = 14
"""More than the ten failures that a person is called for."""
AT_ONCE = Policy(Fixed(seconds(0.01)), retries=1, name="at once")
SLOWLY = Policy(Schedule([minutes(1), minutes(5), minutes(15)]), retries=3, name="slowly")


def join(app: Redrive) -> None:
    """Handlers for each outage."""

    @app.handler("bank.capture", policy=SLOWLY)
    async def capture(task: Task) -> None:
        raise ConnectionRefusedError("pay.example:443")

    @app.handler("import.row", policy=AT_ONCE)
    async def row(task: Task) -> None:
        if task.payload["bug"] == 1:
            {}["amount"]
        {}["amount"]

    @app.handler("mail.send", policy=AT_ONCE)
    async def send(task: Task) -> None:
        template = None
        template.body.format(order=task.payload)  # type: ignore[attr-defined]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A service at work, in a version that has a name, that notices a locked store within seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDRIVE_VERSION", VERSION)
        build.cache_clear()
        patch.setattr("redrive.chores.PROOF_MAX_AGE", timedelta(seconds=1))
        patch.setattr("redrive.running.PROVE_EVERY", timedelta(seconds=0.2))
        async with serving(tmp_path_factory.mktemp("outages"), join=join) as running:
            yield running
    build.cache_clear()


async def row_of(page: Page, site: Site, words: str) -> Locator:
    """The row of the first screen that says this; nobody clicks anything."""
    await log_in(page, site)
    row = page.locator(".trouble", has_text=words)
    for _ in range(40):
        if await row.count():
            break
        await asyncio.sleep(0.5)
        await refresh(page)
    await expect(row).to_have_count(1)
    return row


async def test_a_destination_is_down(page: Page, shop: Site):
    """Before any task is dead: which kind, since when, which error, what becomes of those that wait, and *Pause* as the blue button."""
    for number in range(TRIES):
        await shop.app.add("bank.capture", key=f"capture-{number}")
    row = await row_of(page, shop, "bank.capture")
    await expect(row).to_contain_text(re.compile(rf"has been failing since .*: 100% of {TRIES} tries"))
    await expect(row.locator(".said")).to_have_text(
        re.compile(rf"^ConnectionRefusedError: pay\.example:443 at {re.escape(HERE)}:\d+$")
    )
    await expect(row).to_contain_text(f"0 dead, {TRIES} waiting")
    await expect(row.locator(".itself")).to_contain_text(
        re.compile(r"4 tries in about \d+ minutes: if it answers.*if not, dead by")
    )
    await expect(row.locator(".safe")).to_contain_text(
        "Pause it: tasks wait, and no try is charged. Redriving now repeats the failure: wait until it answers."
    )
    await expect(row.locator(".main-act")).to_have_text("Pause bank.capture")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("needs you")
    tries = await failures_of(shop, [f"capture-{number}" for number in range(TRIES)])
    assert await named_after(tries, "bank.capture", join=join) <= IN_TIME


async def test_poison_beside_it(page: Page, shop: Site):
    """Two bugs with one message are two causes, each with its line, its own count, what becomes of it and what may be pressed."""
    for number in range(TRIES):
        await shop.app.add("import.row", {"bug": 1 + number % 2}, key=f"row-{number}")
    await log_in(page, shop)
    rows = page.locator(".trouble", has_text="import.row")
    lines = rows.locator(".said")
    for _ in range(40):
        if len(set(await lines.all_inner_texts())) == 2:
            break
        await asyncio.sleep(0.5)
        await refresh(page)
    said = await lines.all_inner_texts()
    assert len(said) == 2
    assert all(one.startswith("KeyError: 'amount' at") and HERE in one for one in said), said
    assert len({one.rpartition(":")[2] for one in said}) == 2
    for row in await rows.all():
        await expect(row.locator("h3")).to_contain_text(
            re.compile(rf"import\.row has been failing since \d\d:\d\d:\d\d: 50% of {2 * TRIES} tries\.")
        )
        await expect(row.locator(".facts-said")).to_contain_text(f"{TRIES // 2} dead")
        await expect(row.locator(".itself")).to_contain_text("Nothing recovers.")
        await expect(row.locator(".safe")).to_contain_text("Redriving now repeats the failure: fix the code first.")
        await expect(row.locator(".main-act")).to_have_text("Pause import.row")
    tries = await failures_of(shop, [f"row-{number}" for number in range(TRIES)])
    for line in {line_of(one) for one in tries}:
        of_line = [one for one in tries if line_of(one) == line]
        assert await named_after(of_line, "import.row", join=join) <= IN_TIME


async def test_a_deploy_broke_a_kind(page: Page, shop: Site):
    """The error, the file and the line of the user's code, and the version: fix the code first."""
    for number in range(TRIES):
        await shop.app.add("mail.send", key=f"mail-{number}")
    row = await row_of(page, shop, "mail.send")
    await expect(row).to_contain_text(
        re.compile(r"mail\.send has been failing since \d\d:\d\d:\d\d: 100% of \d+ tries")
    )
    await expect(row).to_contain_text("AttributeError: 'NoneType' object has no attribute 'body'")
    await expect(row).to_contain_text(re.compile(rf"{re.escape(HERE)}:\d+"))
    await expect(row).to_contain_text(f"Version {VERSION}, deployed")
    await expect(row).to_contain_text(f"{TRIES} dead")
    await expect(row.locator(".itself")).to_contain_text("Nothing recovers.")
    await expect(row.locator(".safe")).to_contain_text("Redriving now repeats the failure: fix the code first.")
    await expect(row.locator(".main-act")).to_have_text("Pause mail.send")
    tries = await failures_of(shop, [f"mail-{number}" for number in range(TRIES)])
    assert await named_after(tries, "mail.send", join=join) <= IN_TIME
    await shop.count()  # the dead are grouped by their cause within seconds
    await row.get_by_role("button", name="Try one first").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(
        f"1 of {TRIES} dead tasks runs again now. The other {TRIES - 1} stay as they are."
    )
    await expect(dialog.locator("#act-warning")).to_contain_text("This will most likely fail.")
    await dialog.get_by_label("Why?").fill("is it still broken?")
    await dialog.get_by_role("button", name="Try one task").click()
    await expect(page).to_have_url(re.compile("/operations/[0-9a-f]{8}$"))
    await expect(page.locator("#says")).to_contain_text("The one task is through: 1 failed again.")
    await expect(page.locator("#page")).to_contain_text("1 of the same cause")
    await expect(page.locator("#page")).to_contain_text(f"{VERSION} runs now, and they failed in it")


async def test_a_worker_was_killed(page: Page, shop: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A real one, with -9 and six tasks in its hands: who is lost, since when, what it held, and that others will take it."""
    monkeypatch.setattr("redrive.operator.roster.SILENT_AFTER", SILENT_AFTER)  # as it is, however busy the machine
    for number in range(6):
        await shop.app.add("hang", key=f"hang-{number}")
    environment = os.environ | {"DATABASE_URL": shop.app.store.url, "REDRIVE_VERSION": VERSION}
    worker = forks.run(
        "worker", "tests.browser.hanging:app", folder=forks.ROOT, log=tmp_path / "worker.log", environment=environment
    )
    killed: list[str] = []

    async def holds_six() -> bool:
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        killed[:] = [one.name for one in await shop.app.store.roster.seen() if (one.pid, one.held) == (worker.pid, 6)]
        return bool(killed)

    await shop.until(holds_six)
    worker.send_signal(signal.SIGKILL)
    worker.wait(60)
    row = await row_of(page, shop, killed[0])
    await expect(row).to_contain_text(re.compile(r"has (given no sign of life|been lost) since .*, holding 6 tasks"))
    await expect(row).to_contain_text(
        re.compile(r"It was killed or cut off, or it is stuck|No goodbye, so it was killed or cut off")
    )
    await expect(row).to_contain_text("The other worker has room.")
    await expect(row.locator(".itself")).to_contain_text(
        re.compile(r"^\D*Its leases end by \d\d:\d\d:\d\d; then the other worker takes the 6 tasks\.$")
    )
    await expect(row.locator(".safe")).to_contain_text("Nothing to press.")
    [gone] = [one for one in await shop.app.store.roster.seen() if one.name == killed[0]]
    facts = Facts(now=gone.seen_at, workers=[gone])
    assert shown_after(gone.seen_at, facts, Subject.LOST_WORKER) <= IN_TIME


async def test_the_store_is_locked(page: Page, shop: Site, watch, monkeypatch: pytest.MonkeyPatch):
    """The first row says that nothing is written, for how long, why, and that nothing is lost; nothing is green, nor is `/health`.

    When it is over, so is the row.
    """
    watch.expected += ["503"]
    await log_in(page, shop)
    other = sqlite3.connect(shop.app.store.url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        row = page.locator(".trouble[data-subject=ledger_away]")
        for _ in range(40):
            await refresh(page)
            if await row.count():
                break
            await asyncio.sleep(0.5)
        await expect(page.locator(".trouble").first).to_have_attribute("data-subject", "ledger_away")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("need")
        await expect(row.locator("h3")).to_have_text(re.compile(r"^Nothing has been settled for \S+ (s|min)\.$"))
        await expect(row).to_contain_text(re.compile("locked, full or away|no write has gone through for"))
        await expect(row.locator(".itself")).to_contain_text(
            "go on when the store takes writes again; nothing is lost."
        )
        await expect(row.locator(".safe")).to_contain_text(
            "Nothing to press here. Look at the database: who holds a lock"
        )
        await expect(page.locator("#strip .warn", has_text="Last settled")).to_be_visible()
        assert (await page.context.request.get(f"{shop.url}/health")).status == 503
    finally:
        other.execute("ROLLBACK")
        other.close()
    for _ in range(40):
        await refresh(page)
        if not await row.count():
            break
        await asyncio.sleep(0.5)
    else:
        raise AssertionError("the row stayed")
    monkeypatch.setattr(import_module("redrive.operator.verdict.judge"), "WROTE_MAX", WROTE_MAX)
    wrote = shop.app.store.now()
    assert shown_after(wrote, Facts(now=wrote, store=StoreNow(wrote_at=wrote)), Subject.LEDGER_AWAY) <= IN_TIME
