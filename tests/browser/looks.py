"""How a page looks, whichever it is: nothing that axe finds, nothing wider than the screen.

The themes differ in their colours alone, and all pages are put together of the same parts: each is looked at in one theme, some in the light
one and some in the dark one. Where all homes are asked for, each is looked at in both, and pictures go to `build/screenshots` for people to
look at.
"""

from collections.abc import Sequence
from pathlib import Path

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.breadth import WIDE

from .conftest import DESK, PHONE

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
THEMES = ("light", "dark")
LOOKED_AT = (1440, 390)
COLOURS = {"runOnly": ["color-contrast"]}
VIOLATIONS_ALONE = {"resultTypes": ["violations"], "selectors": False, "preload": False}
"""What is looked for nowhere below is not made: paths to what was found, and style sheets of other hosts, of which a page has none."""
FITS = "width => innerWidth === width && document.documentElement.scrollWidth <= document.documentElement.clientWidth"
GRAVE = ("serious", "critical")


async def looks_well(
    page: Page,
    name: str,
    *,
    widths: Sequence[int] = (DESK["width"], PHONE["width"]),
    impacts: Sequence[str] = GRAVE,
) -> None:
    """The page that is open: no finding of these impacts, and it fits each width."""
    themes = THEMES if WIDE else (THEMES[sum(name.encode()) % 2],)
    for theme, rules in zip(themes, ({}, COLOURS), strict=False):
        await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        found = await Axe().run(page, options={**VIOLATIONS_ALONE, **rules})
        wrong = [one for one in found.response["violations"] if one["impact"] in impacts]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in wrong] == [], (name, theme)
        if WIDE:
            await pictures(page, name, theme)
    await page.emulate_media(color_scheme="light")
    for width in widths:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.wait_for_function(FITS, arg=width)  # some parts are drawn anew for another width
    await page.set_viewport_size(DESK)


async def fits(page: Page) -> bool:
    """Whether nothing is wider than the screen."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


async def pictures(page: Page, name: str, theme: str) -> None:
    """For people to look at: at a desk and on a phone."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for width in LOOKED_AT:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.wait_for_function(FITS, arg=width)
        await page.screenshot(path=SHOTS / f"{name}-{width}-{theme}.png", full_page=True)
