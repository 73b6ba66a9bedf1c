"""How the pages look and read: both themes, at a desk and on a phone, by eye, by keyboard and by ear.

The pictures of the docs are made here too.
"""

import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import Connection, delete, insert

from redrive import State
from redrive.ledgers.sql import schema
from redrive.ports import Filter

from .conftest import DESK, PHONE, Watch, log_in
from .gated import guard
from .looks import GRAVE, SHOTS, looks_well
from .monday import monday
from .site import Site
from .sunday import sunday

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parent.parent.parent
PICTURES = ROOT / "docs" / "images" if "REDRIVE_TEST_PICTURES" in os.environ else SHOTS
"""A run of the tests leaves the pictures of the docs alone unless it is told to make them anew: `make pictures`."""
WIDTHS = (1440, 1024, 768, 390)
PAGES = {
    "overview": "/",
    "tasks": "/tasks?state=dead",
    "task": "/tasks/redrive_task/{dead}",
    "waiting-task": "/tasks/redrive_task/{waiting}",
    "dead": "/dead",
    "cause": "/causes/redrive_task/{cause}",
    "kind": "/kinds/redrive_task/broken.import",
    "operations": "/operations",
    "operation": "/operations/{operation}",
    "operation-tasks": "/operations/{operation}/tasks",
    "charts": "/charts",
    "gates": "/gates",
    "effects": "/effects",
    "workers": "/workers",
    "systems": "/systems",
    "audit": "/audit",
    "act": "/audit/{act}",
    "login": "/login",
    "nowhere": "/nothing/here",
}
NIGHT = {
    "workers": "/workers",
    "gates": "/gates",
    "kind": "/kinds/redrive_task/mail.send",
    "dead": "/dead",
    "charts": "/charts",
    "tasks": "/tasks",
    "dead-tasks": "/tasks?state=dead",
}


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    """What the module has made once."""
    return {}


async def path_of(name: str, site: Site, known: dict[str, str]) -> str:
    """The address of a page; the day before is written down once, so that the charts have something to show."""
    if not known:
        await remember_a_day(site)
        await guard(site)
        await site.app.tasks.resolve(
            [(await site.app.tasks.get("import-2")).id], State.DONE, actor="ada", reason="imported by hand"
        )
        known["dead"] = str((await site.app.tasks.get("import-1")).id)
        known["waiting"] = str((await site.app.tasks.get("slow-1")).id)
        known["operation"] = await halted(site)
        known["act"] = (await site.app.store.audit.page(limit=1)).items[0].id
        await site.count()
        [known["cause"]] = [
            one.id for one in await site.app.store.figures.groups(["redrive_task"]) if one.kind == "broken.import"
        ]
    return PAGES[name].format(**known)


async def halted(site: Site) -> str:
    """An operation that brought one task back, which failed again."""
    operations = site.app.tasks.operations
    started = await operations.start(Filter(kind="broken.import"), actor="ada", reason="the file is mended")

    async def is_halted() -> bool:
        return (await operations.get(started.id)).state == "halted"

    await site.until(is_halted)
    return started.id


async def show(page: Page, site: Site, name: str, known: dict[str, str]) -> None:
    """Open a page as an operator and wait until it is whole."""
    await log_in(page, site, "operator", await path_of(name, site, known))


@pytest.mark.parametrize("name", PAGES)
async def test_pages_fit_and_are_accessible(page: Page, site: Site, known: dict[str, str], name: str, watch: Watch):
    """No finding by axe; nothing wider than the screen, from a desk to a phone; and the landmarks that a reader by ear needs.

    These are one main, one heading of the first level, a title that no other page has, and the place in the menu.
    """
    watch.expected += ["404"] if name == "nowhere" else []
    await show(page, site, name, known)
    assert await page.locator("main").count() == await page.locator("h1").count() == 1
    assert await page.locator("header nav[aria-label=Main]").count() == (name != "login")
    assert known.setdefault(f"titled {await page.title()}", name) == name
    await looks_well(page, name, widths=WIDTHS, impacts=("minor", "moderate", *GRAVE))


@pytest.mark.wide
async def test_every_page_of_a_bad_night(page: Page, tmp_path: Path):
    """The pages that tell of trouble, while there is some: nothing that axe finds, nothing wider than the screen."""
    async with sunday(tmp_path) as night:
        await log_in(page, night)
        await looks_well(page, "night-overview")
        for name, path in NIGHT.items():
            await page.goto(night.url + path)
            await looks_well(page, f"night-{name}")
        await page.goto(night.url)
        await page.locator(".trouble.needs").get_by_role("link", name="View cause").click()
        await expect(page.locator(".frame.here")).to_be_visible()
        await looks_well(page, "night-cause")
        await page.goto("about:blank")  # or it asks a site that is gone


@pytest.mark.wide
async def test_fifty_dead_tasks_are_three_screens_of_a_phone(page: Page, tmp_path: Path):
    """The list begins before the form that filters it; whoever has filled that in finds it open."""
    async with sunday(tmp_path) as night:
        await page.set_viewport_size(PHONE)
        await log_in(page, night, path="/tasks?state=dead")
        rows = page.locator("#list tbody tr")
        assert await rows.count() == 50
        last = await rows.last.bounding_box()
        assert last is not None and last["y"] + last["height"] <= 3 * PHONE["height"]
        await expect(page.get_by_label("Kind", exact=True)).to_be_hidden()
        await page.goto(f"{night.url}/tasks?state=dead&kind=crm.sync")
        await expect(page.get_by_label("Kind", exact=True)).to_have_value("crm.sync")
        await page.goto("about:blank")


