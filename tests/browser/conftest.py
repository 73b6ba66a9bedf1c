"""One browser for the whole run, one service for each module, and a page that reports what a reader would never see.

Every page of every test is watched: an error in the console, a script error, a request to another host or a dialog that
some script opened fails the test, whatever else it looks at.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Error, Page, ViewportSize, async_playwright, expect

from redrive.operator.roster import LOST_AFTER

from .chromium import ARGUMENTS, ELSEWHERE, chromium
from .site import Site, fill, serving

DESK: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
LEFT, NOTHING = "/left-by-a-test", "<!doctype html><link rel='icon' href='data:,'>"
"""Where a page waits for the next test: on the same host, since the browser would start another process for about:blank."""
expect.set_options(timeout=60_000)  # five seconds would do, unless the machine is busy


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser of this run."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        await started.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A service with some of everything."""
    async with serving(tmp_path_factory.mktemp("site")) as running:
        await fill(running)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def empty_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A service in which nothing has ever happened."""
    async with serving(tmp_path_factory.mktemp("empty")) as running:
        await running.count()
        yield running


class Watch:
    """What must not happen on a page."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.expected: list[str] = []
        self._heard: dict[Any, Any] = {
            "console": lambda said: self._note(f"console: {said.text}") if said.type in ("error", "warning") else None,
            "pageerror": lambda error: self._note(f"script: {error}"),
            "request": lambda request: self._request(request.url),
            "dialog": self._dialog,
        }

    def over(self, page: Page) -> Page:
        """Watch a page."""
        for event, hear in self._heard.items():
            page.on(event, hear)
        return page

    def leave(self, page: Page) -> None:
        """Watch it no longer."""
        for event, hear in self._heard.items():
            page.remove_listener(event, hear)

    def _note(self, what: str) -> None:
        self.seen.append(what)

    def _request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname not in ("127.0.0.1", ELSEWHERE):
            self._note(f"request to another host: {url}")

    async def _dialog(self, dialog) -> None:
        self._note(f"a script ran: {dialog.message}")
        await dialog.dismiss()

    def unexpected(self) -> list[str]:
        """What was seen and no test had asked for."""
        return [one for one in self.seen if not any(known in one for known in self.expected)]


@pytest.fixture(scope="package", autouse=True)
def busy() -> Iterator[None]:
    """A machine that is busy for some seconds is no trouble on the first screen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redrive.operator.roster.SILENT_AFTER", LOST_AFTER)
        patch.setattr(import_module("redrive.operator.verdict.judge"), "WROTE_MAX", timedelta(minutes=1))
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def watch() -> AsyncIterator[Watch]:
    """Judged when the test ends."""
    watching = Watch()
    yield watching
    assert watching.unexpected() == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def profile(browser: Browser) -> AsyncIterator[BrowserContext]:
    """One profile for all tests: what pages load is then fetched and compiled once."""
    made = await browser.new_context(viewport=DESK, reduced_motion="reduce")
    made.set_default_timeout(60_000)
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def left_pages() -> list[Page]:
    """Pages that a test has left as they were when they were new. A new one starts a process, which takes longer than most tests do."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def page(profile: BrowserContext, left_pages: list[Page], watch: Watch) -> AsyncIterator[Page]:
    """A watched page, without a session."""
    await profile.clear_cookies()
    opened = watch.over(left_pages.pop() if left_pages else await profile.new_page())
    yield opened
    watch.leave(opened)
    if opened.is_closed():
        return
    try:
        await opened.unroute_all(behavior="ignoreErrors")
        await opened.evaluate("window.stop(); sessionStorage.clear()")
        await opened.route(f"**{LEFT}", lambda route: route.fulfill(body=NOTHING, content_type="text/html"))
        await opened.goto(urljoin(opened.url, LEFT))
        await opened.unroute_all()
        await opened.emulate_media(color_scheme="light")
        if opened.viewport_size != DESK:
            await opened.set_viewport_size(DESK)
    except Error:
        await opened.close()
    else:
        left_pages.append(opened)


async def refresh(page: Page) -> None:
    """Have the page drawn anew now, and wait until it is: whoever looks at it again need not wait for the next time."""
    before = int(await page.locator("body").get_attribute("data-refreshed") or 0)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.wait_for_function("before => Number(document.body.dataset.refreshed ?? 0) > before", arg=before)


async def log_in(page: Page, site: Site, role: str = "operator", path: str = "/") -> None:
    """Log in without the form, which has tests of its own, and go to a page."""
    answer = await page.context.request.post(
        f"{site.url}/login", form={"key": site.keys[role]}, headers={"Accept": "application/json"}
    )
    assert answer.ok
    await page.goto(site.url + path)
