"""The page of gates in a real browser: what holds is named first, a reason is asked before each act, and two at once act once."""

import re

import pytest
from playwright.async_api import Page, expect

from redrive.operator.roster import WorkerSign

from .conftest import log_in
from .gated import guard
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def known() -> dict[str, bool]:
    """What the module has made once."""
    return {}


async def show(page: Page, site: Site, known: dict[str, bool], role: str = "operator", path: str = "/gates") -> None:
    if not known:
        await guard(site)
        known["guarded"] = True
    await log_in(page, site, role, path)


async def test_a_gate_is_paused_and_resumed(page: Page, site: Site, known: dict[str, bool]):
    """With a reason, which is asked for; it stands beside the gate, and what was done in the audit."""
    await show(page, site, known)
    row = page.locator("tr", has=page.get_by_text("bank:FR", exact=True))
    await row.get_by_role("button", name="Pause").click()
    dialog = page.locator("#gate-act")
    await expect(dialog.get_by_role("heading")).to_have_text("Pause bank:FR")
    await dialog.get_by_role("button", name="Pause bank:FR").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Say why")
    await dialog.get_by_label("it resumes by itself after").check()
    await dialog.get_by_label("Reason").fill("the bank moves")
    await dialog.get_by_role("button", name="Pause bank:FR").click()
    await expect(page.locator("#gates")).to_contain_text("Paused by operator ada")
    await expect(page.locator("#gates")).to_contain_text("“the bank moves”. It resumes by itself at")
    await row.get_by_role("button", name="Resume").click()
    await dialog.get_by_label("Reason").fill("it is back")
    await dialog.get_by_role("button", name="Resume bank:FR").click()
    await expect(row).to_contain_text("Letting through")
    await page.goto(f"{site.url}/audit")
    await expect(page.get_by_role("link", name="gate:bank:FR").first).to_be_visible()


async def test_the_second_of_two_is_told_who_was_quicker(page: Page, site: Site, known: dict[str, bool], watch):
    """A page that was drawn before somebody acted changes nothing, and says who it was."""
    watch.expected.append("409")
    await show(page, site, known)
    row = page.locator("tr", has=page.get_by_text("smtp", exact=True))
    await row.get_by_role("button", name="Pause").click()
    await site.app.tasks.pause_gate("smtp", actor="grace", reason="mine")
    dialog = page.locator("#gate-act")
    await dialog.get_by_label("Reason").fill("also mine")
    await dialog.get_by_role("button", name="Pause smtp").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("grace was quicker (gate paused)")
    view = await site.app.tasks.gate_state("smtp")
    assert view is not None
    assert view.reason == "mine"


async def test_limits_are_changed(page: Page, site: Site, known: dict[str, bool]):
    """The dialog shows those that hold; what is emptied is no limit any more."""
    await show(page, site, known)
    await page.locator("tr", has=page.get_by_text("bank:FR", exact=True)).get_by_role("button", name="Limits").click()
    dialog = page.locator("#gate-act")
    await expect(dialog.get_by_label("At once")).to_have_value("5")
    await dialog.get_by_label("Rate").fill("7/s")
    await dialog.get_by_label("Burst").fill("3")
    await dialog.get_by_label("Failures that make it hold").fill("")
    await dialog.get_by_label("Reason").fill("agreed")
    await dialog.get_by_role("button", name="Set limits").click()
    await expect(
        page.get_by_role("region", name="Limits").or_(page.locator("section", has_text="Set by"))
    ).to_contain_text("7/s")
    view = await site.app.tasks.gate_state("bank:FR")
    assert view is not None
    assert (view.limits.rate, view.limits.burst, view.limits.failures, view.limits.concurrency) == (7, 3, None, 5)


async def test_a_kind_is_paused(page: Page, site: Site, known: dict[str, bool]):
    """From a button of its own; it is then a row like the others."""
    await show(page, site, known)
    await page.get_by_role("button", name="Pause a kind or a ledger").click()
    dialog = page.locator("#gate-act")
    await dialog.get_by_role("textbox", name="Kind").fill("flaky.*")
    await dialog.get_by_label("Reason").fill("wrong template")
    await dialog.get_by_role("button", name="Pause flaky.*", exact=True).click()
    await expect(page.locator("#gates")).to_contain_text("kind flaky.*")
    assert "kind:flaky.*" in await (await site.app.tasks.ledger()).paused_kinds()


async def test_the_dialog_says_what_a_pause_stops(page: Page, site: Site, known: dict[str, bool]):
    """Before a kind is paused: how much runs, waits and arrives of it, of a pattern too, and where nobody has tried it; the button says the act."""
    await show(page, site, known)
    sign = WorkerSign(
        name="w", host="h", pid=1, started_at=site.app.store.now(), slots=9,
        holds={"redrive_task": {"bank.pay": 2, "bank.ask": 1, "mail": 5}, "other": {"bank.pay": 7}},
    )  # fmt: skip
    await site.app.store.roster.sign(sign)
    await page.get_by_role("button", name="Pause a kind or a ledger").click()
    dialog = page.locator("#gate-act")
    facts, kind = page.locator("#gate-facts"), dialog.get_by_role("textbox", name="Kind")
    await kind.fill("bank.pay")
    await expect(facts).to_contain_text("Runs now2 tasks; they finish")
    await kind.fill("b*.*")
    await expect(facts).to_contain_text("Runs now3 tasks; they finish")
    await expect(facts).to_contain_text("Takes effectin every process within a second")
    await expect(page.locator("#gate-confirm")).to_have_text("Pause b*.*")
    await kind.fill("nobody.(knows")
    await expect(facts).to_contain_text("Runs nownothing")
    await expect(facts).to_contain_text("Arrivesnot tried in the last hour")
    await dialog.get_by_label("the whole ledger").check()
    await expect(page.locator("#gate-confirm")).to_have_text("Pause redrive_task")
    await expect(facts).to_contain_text(re.compile(r"Waits[1-9][\d,]*\+? tasks?; not charged, not lost"))
    await dialog.get_by_role("button", name="Leave it").click()
    await page.locator("tr", has=page.get_by_text("warehouse", exact=True)).get_by_role("button", name="Pause").click()
    await expect(facts).to_contain_text("Runs now")
    await expect(facts).to_contain_text("Will park")
    await dialog.get_by_role("button", name="Leave it").click()


async def test_viewers_see_no_buttons(page: Page, site: Site, known: dict[str, bool]):
    """They see everything else; the overview names what holds, and leads here."""
    await show(page, site, known, "viewer")
    await expect(page.locator("#gates")).to_contain_text("The breaker tripped after 3 failures within 1m.")
    assert await page.locator("button[data-gate-act], #gate-act").count() == 0
    await page.goto(site.url)
    await page.locator(".trouble", has_text="bank:DE").get_by_role("link", name="View gate").click()
    await expect(page).to_have_url(f"{site.url}/gates?ledger=redrive_task&prefix=bank%3ADE")


async def test_the_page_stays_fresh(page: Page, site: Site, known: dict[str, bool]):
    """A gate that somebody pauses elsewhere is shown as paused, without a reload."""
    await show(page, site, known)
    await page.evaluate("window.stays = true")
    await site.app.tasks.pause_gate("warehouse", actor="grace", reason="stocktaking")
    await expect(page.locator("#gates")).to_contain_text("“stocktaking”")
    assert await page.evaluate("window.stays")