@pytest.mark.wide
async def test_a_calm_morning(page: Page, tmp_path: Path):
    """That all is well, with what happened last, is one screen at a desk; acts are told in words and lead to themselves."""
    async with monday(tmp_path) as calm:
        await page.set_viewport_size({"width": 1440, "height": 900})
        await log_in(page, calm)
        await expect(page.get_by_role("heading", level=1)).to_have_text("All is well")
        for part in ("#kinds", "#beside"):
            box = await page.locator(part).bounding_box()
            assert box is not None and box["y"] + box["height"] <= 900
        await looks_well(page, "calm-overview")
        await page.get_by_role("link", name="ada resumed gate bank:FR").click()
        await expect(page.locator("#main")).to_contain_text("it has moved")
        await looks_well(page, "calm-act")
        await page.goto("about:blank")


@pytest.mark.wide
async def test_the_pictures_of_the_docs(page: Page, site: Site, known: dict[str, str], tmp_path: Path):
    """From the pages as they are: a Sunday night on the first screen, and on the page of its cause."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    await page.set_viewport_size({"width": 1280, "height": 900})
    await page.emulate_media(color_scheme="light")
    async with sunday(tmp_path) as night:
        await log_in(page, night)
        await page.locator("footer").evaluate("(one) => one.remove()")  # it names a folder of this machine
        await expect(page.get_by_role("heading", level=1)).to_have_text("One thing needs you")
        await page.screenshot(path=PICTURES / "dashboard.png", full_page=True)
        await page.locator(".trouble.needs").get_by_role("link", name="View cause").click()
        await expect(page.locator(".frame.here")).to_contain_text("shop/mail.py:10")
        await page.screenshot(path=PICTURES / "cause.png")
        await page.goto("about:blank")
    await log_in(page, site, "operator", await path_of("waiting-task", site, known))
    await page.screenshot(path=PICTURES / "task.png")
    await page.goto(site.url + await path_of("gates", site, known))
    await page.locator("#gates").screenshot(path=PICTURES / "gates.png")


async def test_a_phone_shows_what_its_shape_is_for(page: Page, site: Site, known: dict[str, str]):
    """A task tells its story from top to bottom, and not once more from side to side; an act without a reason has no line for one."""
    await show(page, site, "waiting-task", known)
    await expect(page.locator(".picture")).to_be_visible()
    await page.set_viewport_size(PHONE)
    await expect(page.locator(".story")).to_be_visible()
    await expect(page.locator(".picture")).to_be_hidden()
    await page.goto(site.url + await path_of("audit", site, known))
    reasons = page.locator("[data-name=Why]")
    shown = [await one.inner_text() for one in await reasons.all() if await one.is_visible()]
    assert len(shown) < await reasons.count()
    assert "–" not in shown
    await page.set_viewport_size(DESK)


async def test_by_keyboard_alone(page: Page, site: Site, known: dict[str, str]):
    """From the top of the page into the list, a task chosen and the question opened, without a mouse."""
    await show(page, site, "tasks", known)
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.locator("#tick-all").focus()
    await page.keyboard.press("Space")
    await page.get_by_role("button", name="Redrive").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await expect(page.get_by_label("Why?")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def remember_a_day(site: Site) -> None:
    """A day as the ledger would have written it: a quiet night, a busy day, one bad half hour that healed."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    minutes, samples, tasks = [], [], []
    for back in range(24 * 60, 1, -5):
        minute = now - timedelta(minutes=back)
        busy = 30 + 25 * math.sin((back / 60 - 6) / 24 * 2 * math.pi)
        out, healing = 300 < back < 340, 260 < back <= 300
        done = round(busy * (0.3 if out else 1.5 if healing else 1))
        dead = 2 if out else 1 if back % 120 == 0 else 0
        tasks += [_ended(minute, f"{back}-{number}", number, dead=number < dead) for number in range(done + dead)]
        minutes.append(
            {
                "minute": minute, "ledger": "redrive_task", "worker": "then", "added": round(busy) + dead,
                "done": done, "dead": dead, "retried": round(busy * (0.7 if out else 0.1)),
                "tries_1": round(done * 0.8), "tries_2": round(done * 0.12), "tries_3": round(done * 0.06), "tries_4": dead,
                "took_03": round(done * 0.25), "took_04": round(done * 0.45), "took_05": round(done * 0.15),
                "took_06": round(done * 0.08), "took_07": round(done * 0.05) + out, "took_08": int(out),
            }
        )  # fmt: skip
        samples.append(
            {
                "minute": minute, "ledger": "redrive_task", "claimed": round(busy / 4), "done": 0, "cancelled": 0,
                "waiting": round(12 + 6 * math.sin(back / 50) + (max(0, 140 - abs(back - 303) * 3) if back < 345 else 0)),
                "dead": sum(task["state"] == "dead" for task in tasks),
                "oldest_due_seconds": max(0.4, (345 - back) * 9 if out else 2 + 2 * math.sin(back / 30)),
            }
        )  # fmt: skip

    def write(connection: Connection) -> None:
        for table, rows in ((schema.task, tasks), (schema.minute, minutes), (schema.sample, samples)):
            connection.execute(insert(table), rows)
        # Else the next count would take all of them for tasks that somebody else has just added.
        connection.execute(delete(schema.census))

    await site.app.database.write(write)
    await site.count()


def _ended(minute: datetime, key: str, number: int, *, dead: bool) -> dict[str, object]:
    errors = (
        "ConnectionError: crm.example:443 refused the connection for customer {}",
        "PermanentError: card of order {} was declined",
    )
    return {
        "key": f"then-{key}", "kind": ("mail.send", "customer.sync", "payment.capture")[number % 3], "payload": None,
        "state": "dead" if dead else "done", "failures": 4 if dead else 0, "created_at": minute, "updated_at": minute,
        "ended_at": minute, "last_error": errors[number % 2].format(key) if dead else None,
    }  # fmt: skip
