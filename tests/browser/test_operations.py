"""An operation in a real browser: begun on the page of a cause, watched, and steered with a reason."""

import re

import pytest
from playwright.async_api import Page, expect

from .conftest import log_in
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_cause_is_brought_back_step_by_step(page: Page, site: Site):
    """One task first; it fails again, the page says so by itself, and the rest is given back."""
    await site.count()
    [cause] = [one.id for one in await site.app.store.figures.groups(["redrive_task"]) if one.kind == "broken.import"]
    await log_in(page, site, "operator", f"/causes/redrive_task/{cause}")
    await page.get_by_role("button", name="Redrive in steps").click()
    dialog = page.locator("#act")
    await expect(dialog).to_contain_text("1 of 3 dead tasks runs again first. The other 2 follow only if that works.")
    await dialog.get_by_label("Why?").fill("the file is mended")
    await dialog.get_by_role("button", name="Start with one task").click()
    await expect(page).to_have_url(re.compile("/operations/[0-9a-f]{8}$"))
    await expect(page.locator("#says")).to_contain_text(
        "It stopped by itself: the first task released failed again, and the limit is 10%."
    )
    await expect(page.get_by_role("heading", level=1)).to_have_text("Bringing back 3 tasks")
    await expect(page.get_by_role("img", name="Step 1, stopped here: 1 failed again")).to_be_visible()
    await page.get_by_role("button", name="Give the rest back").click()
    await expect(dialog).to_contain_text("2 that were not released stay dead as they were.")
    await dialog.get_by_role("button", name="Give the rest back").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Say why")
    await dialog.get_by_label("Why?").fill("we do it by hand")
    await dialog.get_by_role("button", name="Give the rest back").click()
    await expect(page.locator("#says")).to_contain_text("2 stay dead as they were; we do it by hand.")
    assert await page.locator("button[data-steer]").count() == 0
