"""The page of the API in a real browser: all routes are there, from our own files alone, and a route can be tried out."""

import pytest
from playwright.async_api import Page, expect

from .conftest import log_in
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_api_is_shown_and_can_be_tried(page: Page, site: Site):
    """Every group of routes is listed, one is opened and asked; nothing is refused by the policy, nothing asked of another host."""
    await log_in(page, site, path="/docs")
    described = await (await page.request.get(f"{site.url}/openapi.json")).json()
    tags = {tag for methods in described["paths"].values() for one in methods.values() for tag in one["tags"]}
    await expect(page.locator(".opblock-tag")).to_have_count(len(tags))
    await page.locator("#operations-tag-health .opblock-tag, #operations-tag-health").first.click()
    route = page.locator(".opblock", has_text="/ready").first
    await route.locator(".opblock-summary-control").click()
    await route.get_by_role("button", name="Try it out").click()
    await route.get_by_role("button", name="Execute").click()
    await expect(route.locator(".live-responses-table")).to_contain_text("ready")
