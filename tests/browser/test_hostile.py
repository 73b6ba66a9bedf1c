"""What strangers wrote into tasks is text, whatever it looks like: nothing of it runs, loads or breaks a page."""

from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from redrive import State
from tests.breadth import WIDE

from .conftest import log_in
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

CORPUS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "' onmouseover='alert(4)' autofocus onfocus='alert(4)",
    "javascript:alert(5)",
    "</script><script>alert(6)</script>",
    "{{ 7 * 7 }}{% for x in () %}{{ config }}",
    "${alert(8)}`alert(8)`",
    "<iframe src='https://evil.example/'></iframe><link rel=stylesheet href=https://evil.example/x.css>",
    "<b>bold</b><a href='https://evil.example/'>click</a><style>*{display:none}</style>",
    "]]><!--<template><form action=https://evil.example/><button>",
    "\u202egnp.exe\u2066 \u200b\ufeff 𝕏 ﷽ z̸̡͝a̷͎͝l̷̙̈́g̷͖̏o̷̢̕",
    "a" * 190,
    "../../../etc/passwd?x=1&y=2#z",
    "&lt;script&gt;alert(9)&lt;/script&gt;",
)
PAGES = ("/", "/tasks", "/tasks?state=dead", "/dead", "/gates", "/workers", "/systems", "/audit")


@pytest.fixture(scope="module")
def known() -> dict[str, object]:
    """What the module has made once."""
    return {}


async def infest(site: Site, known: dict[str, object]) -> list[int]:
    """Dead tasks whose kind, key, payload and error are each of the corpus, and deeds with such reasons."""
    if "ids" not in known:
        for text in CORPUS:
            await site.app.add(f"broken.{text}", {"error": text, text: [text, {"deep": text}]}, key=f"hostile {text}")
            await site.app.tasks.pause_gate(text, actor=text, reason=text)
            await site.app.tasks.pause_gate(f"kind:{text}", actor=text, reason=text)

        async def died() -> bool:
            return all([(await site.app.tasks.get(f"hostile {text}")).state is State.DEAD for text in CORPUS])

        await site.until(died)
        known["ids"] = [(await site.app.tasks.get(f"hostile {text}")).id for text in CORPUS]
        await site.app.tasks.resolve(known["ids"][-1:], State.DONE, actor=CORPUS[0], reason=CORPUS[1])
        await site.count()
    return known["ids"]


async def run_nothing(page: Page) -> None:
    """No element of the corpus became an element of the page."""
    assert await page.locator("iframe, [onerror], [onload], [onfocus], [onmouseover], style").count() == 0
    assert (
        await page.evaluate("""[
      ...[...document.links].map((one) => one.href), ...[...document.forms].map((one) => one.action),
      ...[...document.scripts, ...document.images].map((one) => one.src),
    ].filter((one) => !one.startsWith(location.origin + "/"))""")
        == []
    )


@pytest.mark.parametrize("path", PAGES)
async def test_pages_show_it_as_text(page: Page, site: Site, known: dict[str, object], path: str):
    """On every page, for an operator, who sees the most."""
    await infest(site, known)
    await log_in(page, site, "operator", path)
    await run_nothing(page)


async def test_the_page_of_each_task(page: Page, site: Site, known: dict[str, object]):
    """Kind, key, payload and error of each of them are on its page, letter by letter. All of them are in the lists of the pages above."""
    each = list(zip(CORPUS, await infest(site, known), strict=True))
    for text, id_ in each if WIDE else each[:12:3]:
        await page.goto(f"{site.url}/tasks/redrive_task/{id_}")
        await run_nothing(page)
        await expect(page.locator(".facts dd").first).to_have_text(f"hostile {text}", use_inner_text=False)
        assert text in (await page.locator(".story .said").first.text_content())


async def test_what_scripts_draw_is_text_too(page: Page, site: Site, known: dict[str, object]):
    """The search shows what it finds, and the question before an act names its group."""
    await infest(site, known)
    await log_in(page, site, "operator", "/tasks")
    await page.get_by_text("Search the text of all tasks").click()
    await page.get_by_label("Text in payload").fill("onerror")
    await page.get_by_role("button", name="Search", exact=True).click()
    await expect(page.locator("#search-rows")).to_contain_text("<img src=x onerror=alert(2)>")
    await run_nothing(page)
    await page.goto(f"{site.url}/dead")
    await page.locator(".group", has_text="<img src=x").get_by_role("button", name="Redrive").click()
    await expect(page.locator("#act-count")).to_contain_text("<img src=x")
    await run_nothing(page)


async def test_filters_and_addresses(page: Page, site: Site, watch):
    """What stands in the address is text as well."""
    watch.expected.append("404")
    for kind, error, key in list(zip(CORPUS[::3], CORPUS[1::3], CORPUS[2::3], strict=True))[: None if WIDE else 2]:
        await page.goto(f"{site.url}/tasks?kind={_quoted(kind)}&error={_quoted(error)}&key={_quoted(key)}")
        await expect(page.get_by_label("Kind", exact=True)).to_have_value(kind)
        await expect(page.get_by_label("Error contains")).to_have_value(error)
        await run_nothing(page)
        for path in (f"/tasks/{_quoted(kind)}/{_quoted(key)}", f"/login?problem={_quoted(error)}&next={_quoted(key)}"):
            await page.goto(site.url + path)
            await run_nothing(page)


def _quoted(text: str) -> str:
    return quote(text, safe="")
