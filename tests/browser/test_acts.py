"""What operators do, in a real browser, and what then stands in the database. Each act has tasks of its own."""

import re

import pytest
from playwright.async_api import Page, expect

from redrive import Filter, State, hours
from redrive.lane import NewTask, make_task

from .conftest import log_in
from .site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def dead_tasks(site: Site, kind: str, amount: int, error: str = "cannot be digested") -> list[str]:
    """Some dead tasks of a kind; their keys."""
    keys = [f"{kind}-{number}" for number in range(amount)]
    for key in keys:
        await site.app.add(kind, {"error": error}, key=key)

    async def died() -> bool:
        return all([(await site.app.tasks.get(key)).state is State.DEAD for key in keys])

    await site.until(died)
    return keys


async def states(site: Site, keys: list[str]) -> list[str]:
    """The states of tasks in the database."""
    return [(await site.app.tasks.get(key)).state.value for key in keys]


async def confirm(page: Page, *, shown: str, reason: str) -> None:
    """The question before an act: the number is shown, a reason is asked for."""
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator("#act-count")).to_contain_text(shown)
    await dialog.get_by_label("Why?").fill(reason)
    await dialog.locator("#act-confirm").click()


async def test_redrive_some(page: Page, site: Site):
    """The chosen ones go back to waiting and run again; the others stay dead; who and why are kept."""
    keys = await dead_tasks(site, "broken.some", 3)
    await log_in(page, site, "operator", "/tasks?kind=broken.some&state=dead")
    await expect(page.get_by_role("button", name="Redrive")).to_be_disabled()
    chosen = [(await site.app.tasks.get(key)).id for key in keys[:2]]
    for id_ in chosen:
        await page.get_by_label(f"Choose task {id_}", exact=True).check()
    await expect(page.locator("#chosen")).to_have_text("2 tasks chosen")
    await page.get_by_role("button", name="Redrive").click()
    await confirm(page, shown="2 tasks will go back to waiting", reason="mended")
    await expect(page.get_by_role("status").filter(has_text="2 tasks redriven.")).to_be_visible()
    tasks = [await site.app.tasks.get(key) for key in keys]
    assert [task.redrives for task in tasks] == [1, 1, 0]
    [deed] = await site.app.tasks.deeds(tasks[0].id)
    assert (deed.actor, deed.reason) == ("operator ada", "mended")


async def test_the_number_shown_is_the_number_acted_on(page: Page, site: Site):
    """All that match means all that were seen: what dies between the look and the act is left alone."""
    keys = await dead_tasks(site, "broken.all", 5)
    await log_in(page, site, "operator", "/tasks?kind=broken.all&state=dead")
    await page.get_by_label("Choose all on this page").check()
    await page.get_by_label("Choose all that match the filter").check()
    await expect(page.locator("#chosen")).to_have_text("All that match are chosen")
    await page.get_by_role("button", name="Redrive").click()
    await expect(page.locator("#act-count")).to_contain_text("5 tasks will go back to waiting")
    await site.app.add("broken.all", {"error": "too late"}, key="late")

    async def died() -> bool:
        return (await site.app.tasks.get("late")).state is State.DEAD

    await site.until(died)
    await confirm(page, shown="5 tasks", reason="all of them")
    await expect(page.get_by_role("status").filter(has_text="5 tasks redriven.")).to_be_visible()
    assert [(await site.app.tasks.get(key)).redrives for key in [*keys, "late"]] == [1, 1, 1, 1, 1, 0]


async def test_cancel_what_waits(page: Page, site: Site):
    """Waiting tasks end as cancelled."""
    for number in range(3):
        await site.app.add("mail", key=f"cancel-{number}", delay=hours(5))
    await log_in(page, site, "operator", "/tasks?state=waiting&key=cancel-1")
    await page.get_by_label("Choose all on this page").check()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await confirm(page, shown="1 task will end as cancelled", reason="not wanted")
    await expect(page.get_by_role("status").filter(has_text="1 task cancelled.")).to_be_visible()
    assert await states(site, [f"cancel-{number}" for number in range(3)]) == ["waiting", "cancelled", "waiting"]


