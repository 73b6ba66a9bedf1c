"""Who may come in, as people meet it."""

import pytest
from playwright.async_api import Page, expect

from .chromium import ELSEWHERE
from .conftest import log_in
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")
PAGES = ("/", "/tasks", "/dead", "/gates", "/workers", "/systems", "/audit", "/docs")


@pytest.fixture(autouse=True)
def known(watch) -> None:
    """Chromium says that it ignores this header where a site has a name and no TLS; refusals it calls failed to load."""
    watch.expected += ["Cross-Origin-Opener-Policy", "status of 403"]


def elsewhere(site: Site) -> str:
    """The same service, as another machine would ask for it."""
    return site.url.replace("127.0.0.1", ELSEWHERE)


async def test_from_elsewhere_everything_needs_a_login(page: Page, site: Site):
    """Every page leads to the login and, with a key, back to where the reader wanted to go."""
    for path in PAGES:
        await page.goto(elsewhere(site) + path)
        await expect(page).to_have_url(f"{elsewhere(site)}/login?next={path.replace('/', '%2F')}")
    await page.goto(f"{elsewhere(site)}/tasks?state=dead")
    await page.get_by_label("Key").fill(site.keys["viewer"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page).to_have_url(f"{elsewhere(site)}/tasks?state=dead")
    await expect(page.get_by_text("viewer ada")).to_be_visible()


@pytest.mark.parametrize(
    ("key", "said"), [("rdk_wrong", "unknown, expired or revoked"), ("events", "This key is not for people")]
)
async def test_wrong_keys_are_refused(page: Page, site: Site, key: str, said: str):
    """With a reason, and without a session; with the right one it then goes on to where the reader wanted to go."""
    await page.goto(f"{elsewhere(site)}/login?next=/dead")
    await page.get_by_label("Key").fill(site.keys.get(key, key))
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
    status = await page.evaluate(POST, [f"{site.url}/api/tasks/redrive", {"ids": [id_], "reason": "no"}, True])
    assert status == 403
    assert (await site.app.tasks.get("card-1")).state == "dead"


POST = """async ([path, body, withToken]) => {
  const token = document.querySelector('meta[name="csrf-token"]')?.content;
  const headers = { "Content-Type": "application/json", ...(withToken ? { "X-CSRF-Token": token } : {}) };
  return (await fetch(path, { method: "POST", headers, body: JSON.stringify(body) })).status;
}"""


async def test_acting_needs_the_token_of_the_session(page: Page, site: Site):
    """A cookie alone, which other pages can make a browser send, changes nothing."""
    await log_in(page, site, "operator", "/dead")
    id_ = (await site.app.tasks.get("card-1")).id
    body = {"ids": [id_], "reason": "forged"}
    assert await page.evaluate(POST, [f"{site.url}/api/tasks/redrive", body, False]) == 403
    assert (await site.app.tasks.get("card-1")).state == "dead"
    cookie = next(one for one in await page.context.cookies() if one["name"] == "redrive_session")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


async def test_on_this_machine_looking_is_open_and_acting_is_not(page: Page, site: Site):
    """Without a key the pages show everything and offer the login."""
    for path in PAGES:
        answer = await page.goto(site.url + path)
        assert answer.status == 200
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


async def test_a_revoked_key_is_out_at_once(page: Page, site: Site):
    """Not after the session's twelve hours, but with the next click."""
    made = await site.service.keys.create("eve", ["operator"])
    site.keys["eve"] = made.secret
    await page.goto(f"{elsewhere(site)}/login")
    await page.get_by_label("Key").fill(made.secret)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_text("eve", exact=True)).to_be_visible()
    await site.service.keys.revoke(made.key.id)
    await page.goto(f"{elsewhere(site)}/tasks")
    await expect(page.get_by_role("heading", name="Log in")).to_be_visible()


async def test_the_login_leads_nowhere_else(page: Page, site: Site):
    """A link to the login cannot send people to another site."""
    await page.goto(f"{site.url}/login?next=https://evil.example/")
    await page.get_by_label("Key").fill(site.keys["viewer"])
    await page.get_by_role("button", name="Log in").click()
    await expect(page).to_have_url(f"{site.url}/")
