"""The first screen and the charts in a real browser: in the first response, live, in the reader's zone, by keyboard."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, Page, expect
from sqlalchemy import insert

from redrive.ledgers.sql import schema

from .conftest import refresh
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHARTS = ("flow", "states", "success", "tries", "took", "dead", "depth", "oldest")


async def test_it_refreshes_by_itself(page: Page, empty_site: Site):
    """What happens is on the page without a reload, and what is open stays open."""
    await page.goto(f"{empty_site.url}/charts")
    await expect(page.locator("#chart-success")).to_contain_text("Nothing in this range yet.")
    for name in ("flow", "tries", "took", "dead"):
        await expect(page.locator(f"#chart-{name}")).to_contain_text("Nothing in this range yet.")
    await empty_site.app.add("mail", key="live-1")
    await expect(page.locator("#chart-success .total")).to_have_text("100%")
    await page.locator("#chart-success summary").click()
    await refresh(page)
    await expect(page.locator("#chart-success tbody")).to_be_visible()


async def test_every_chart_says_its_numbers(page: Page, site: Site):
    """Each has a question, an answer, a sentence for screen readers and its table; the states are those of the database."""
    await page.goto(f"{site.url}/charts")
    for name in CHARTS:
        chart = page.locator(f"#chart-{name}")
        title = await chart.locator("h2").inner_text()
        assert title.endswith("?")
        said = await chart.locator("svg[role=img]").get_attribute("aria-label")
        assert said.startswith(title) and len(said) > len(title) + 5
        await chart.locator("summary").click()
        await expect(chart.locator("tbody tr").first).to_be_visible()
    rows = [(await row.inner_text()).split("\t") for row in await page.locator("#chart-states tbody tr").all()]
    counts = await site.app.tasks.counts()
    assert {state: int(amount) for state, amount in rows} == {
        state: counts.get(state, 0) for state in ("waiting", "claimed", "done", "dead", "cancelled")
    }


async def test_ranges_and_ledgers_are_addresses(page: Page, site: Site):
    """A range and a ledger are chosen by a link and a list, and the address says both."""
    await _remember(site, hours_ago=5, done=70, dead=6)
    await page.goto(f"{site.url}/charts")
    await expect(page.locator("#chart-flow")).to_contain_text("4 dead")
    await page.get_by_role("link", name="24h").click()
    await expect(page).to_have_url(f"{site.url}/charts?range=24h")
    await expect(page.locator("#chart-flow")).to_contain_text("10 dead")
    await page.get_by_label("Ledger", exact=True).select_option("redrive_task")
    await expect(page).to_have_url(f"{site.url}/charts?ledger=redrive_task&range=24h")
    await expect(page.get_by_label("Ledger", exact=True)).to_have_value("redrive_task")


async def test_figures_lead_to_what_they_count(page: Page, site: Site):
    """The dead of all ledgers are a list, a cause is a page with its line, and one click leads from one to the other, from a task back to its cause too."""
    await page.goto(f"{site.url}/")
    await page.get_by_role("link", name="Dead", exact=True).click()
    await expect(page).to_have_url(f"{site.url}/tasks?state=dead")
    await expect(page.locator("#list tbody tr")).to_have_count(4)
    await page.goto(f"{site.url}/dead")
    await page.get_by_role("link", name=re.compile("row 2 of 'orders.csv'")).first.click()
    await expect(page.locator(".frame.here")).to_contain_text("tests/browser/site.py")
    await expect(page.locator(".frame.here .at")).to_contain_text("raise PermanentError")
    await page.get_by_role("link", name="All 3 dead tasks").click()
    await expect(page.locator("#list tbody tr")).to_have_count(3)
    await page.locator("#list tbody tr a.id").first.click()
    await page.get_by_role("link", name="all tasks that died of it").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("of 'orders.csv' has no amount")


async def test_a_service_that_is_away_is_said(page: Page, site: Site, watch):
    """The last numbers stay, a word says that they are old, and it heals by itself."""
    watch.expected += ["Failed to load resource", "ERR_"]
    await page.goto(f"{site.url}/")
    await page.route(f"{site.url}/", lambda route: route.abort())
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # looked at again: ask at once
    await expect(page.locator("#live")).to_have_class("live late")
    await expect(page.locator("[data-figure=dead]")).to_have_text("4")
    await page.unroute(f"{site.url}/")
    await refresh(page)
    await expect(page.locator("#live")).to_have_class("live")


async def test_the_theme_and_the_zone_are_the_readers_choice(browser: Browser, site: Site):
    """By the system first, by the buttons then, and kept: times in the reader's zone with UTC when pointed at, or in UTC."""
    context = await browser.new_context(color_scheme="dark", timezone_id="Asia/Kolkata")
    page = await context.new_page()
    await page.goto(f"{site.url}/")
    dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.get_by_role("button", name="Theme: system").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    live = page.locator("#live time")
    utc = (await live.get_attribute("datetime"))[11:19]
    hour, minute, second = map(int, utc.split(":"))
    there = (datetime(2026, 1, 1, hour, minute, second, tzinfo=UTC) + timedelta(hours=5, minutes=30)).strftime(
        "%H:%M:%S"
    )
    assert there in await live.inner_text()
    assert (await live.get_attribute("title")).endswith(f"{utc} UTC")
    await page.get_by_role("button", name="Show them in UTC").click()
    await expect(live).to_have_text(re.compile(r"\d\d:\d\d:\d\d$"))
    await page.reload()
    utc = (await live.get_attribute("datetime"))[11:19]
    assert utc in await live.inner_text()
    assert await page.evaluate("document.documentElement.dataset.theme") == "light"
    await context.close()


async def test_the_keyboard_leads_everywhere(page: Page, site: Site):
    """`g` and a letter goes to a page, `j` and `k` walk through rows, `/` searches all ledgers, `?` says so."""
    await page.goto(f"{site.url}/")
    for key, path in (("t", "/tasks"), ("d", "/dead"), ("w", "/workers"), ("o", "/")):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await page.wait_for_url(site.url + path)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("Keyboard shortcuts")
    await page.keyboard.press("Escape")
    await page.goto(f"{site.url}/tasks?state=dead")
    for key, row in (("j", 0), ("j", 1), ("k", 0)):
        await page.keyboard.press(key)
        await expect(page.locator("#list tbody tr").nth(row).locator("a").first).to_be_focused()
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await page.keyboard.type("import-1")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/tasks?text=import-1")
    await expect(page.locator("#list tbody tr")).to_have_count(1)
    await expect(page.locator("#search-said")).to_contain_text("1 task found")


async def _remember(site: Site, *, hours_ago: int, done: int, dead: int) -> None:
    """A minute of the past, as the ledger would have written it."""
    minute = (datetime.now(UTC) - timedelta(hours=hours_ago)).replace(second=0, microsecond=0)
    row = {
        "minute": minute,
        "ledger": "redrive_task",
        "worker": "then",
        "done": done,
        "dead": dead,
        "added": done + dead,
    }
    await site.app.database.write(lambda connection: connection.execute(insert(schema.minute), row))
    await asyncio.sleep(1.1)  # an answer of the API holds for a second
