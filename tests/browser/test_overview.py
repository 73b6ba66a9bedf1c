"""The overview in a real browser: every widget with data and without, live, in any range."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import insert

from redrive.ledgers.sql import schema

from .conftest import drawn
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDGETS = ("states", "flow", "success", "tries", "took", "dead", "depth", "oldest")


async def test_every_widget_shows_data(page: Page, site: Site):
    """Each of the eight is drawn by plotly, says its sentence to screen readers and has its table."""
    await page.goto(site.url)
    await drawn(page)
    for name in WIDGETS:
        figure = page.locator(f"#chart-{name}")
        await expect(figure).to_have_attribute("data-drawn", "data")
        await expect(figure.locator(".main-svg").first).to_be_visible()
        title = await figure.locator("h2").inner_text()
        said = await figure.locator(".plot").get_attribute("aria-label")
        assert said.startswith(f"{title}: ") and len(said) > len(title) + 5
        await figure.locator("summary").click()
        await expect(figure.locator("tbody tr").first).to_be_visible()
        await figure.locator("summary").click()
    table = page.locator("#chart-states")
    await table.locator("summary").click()
    await expect(table.locator("tbody tr")).to_have_count(5)
    rows = [(await row.inner_text()).split("\t") for row in await table.locator("tbody tr").all()]
    counts = await site.app.tasks.counts()
    assert {state: int(amount) for state, amount in rows} == {
        state: counts.get(state, 0) for state in ("waiting", "claimed", "done", "dead", "cancelled")
    }


async def test_every_widget_says_when_it_is_empty(page: Page, empty_site: Site):
    """No chart without data, and a sentence instead."""
    await page.goto(empty_site.url)
    await drawn(page)
    for name in WIDGETS:
        if name in ("depth", "oldest"):  # nothing waits is a fact too, and it was counted
            continue
        figure = page.locator(f"#chart-{name}")
        await expect(figure).to_have_attribute("data-drawn", "empty")
        await expect(figure.get_by_text("Nothing in this range yet.")).to_be_visible()
        await expect(figure.locator(".plot")).to_be_hidden()
    await expect(page.locator("#chart-oldest")).to_contain_text("oldest due nownone")
    await expect(page.locator("#broken")).to_be_hidden()


async def test_tiles_are_there_before_any_script(browser, site: Site):
    """The first numbers come with the page; without JavaScript it says what is missing."""
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(site.url)
    await expect(page.locator("#tile-dead [data-amount]")).to_have_text("4")
    assert "Charts and the live numbers need JavaScript" in await page.content()
    await context.close()


async def test_it_refreshes_by_itself(page: Page, empty_site: Site):
    """What happens is on the page within ten seconds, without a hand."""
    await page.goto(empty_site.url)
    await drawn(page)
    await expect(page.locator("#tile-done [data-amount]")).to_have_text("0")
    await empty_site.app.add("mail", key="live-1")
    await expect(page.locator("#tile-done [data-amount]")).to_have_text("1")
    await expect(page.locator("#chart-success")).to_have_attribute("data-drawn", "data")


async def test_ranges_and_ledgers(page: Page, site: Site):
    """A range and a ledger are chosen by keyboard or mouse, asked of the API, and kept in the address."""
    await _remember(site, hours_ago=5, done=70, dead=6)
    await page.goto(site.url)
    await drawn(page)
    async with page.expect_request(lambda request: "/api/overview" in request.url and "range=24h" in request.url):
        await page.get_by_role("radio", name="24h").check(force=True)
    await page.wait_for_url("**/?range=24h")
    await expect(page.locator("#chart-flow .plot")).to_have_attribute("aria-label", re.compile("10 dead"))
    async with page.expect_request(
        lambda request: "/api/series" in request.url and "ledger=redrive_task" in request.url
    ):
        await page.get_by_label("Ledger", exact=True).select_option("redrive_task")
    await page.wait_for_url("**/?ledger=redrive_task&range=24h")
    await page.reload()
    await expect(page.get_by_role("radio", name="24h")).to_be_checked()
    await expect(page.get_by_label("Ledger", exact=True)).to_have_value("redrive_task")
    await page.goto(f"{site.url}/?range=7d")
    await drawn(page)
    await expect(page.locator("#chart-dead .figures")).to_contain_text("10")  # six of then and four of now


async def test_causes_lead_to_their_tasks(page: Page, site: Site):
    """The failure causes stand on top, and one click shows them."""
    await page.goto(site.url)
    await drawn(page)
    cause = page.locator("#causes a", has_text="has no amount")
    await expect(cause).to_have_text("PermanentError: row <number> of <text> has no amount")
    await cause.click()
    await expect(page.locator("#list tbody tr")).to_have_count(3)


async def test_tiles_lead_to_their_tasks(page: Page, site: Site):
    """What is dead to its groups, all else to the list, and to the ledger that is chosen."""
    await page.goto(site.url)
    await drawn(page)
    await expect(page.get_by_role("link", name="dead", exact=True)).to_have_attribute("href", "/dead")
    await page.get_by_label("Ledger", exact=True).select_option("redrive_task")
    chosen = "/tasks?ledger=redrive_task&state=dead"
    await expect(page.get_by_role("link", name="dead", exact=True)).to_have_attribute("href", chosen)
    await page.get_by_role("link", name="done", exact=True).click()
    await expect(page).to_have_url(f"{site.url}/tasks?ledger=redrive_task&state=done")
    await expect(page.locator("#list tbody tr")).to_have_count(15)


async def test_a_service_that_is_away_is_said(page: Page, site: Site, watch):
    """The last numbers stay, a sentence says that they are old, and it heals by itself."""
    watch.expected += ["Failed to load resource", "ERR_"]
    await page.goto(site.url)
    await drawn(page)
    await page.route("**/api/**", lambda route: route.abort())
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # looked at again: ask at once
    await expect(page.locator("#live")).to_contain_text("the service cannot be reached")
    await expect(page.locator("#tile-dead [data-amount]")).to_have_text("4")
    await page.unroute("**/api/**")
    await expect(page.locator("#live")).to_contain_text("live")


async def test_the_theme_is_the_readers_choice(page: Page, site: Site):
    """By the system first, by the button then, and kept; charts follow."""
    await page.emulate_media(color_scheme="dark")
    await page.goto(site.url)
    await drawn(page)
    dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    line = await page.evaluate("document.querySelector('#chart-flow .js-line').style.stroke")
    await page.get_by_role("button", name="Theme: system").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    await expect(page.locator("#chart-flow .js-line").first).not_to_have_css("stroke", line)
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "light"
    await page.get_by_role("button", name="Theme: light").click()
    await page.get_by_role("button", name="Theme: dark").click()
    await expect(page.get_by_role("button", name="Theme: system")).to_be_visible()


async def test_plotly_is_compressed_and_kept(page: Page, site: Site):
    """Its four megabytes come once, compressed, and then from the browser's own store."""
    async with page.expect_response(lambda answer: "/static/plotly.js" in answer.url) as caught:
        await page.goto(site.url)
    answer = await caught.value
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]
    assert int(answer.headers["content-length"]) < 2_000_000


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