async def test_nothing_is_done_without_a_reason_or_after_leaving(page: Page, site: Site):
    """An empty reason is refused in words; Escape and the button leave everything as it is; focus comes back."""
    keys = await dead_tasks(site, "broken.reason", 1)
    await log_in(page, site, "operator", "/tasks?kind=broken.reason")
    await page.get_by_label("Choose all on this page").check()
    button = page.get_by_role("button", name="Redrive")
    await button.click()
    await confirm(page, shown="1 task will go back", reason="   ")
    await expect(page.get_by_role("alert")).to_contain_text("Say why")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect(button).to_be_focused()
    await button.press("Enter")
    await page.get_by_role("button", name="Leave it").click()
    await expect(page.get_by_role("dialog")).to_be_hidden()
    assert await states(site, keys) == ["dead"]
    assert await site.app.tasks.deeds((await site.app.tasks.get(keys[0])).id) == []


async def test_a_question_that_was_left_is_not_answered(page: Page, site: Site):
    """A count that comes back late, after Escape, neither changes the next question nor what it acts on; Enter means yes."""
    [first] = await dead_tasks(site, "broken.late", 1)
    [second] = await dead_tasks(site, "broken.soon", 1)
    ids = [(await site.app.tasks.get(key)).id for key in (first, second)]
    await log_in(page, site, "operator", "/tasks?error=cannot be digested")
    held = []

    async def hold(route) -> None:
        if held:
            await route.continue_()
        else:
            held.append(route)

    await page.route("**/api/tasks/redrive", hold)
    button = page.get_by_role("button", name="Redrive")
    await page.get_by_label(f"Choose task {ids[0]}", exact=True).check()
    await button.click()
    await expect(page.locator("#act-count")).to_have_text("Counting…")
    await page.keyboard.press("Escape")
    await page.get_by_label(f"Choose task {ids[0]}", exact=True).uncheck()
    await page.get_by_label(f"Choose task {ids[1]}", exact=True).check()
    await button.click()
    await expect(page.locator("#act-count")).to_contain_text("1 task will go back")
    async with page.expect_response("**/api/tasks/redrive"):
        await held[0].continue_()
    await page.get_by_label("Why?").fill("only the second")
    await page.get_by_label("Why?").press("Enter")
    await expect(page.get_by_role("status").filter(has_text="1 task redriven.")).to_be_visible()
    assert [(await site.app.tasks.get(key)).redrives for key in (first, second)] == [0, 1]


async def test_an_act_that_was_left_stays_left(page: Page, site: Site, watch):
    """Though another question is open when its answer comes: it goes no further, and that question stays as it is."""
    watch.expected.append("503")
    [key] = await dead_tasks(site, "broken.left", 1)
    await log_in(page, site, "operator", "/tasks?kind=broken.left&state=dead")
    held = []

    async def hold(route) -> None:
        if route.request.post_data_json.get("dry_run"):
            await route.continue_()
        else:
            held.append(route)

    await page.route("**/api/tasks/redrive", hold)
    await page.get_by_label("Choose all on this page").check()
    await page.get_by_label("Choose all that match the filter").check()
    answers = (
        (
            {"json": {"matched": 1, "changed": 1, "until": None, "complete": False}},
            "1 task redriven. The others were left",
        ),
        ({"json": {"matched": 1, "changed": 1, "until": None, "complete": True}}, "1 task redriven."),
        ({"json": {"error": {"message": "not now"}}, "status": 503}, "not now"),
    )
    for number, (answer, said) in enumerate(answers):
        await page.get_by_role("button", name="Redrive").click()
        async with page.expect_request(lambda one: not one.post_data_json.get("dry_run")):
            await confirm(page, shown="1 task will go back", reason="the first")
        await page.get_by_role("button", name="Leave it").click()
        await page.get_by_role("button", name="Redrive").click()
        await expect(page.locator("#act-count")).to_contain_text("1 task will go back")
        await held[number].fulfill(**answer)
        await expect(page.locator("#told p").last).to_contain_text(said)
        await expect(page.locator("#act-count")).to_contain_text("1 task will go back")
        await expect(page.locator("#act-problem")).to_be_hidden()
        await expect(page.locator("#act-confirm")).to_be_enabled()
        await page.get_by_role("button", name="Leave it").click()
    assert len(held) == len(answers)
    assert await states(site, [key]) == ["dead"]


