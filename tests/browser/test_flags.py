"""The page of the flags in a real browser: what it shows, what operators do there, and what then stands in the database."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect
from sqlalchemy import Connection, insert, select

from redrive import Redrive
from redrive.systems.flags import Flags, FlagSettings, tables
from redrive.systems.flags.values import ScheduleStatus

from .conftest import DESK, PHONE, log_in
from .looks import looks_well
from .site import Site, serving
from .test_hostile import CORPUS, run_nothing

pytestmark = pytest.mark.asyncio(loop_scope="session")

HERE = "/systems/flags"
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


class Shop:
    """A service with flags, and what the tests put into its database."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.flags: Flags = site.app.systems["flags"]

    async def put(self, key: str, **row: Any) -> int:
        """A schedule as it might stand, without waiting for its story; its id."""
        flag, _ = await self.flags.put(key, actor="ada", environment=row.get("environment", "production"))
        now = datetime.now(UTC)
        usual = {
            "flag_id": flag.id, "flag_key": key, "environment": "production", "scheduled_at": now + DAY, "status": "pending",
            "updates": {"enabled": True}, "created_by": "bea", "created_at": now - DAY, "updated_at": now,
        }  # fmt: skip

        def write(connection: Connection) -> int:
            return connection.execute(
                insert(tables.schedules).values(usual | row).returning(tables.schedules.c.id)
            ).scalar_one()

        return await self.site.app.database.write(write)

    async def failed(self, key: str, **row: Any) -> int:
        """One whose retries are spent."""
        past = datetime.now(UTC) - DAY
        return await self.put(
            key,
            status="failed",
            scheduled_at=past,
            retry_count=3,
            last_error="OperationalError: the disk says no",
            **row,
        )

    async def rows(self, *ids: int) -> list[Any]:
        found = select(tables.schedules).where(tables.schedules.c.id.in_(ids)).order_by(tables.schedules.c.id)
        return await self.site.app.database.read(lambda connection: connection.execute(found).all())

    async def reasons(self, *ids: int) -> list[tuple[str, str, str]]:
        """What the audit says that people did to schedules."""
        t = tables.audit
        found = select(t).where(t.c.schedule_id.in_(ids), t.c.actor != "processor").order_by(t.c.id)
        rows = await self.site.app.database.read(lambda connection: connection.execute(found).all())
        return [(row.action, row.actor, row.details.get("reason")) for row in rows]


def join(app: Redrive) -> Flags:
    """Flags on the application."""
    return Flags(app, FlagSettings(_env_file=None))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """Some of everything: due, retrying, failed for good, applied, cancelled, and in another environment."""
    async with serving(tmp_path_factory.mktemp("flags"), join=join) as running:
        made = Shop(running)
        now = datetime.now(UTC)
        await made.put("free-shipping", scheduled_at=now + 40 * MINUTE, expires_at=now + 300 * MINUTE)
        await made.put("new-checkout", scheduled_at=now + 3 * DAY, updates={"rolloutPercentage": 50}, max_retries=0)
        await made.put("dark-mode", scheduled_at=now + 2 * MINUTE, updates={"enabled": False, "rolloutPercentage": 0})
        again = now + 3.5 * MINUTE
        await made.put(
            "christmas", status="failed", scheduled_at=now - 5 * MINUTE, retry_count=1, next_retry_at=again,
            last_error="OperationalError: the database does not answer",
        )  # fmt: skip
        await made.failed("black-friday")
        await made.put("summer", status="applied", scheduled_at=now - DAY, applied_at=now - DAY)
        await made.put("spring", status="cancelled", cancelled_by="ada", cancelled_at=now - MINUTE)
        await made.put("christmas", environment="staging")
        await made.flags.put("free-shipping", actor="ada", rollout_percentage=10, description="For all orders over 50")
        await running.count()
        yield made


async def say_why(page: Page, shown: str, reason: str) -> None:
    """The question before an act."""
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator("#act-count")).to_contain_text(shown)
    await dialog.get_by_label("Why?").fill(reason)
    await dialog.locator("#act-confirm").click()


