"""Who may come in, as people meet it. What each page and route refuses is in `web/test_session.py`, `test_guard.py` and `test_pages.py`."""

import pytest
from playwright.async_api import Page, expect

from .chromium import ELSEWHERE
from .conftest import log_in
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(autouse=True)
def known(watch) -> None:
    """Chromium says that it ignores this header where a site has a name and no TLS; refusals it calls failed to load."""
    watch.expected += ["Cross-Origin-Opener-Policy", "status of 403"]


def elsewhere(site: Site) -> str:
    """The same service, as another machine would ask for it."""
    return site.url.replace("127.0.0.1", ELSEWHERE)


async def test_from_elsewhere_a_page_needs_a_login(page: Page, site: Site):
    """It leads to the login and, with a key, back to where the reader wanted to go."""
    await page.goto(f"{elsewhere(site)}/tasks?state=dead")
    await page.get_by_label("Key").fill(site.keys["viewer"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page).to_have_url(f"{elsewhere(site)}/tasks?state=dead")
    await expect(page.get_by_text("viewer ada")).to_be_visible()


async def test_wrong_keys_are_refused(page: Page, site: Site):
    """With a reason, and without a session; with the right one it then goes on to where the reader wanted to go."""
    await page.goto(f"{elsewhere(site)}/login?next=/dead")
    for key, said in (
        ("rdk_wrong", "unknown, expired or revoked"),
        (site.keys["events"], "This key is not for people"),
    ):
        await page.get_by_label("Key").fill(key)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text(said)
        assert await page.context.cookies() == []
    await page.get_by_label("Key").fill(site.keys["viewer"])
    await page.get_by_label("Key").press("Enter")
    await expect(page).to_have_url(f"{elsewhere(site)}/dead")


async def test_a_viewer_sees_and_cannot_act(page: Page, site: Site):
    """No buttons; and the API refuses what no button offers."""
    await log_in(page, site, "viewer", "/tasks?state=dead")
    assert await page.get_by_role("button", name="Redrive").count() == 0
    assert await page.locator("input[type=checkbox]").count() == 0
    [id_] = [(await site.app.tasks.get("card-1")).id]
    status = await page.evaluate(POST, [f"{site.url}/api/tasks/redrive", {"ids": [id_], "reason": "no"}])
    assert status == 403
    assert (await site.app.tasks.get("card-1")).state == "dead"


POST = """async ([path, body]) => {
  const token = document.querySelector('meta[name="csrf-token"]')?.content;
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": token };
  return (await fetch(path, { method: "POST", headers, body: JSON.stringify(body) })).status;
}"""


async def test_on_this_machine_looking_is_open_and_acting_is_not(page: Page, site: Site):
    """Without a key a page shows everything and offers the login."""
    await page.goto(f"{site.url}/dead")
    assert await page.get_by_role("button", name="Redrive").count() == 0
    await page.get_by_role("link", name="Log in with an operator's key").click()
    await expect(page).to_have_url(f"{site.url}/login?next=/dead")


async def test_logging_out_ends_it(page: Page, site: Site):
    """The cookie is gone, and so are the buttons."""
    await log_in(page, site, "operator", "/dead")
    await page.locator(".me summary").click()
    await page.get_by_role("button", name="Log out").click()
    await expect(page).to_have_url(f"{site.url}/login")
    assert await page.context.cookies() == []