async def test_what_cannot_be_acted_on_is_said(page: Page, site: Site):
    """Chosen tasks that are in no state for the act are counted as none, and the button stays off."""
    await log_in(page, site, "operator", "/tasks?key=mail-1")
    await page.get_by_label("Choose all on this page").check()
    await page.get_by_role("button", name="Redrive").click()
    await expect(page.locator("#act-count")).to_contain_text("None of them is dead now")
    await expect(page.locator("#act-confirm")).to_be_disabled()


async def test_redrive_a_group(page: Page, site: Site):
    """A cause is mended, and all of its group goes back now, as one choice of an operation; other groups stay dead."""
    keys = await dead_tasks(site, "broken.group", 4, error="disk 17 is full")
    others = await dead_tasks(site, "broken.other", 1, error="no route to host")
    await site.count()
    await log_in(page, site, "operator", "/dead")
    group = page.locator(".group", has_text="disk 17 is full")
    await expect(group.locator(".amount")).to_contain_text("4")
    site.heals.set()
    try:
        await group.get_by_role("button", name="Redrive in steps").click()
        await expect(page.locator("#act-count")).to_contain_text("1 of 4 dead tasks runs again first.")
        await page.locator("#act").get_by_label("All now").check()
        await confirm(page, shown="4 dead tasks will go back to waiting at once", reason="disk replaced")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Brought back 4 tasks")

        async def done() -> bool:
            return await states(site, keys) == ["done"] * 4

        await site.until(done)
    finally:
        site.heals.clear()
    assert await states(site, others) == ["dead"]


async def test_two_people_at_once_act_once(page: Page, site: Site, profile, watch):
    """Both are shown one task; the second is told that it had changed meanwhile."""
    [key] = await dead_tasks(site, "broken.twice", 1)
    await log_in(page, site, "operator", "/tasks?kind=broken.twice&state=dead")
    second = watch.over(await profile.new_page())
    await second.goto(f"{site.url}/tasks?kind=broken.twice&state=dead")
    for one in (page, second):
        await one.get_by_label("Choose all on this page").check()
        await one.get_by_role("button", name="Redrive").click()
        await expect(one.locator("#act-count")).to_contain_text("1 task will go back")
        await one.get_by_label("Why?").fill("both of us")
    site.heals.set()
    try:
        await page.locator("#act-confirm").click()
        await expect(page.get_by_role("status").filter(has_text="1 task redriven.")).to_be_visible()

        async def done() -> bool:
            return await states(site, [key]) == ["done"]

        await site.until(done)
        await second.locator("#act-confirm").click()
        await expect(second.get_by_role("status").filter(has_text="0 tasks redriven. 1 had changed")).to_be_visible()
    finally:
        site.heals.clear()
        await second.close()
    assert (await site.app.tasks.get(key)).redrives == 1


@pytest.mark.parametrize(("button", "state"), [("Resolve as done", "done"), ("Resolve as cancelled", "cancelled")])
async def test_resolve_one(page: Page, site: Site, button: str, state: str):
    """A dead task that somebody has dealt with ends, from its own page."""
    [key] = await dead_tasks(site, f"broken.{state}", 1)
    task = await site.app.tasks.get(key)
    await log_in(page, site, "operator", f"/tasks/redrive_task/{task.id}")
    await page.get_by_role("button", name=button).click()
    await confirm(page, shown="1 task will end", reason="paid by hand")
    await expect(page.get_by_role("heading", level=1)).to_contain_text(state)
    assert await states(site, [key]) == [state]
    await expect(page.locator(".story .deed")).to_contain_text("paid by hand")