async def test_what_is_due_what_is_retried_and_what_is_over(page: Page, shop: Shop):
    """Every section has its schedules in order, each with what an operator must know; the picture draws those to come."""
    await page.goto(f"{shop.site.url}{HERE}")
    due = page.locator("section", has=page.get_by_role("heading", name="Due next")).locator("tbody tr")
    for row, words in zip(
        await due.all(),
        (
            ("dark-mode", "off, for 0%", re.compile("in [12]m")),
            ("free-shipping", "on", "not after"),
            ("new-checkout", "for 50%", "no retry"),
        ),
        strict=True,
    ):
        for word in (*words, "pending", "bea"):
            await expect(row).to_contain_text(word)
    again = page.locator("section", has=page.get_by_role("heading", name="will be retried")).locator("tbody tr")
    await expect(again).to_have_count(1)
    seen = (await shop.flags.page(ScheduleStatus.RETRYING)).items[0]
    assert len(seen.upcoming) == 3
    for words in (
        "christmas",
        "failed",
        "1 of 3 retries",
        "does not answer",
        *(one.at.strftime("%F %T") for one in seen.upcoming),
    ):
        await expect(again).to_contain_text(words)
    over = page.locator("section", has=page.get_by_role("heading", name="Failed for good")).locator("tbody tr")
    await expect(over).to_contain_text("the disk says no")
    await expect(page.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"^dark-mode: off, for 0%, .*; christmas: on")
    )
    await expect(page.get_by_role("button", name="Switch")).to_have_count(0)
    await expect(page.get_by_text("Log in with an operator's key")).to_be_visible()


async def test_filters(page: Page, shop: Shop):
    """By environment, flag and status; what does not fit is said."""
    await page.goto(f"{shop.site.url}{HERE}")
    await page.get_by_label("Environment").fill("staging")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("tbody tr", has_text="christmas").first).to_contain_text("staging")
    await expect(page.get_by_text("free-shipping")).to_have_count(0)
    await page.goto(f"{shop.site.url}{HERE}?flag=spring")
    await page.get_by_label("Status").select_option("cancelled")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("#section-cancelled")).to_be_visible()
    await expect(page.locator("tbody tr").first).to_contain_text("by ada")
    answer = await page.request.get(f"{shop.site.url}{HERE}?status=gone", headers={"Accept": "text/html"})
    assert answer.status == 400


async def test_pages(page: Page, shop: Shop):
    """One page after the other, each schedule once."""
    first_id = await shop.put("paged", environment="paging")

    def copy(connection: Connection) -> None:
        t = tables.schedules
        row = dict(connection.execute(select(t).where(t.c.id == first_id)).one()._mapping)
        later = [
            row | {"id": 10_000 + number, "scheduled_at": row["scheduled_at"] + number * MINUTE} for number in range(51)
        ]
        connection.execute(insert(t), later)

    await shop.site.app.database.write(copy)
    await page.goto(f"{shop.site.url}{HERE}?environment=paging")
    await page.locator("#section-pending + a").click()
    await expect(page.get_by_role("link", name="Next page")).to_be_visible()
    first = await page.locator("section[aria-labelledby=section-pending] tbody a.id").all_text_contents()
    await page.get_by_role("link", name="Next page").click()
    await expect(page.get_by_role("link", name="First page")).to_be_visible()
    rest = await page.locator("section[aria-labelledby=section-pending] tbody a.id").all_text_contents()
    assert len(rest) == 2
    assert not set(first) & set(rest)
    await expect(page.get_by_role("link", name="Next page")).to_have_count(0)


async def test_cancel_and_retry(page: Page, shop: Shop):
    """Chosen schedules are cancelled or brought back, the others are not; who and why stand in the audit."""
    waiting = [await shop.put(f"cancel-{number}", environment="acting") for number in range(3)]
    dead = [await shop.failed(f"retry-{number}", environment="acting") for number in range(2)]
    await log_in(page, shop.site, "operator", f"{HERE}?environment=acting")
    due = page.locator("section", has=page.get_by_role("heading", name="Due next"))
    await expect(due.get_by_role("button", name="Cancel")).to_be_disabled()
    for id_, number in zip(waiting[:2], (0, 1), strict=True):
        await due.get_by_label(f"Choose schedule {id_} of cancel-{number}").check()
    await due.get_by_role("button", name="Cancel").click()
    await say_why(page, "2: will not be applied", "no promotion this year")
    await expect(page.get_by_role("status").filter(has_text="Cancel: 2 done.")).to_be_visible()
    assert [row.status for row in await shop.rows(*waiting)] == ["cancelled", "cancelled", "pending"]
    told = ("flag_schedule.cancelled", "operator ada", "no promotion this year")
    assert await shop.reasons(*waiting) == [told, told]
    over = page.locator("section", has=page.get_by_role("heading", name="Failed for good"))
    await over.get_by_label("Choose all on this page").check()
    await over.get_by_role("button", name="Retry").click()
    await say_why(page, "2: due at once", "mended")
    await expect(page.get_by_role("status").filter(has_text="Retry: 2 done.")).to_be_visible()

    async def applied() -> bool:
        return [row.status for row in await shop.rows(*dead)] == ["applied", "applied"]

    await shop.site.until(applied)
    assert await shop.reasons(*dead) == [("flag_schedule.retried", "operator ada", "mended")] * 2


async def test_somebody_was_first(page: Page, shop: Shop):
    """What was cancelled meanwhile is left alone, and the page says so."""
    id_ = await shop.put("race", environment="racing")
    await log_in(page, shop.site, "operator", f"{HERE}?environment=racing")
    await page.get_by_label(f"Choose schedule {id_} of race").check()
    await shop.flags.cancel_all([id_], actor="bob", reason="first")
    await page.get_by_role("button", name="Cancel").click()
    await say_why(page, "1: will not be applied", "second")
    await expect(page.get_by_role("status").filter(has_text="Cancel: 0 done. Left alone")).to_be_visible()
    assert await shop.reasons(id_) == [("flag_schedule.cancelled", "bob", "first")]


async def test_done_is_what_was_applied(page: Page, shop: Shop):
    """On the page of its task nobody can say that a schedule was applied: it can be brought back, or ends as cancelled."""
    id_ = await shop.failed("not-done", environment="resolving")
    await log_in(page, shop.site, "operator", f"/tasks/feature_flag_schedules/{id_}")
    assert await page.locator("button[data-act]").all_inner_texts() == ["Redrive", "Resolve as cancelled"]
    await page.get_by_role("button", name="Resolve as cancelled").click()
    await say_why(page, "1 task will end as cancelled", "I did it myself")
    await expect(page.get_by_role("status").filter(has_text="1 task resolved as cancelled.")).to_be_visible()
    assert [row.status for row in await shop.rows(id_)] == ["cancelled"]


async def test_switch(page: Page, shop: Shop):
    """A flag goes on, and off again, with a reason that stands in the audit log; a viewer has no button for it."""
    flag, _ = await shop.flags.put("night", environment="night", actor="ada", rollout_percentage=100)
    await log_in(page, shop.site, "operator", f"{HERE}?environment=night")
    for word, shown in (("on", "night will be on for 100 % of users"), ("off", "night will be off for everybody")):
        await page.get_by_role("button", name=f"Switch {word}").click()
        await say_why(page, shown, f"{word} at night")
        await expect(page.get_by_role("status").filter(has_text=f"Switch {word}: 1 done.")).to_be_visible()
        assert (await shop.flags.get(flag.flag_key, environment="night")).enabled is (word == "on")
    await page.goto(f"{shop.site.url}/audit")
    await expect(page.locator("tbody tr", has_text="on at night")).to_contain_text("night/night")
    await expect(page.locator("tbody tr", has_text="off at night")).to_contain_text("operator ada")
    await log_in(page, shop.site, "viewer", f"{HERE}?environment=night")
    await expect(page.get_by_role("button", name="Switch")).to_have_count(0)


async def test_an_empty_page(page: Page, tmp_path: Path):
    """Where there are no flags at all it says so, and how to make one."""
    async with serving(tmp_path, join=join) as empty:
        await log_in(page, empty, "operator", HERE)
        await expect(page.get_by_text("Nothing is planned.")).to_be_visible()
        await expect(page.get_by_text("There is no flag here yet.")).to_be_visible()
        await expect(page.get_by_role("img")).to_have_count(0)
        await page.goto("about:blank")  # or it asks a site that is gone


async def test_strangers_texts_are_text(page: Page, shop: Shop):
    """In every field that is shown, in the picture, and in the question before an act."""
    keys = [one[:100] for one in CORPUS]
    for key, words in zip(keys, CORPUS, strict=True):
        await shop.put(
            key, environment="hostile", updates={words: words}, created_by=words, scheduled_at=datetime.now(UTC) + DAY
        )
        await shop.failed(key, environment="hostile", created_by=words * 20)
        await shop.flags.put(key, environment="hostile", actor="ada", description=words)

    def spoil(connection: Connection) -> None:
        t = tables.schedules
        for key, words in zip(keys, CORPUS, strict=True):
            connection.execute(t.update().where(t.c.flag_key == key).values(last_error=words * 9))

    await shop.site.app.database.write(spoil)
    await log_in(page, shop.site, "operator", f"{HERE}?environment=hostile")
    for path in (
        "?environment=hostile",
        "?environment=hostile&status=failed",
        "?environment=%3Cscript%3E&flag=%22%3E%3Cb%3E",
    ):
        await page.goto(f"{shop.site.url}{HERE}{path}")
        await run_nothing(page)
    await page.goto(f"{shop.site.url}{HERE}?environment=hostile&status=failed")
    for words in CORPUS[:2]:
        await expect(page.locator("section", has=page.locator("#section-failed"))).to_contain_text(words)
    await page.locator("tr", has_text="<img src=x").get_by_role("button", name="Switch on").first.click()
    await expect(page.locator("#act-count")).to_contain_text("<img src=x onerror=alert(2)>")
    await run_nothing(page)
    await page.get_by_role("button", name="Leave it").click()
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    await page.set_viewport_size(DESK)


async def test_it_fits_and_is_accessible(page: Page, shop: Shop):
    """No serious finding by axe; nothing wider than the screen, at a desk or on a phone."""
    await log_in(page, shop.site, "operator", HERE)
    await looks_well(page, "flags")