async def test_pages_of_tasks(page: Page, site: Site):
    """Fifty on a page, the next by a cursor, each task once, and back to the first."""
    await site.app.add_many([_parked(number) for number in range(120)])
    await page.goto(f"{site.url}/tasks?kind=parked&state=waiting")
    seen = await page.locator("#list .id").all_inner_texts()
    for _ in range(2):
        await page.get_by_role("link", name="Next page").click()
        await expect(page.get_by_role("link", name="First page")).to_be_visible()
        seen += await page.locator("#list .id").all_inner_texts()
    assert (len(seen), len(set(seen))) == (120, 120)
    assert await page.get_by_role("link", name="Next page").count() == 0
    await page.get_by_role("link", name="First page").click()
    await expect(page.locator("#list tbody tr")).to_have_count(50)


def _parked(number: int) -> NewTask:
    return make_task("parked", {"number": number}, key=f"parked-{number}", delay=hours(9))


async def test_filters(page: Page, site: Site):
    """State, kind, key, error and age; what cannot be read is said beside the form, which keeps what was typed."""
    await page.goto(f"{site.url}/tasks")
    await page.get_by_label("State").select_option("dead")
    await page.get_by_label("Error contains").fill("was declined")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("#list tbody tr")).to_have_count(1)
    await expect(page.locator("#list")).to_contain_text("card-1")
    await page.get_by_label("Older than").fill("soon")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_role("alert")).to_contain_text("must be written as seconds (90) or with a unit")
    await expect(page.get_by_label("Error contains")).to_have_value("was declined")
    await page.get_by_label("Older than").fill("3h")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_text("No task matches.")).to_be_visible()
    await page.get_by_role("link", name="Clear").click()
    await expect(page.locator("#list tbody tr").first).to_be_visible()


async def test_searching_for_a_text(page: Page, site: Site):
    """A search looks through payloads too, shows how far it is, and ends."""
    await page.goto(f"{site.url}/tasks")
    await page.get_by_text("Search the text of all tasks").click()
    await page.get_by_label("Text in payload").fill("ada-7@example.org")
    await page.get_by_role("button", name="Search", exact=True).click()
    await expect(page.locator("#search-said")).to_contain_text(re.compile(r"1 task found in \d+ looked at\."))
    await page.locator("#search-rows a").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Task")
    await expect(page.locator(".facts")).to_contain_text("mail-7")


async def test_the_page_of_a_task(page: Page, site: Site):
    """Its row, its payload without secrets, why it waits, and the very times of the tries to come."""
    task = await site.app.tasks.get("slow-1")
    await page.goto(f"{site.url}/tasks/redrive_task/{task.id}")
    await expect(page.locator(".notice")).to_contain_text("it is tried in")
    await expect(page.locator(".story .failed")).to_contain_text("crm.example refused the connection")
    await expect(page.locator(".story .failed .sentence")).to_contain_text("failure 1 of 4: again after")
    shown = [await one.get_attribute("datetime") for one in await page.locator(".story .ahead time").all()]
    due = task.due_at.strftime("%Y-%m-%dT%H:%M:%S")
    assert len(shown) == 3 and shown[0].startswith(due)
    assert await page.locator(".picture .mark.ahead").count() == 3
    payload = page.locator(".payload")
    await expect(payload).to_contain_text('"customer": 7')
    assert "secret-token" not in await page.content()
    await page.locator("summary", has_text="characters").click()
    await expect(payload).to_be_hidden()


async def test_the_audit_log(page: Page, site: Site):
    """Every act, with who and why, leads to its task; and nothing else is there."""
    [key] = await dead_tasks(site, "broken.audit", 1)
    await site.app.tasks.redrive(Filter(key=key), actor="grace", reason="asked by <support>")
    await page.goto(f"{site.url}/audit")
    row = page.locator("tbody tr", has_text="grace")
    await expect(row).to_contain_text("redrive")
    await expect(row).to_contain_text("asked by <support>")
    await row.get_by_role("link").click()
    await expect(page.locator(".facts")).to_contain_text(key)


async def test_systems_and_their_ledgers(page: Page, site: Site):
    """What stands on the application, with the kinds that it runs here."""
    await page.goto(f"{site.url}/systems")
    row = page.locator("#redrive tbody tr")
    await expect(row).to_contain_text("redrive_task")
    await expect(row).to_contain_text("broken.*")
    await row.get_by_role("link", name="redrive_task").click()
    await expect(page).to_have_url(f"{site.url}/tasks?ledger=redrive_task")
