"""The troubleshooting queue in a real browser: what waits for a person is seen, understood and acted on, and the bus has it."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from redrive import Redrive
from redrive.systems.commands import Commands, NewCommand, PermanentCommandError, Registry, RetryPolicy
from redrive.systems.commands.desk import TROUBLED
from tests.breadth import WIDE

from .conftest import log_in
from .looks import looks_well
from .site import Site, serving
from .test_acts import confirm
from .test_hostile import CORPUS, run_nothing

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/systems/commands"
REPLIES = "billing__replies"
ROWS = "[aria-label='Commands that need attention'] tbody tr"
HOSTILE = [text.replace("*", "x")[:140] for text in CORPUS]


def with_bus(app: Redrive) -> None:
    """A bus whose handlers fail for good, unless the data says that all is mended."""
    handlers = Registry()

    async def fail(command: Any, context: Any) -> Any:
        if not isinstance(command.data, dict) or not command.data.get("mended"):
            said = command.data if isinstance(command.data, str) else f"no account {command.command_id}"
            raise PermanentCommandError(said if said in HOSTILE else "NO_ACCOUNT", said, {said: said})

    for domain in ("billing", "shipping", "hostile", "paged"):
        for command_type in ("DebitAccount", "Pack", *(HOSTILE if domain == "hostile" else ())):
            handlers.handler(domain, command_type)(fail)
    Commands(app, handlers=handlers, retry_policy=RetryPolicy())


def bus_of(site: Site) -> Commands:
    """The bus of a site."""
    bus = site.app.systems["commands"]
    assert isinstance(bus, Commands)
    return bus


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A service with a bus on which nothing waits yet."""
    async with serving(tmp_path_factory.mktemp("commands"), join=with_bus) as running:
        yield running


async def troubled(
    site: Site, *ids: str, domain: str = "billing", type: str = "DebitAccount", data: Any = None
) -> None:
    """Commands that wait for a person."""
    bus = bus_of(site)
    given = {"amount": 10, "password": "hunter2"} if data is None else data
    await bus.send_batch(
        [NewCommand(domain=domain, command_type=type, command_id=one, data=given, reply_to=REPLIES) for one in ids]
    )

    async def all_wait() -> bool:
        found = [await bus.get_command(domain, one) for one in ids]
        return all(one is not None and one.status is TROUBLED for one in found)

    await site.until(all_wait)


async def statuses(site: Site, *ids: str, domain: str = "billing") -> list[str]:
    """Where commands stand in the database."""
    found = [await bus_of(site).get_command(domain, one) for one in ids]
    return [one.status.value if one is not None else "none" for one in found]


async def told(page: Page, sentence: str) -> None:
    """What was done is said at the edge of the page."""
    await expect(page.get_by_role("status").filter(has_text=sentence)).to_be_visible()


def path_of(command_id: str, domain: str = "billing") -> str:
    """The page of a command."""
    return f"{PATH}?{urlencode({'of': domain, 'command': command_id})}"


async def test_an_empty_queue(page: Page, site: Site):
    """It says so; the list of systems leads to it."""
    await log_in(page, site, "operator", "/systems")
    await page.get_by_role("link", name="Troubleshooting").click()
    await expect(page.get_by_role("heading", name="No command needs attention")).to_be_visible()
    await expect(page.get_by_text("Nothing to do")).to_be_visible()
    assert await page.locator("button[data-deed]").count() == 0


async def test_retry_and_cancel_some(page: Page, site: Site):
    """The chosen ones change, the others stay; the dialog shows the number and asks why; who and why are on record."""
    await troubled(site, "some-1", "some-2", "some-3", "some-4")
    await log_in(page, site, "operator", f"{PATH}?domain=billing")
    await expect(page.get_by_role("heading", name="4 commands need attention")).to_be_visible()
    await expect(page.get_by_role("button", name="Retry")).to_be_disabled()
    for name in ("some-1", "some-2"):
        await page.get_by_label(f"Choose command {name}", exact=True).check()
    await page.get_by_role("button", name="Retry").click()
    await confirm(page, shown="2: sent again", reason="account opened")
    await told(page, "Retry: 2 done.")
    for name in ("some-1", "some-2"):
        events = [(one.event_type, one.details) for one in await bus_of(site).audit_trail(name)]
        assert ("OPERATOR_RETRY", {"operator": "operator ada", "reason": "account opened"}) in events
    await page.goto(f"{site.url}{PATH}?domain=billing")
    await page.get_by_label("Choose command some-3", exact=True).check()
    await page.get_by_role("button", name="Cancel").click()
    await confirm(page, shown="1: ended as CANCELED", reason="customer left")
    await told(page, "Cancel: 1 done.")
    assert await statuses(site, "some-3", "some-4") == ["CANCELED", "IN_TROUBLESHOOTING_QUEUE"]
    [reply] = await bus_of(site).take_replies(REPLIES)
    assert (reply.command_id, reply.outcome, reply.error) == (
        "some-3", "CANCELED", {"code": "CANCELED", "message": "customer left"},
    )  # fmt: skip


async def test_complete_with_a_result(page: Page, site: Site):
    """From the command's own page: what is no JSON is refused in words, the result goes to the sender."""
    await troubled(site, "hand-1")
    await log_in(page, site, "operator", f"{PATH}?domain=billing")
    await page.get_by_role("link", name="hand-1").click()
    await expect(page.get_by_role("heading", name="hand-1")).to_be_visible()
    await page.get_by_role("button", name="Complete").click()
    await page.get_by_label("result").fill("{paid")
    await confirm(page, shown="1: ended as COMPLETED", reason="paid by hand")
    await expect(page.get_by_role("alert").filter(has_text="must be JSON")).to_be_visible()
    await page.get_by_label("result").fill('{"paid": 10}')
    await page.locator("#act-confirm").click()
    await told(page, "Complete: 1 done.")
    await expect(page.get_by_text("This command does not need attention: it is done")).to_be_visible()
    await expect(page.locator(".story .deed")).to_contain_text("Complete by operator ada")
    await expect(page.locator(".story .deed")).to_contain_text("paid by hand")
    assert await page.locator("button[data-deed]").count() == 0
    [reply] = [one for one in await bus_of(site).take_replies(REPLIES) if one.command_id == "hand-1"]
    assert (reply.outcome, reply.result) == ("SUCCESS", {"paid": 10})


async def test_one_command_and_its_story(page: Page, site: Site):
    """Its facts, its error, its data without secrets, its audit as a timeline, and the way to its attempts and back."""
    await troubled(site, "story-1")
    await page.goto(f"{site.url}{PATH}?domain=billing&type=DebitAccount")
    await page.get_by_role("link", name="story-1").click()
    await expect(page.locator(".facts").first).to_contain_text("DebitAccount")
    titles = [(await one.inner_text()).split("20")[0].strip() for one in await page.locator(".story h3").all()]
    assert titles == ["Sent", "Received", "Failed", "Moved to troubleshooting queue"]
    await expect(page.locator(".story .failed")).to_contain_text("NO_ACCOUNT: no account story-1")
    await expect(page.locator(".payload")).to_contain_text('"amount": 10')
    assert "hunter2" not in await page.content()
    await expect(page.get_by_text("Log in with an operator's key")).to_be_visible()
    await page.get_by_role("link", name="The queue").click()
    await expect(page).to_have_url(f"{site.url}{PATH}?domain=billing&type=DebitAccount")
    await page.get_by_role("link", name="story-1").click()
    await page.get_by_role("link", name="each attempt, with what was decided").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Task")
    await expect(page.locator(".story .failed")).to_contain_text("no account story-1")


async def test_filters_domains_and_pages(page: Page, site: Site):
    """Counts by domain lead to it; several domains on a page cannot be chosen together; pages hold each command once."""
    await troubled(site, *(f"paged-{number:03}" for number in range(70)), domain="paged")
    await troubled(site, "ship-1", domain="shipping", type="Pack")
    await log_in(page, site, "operator", PATH)
    await expect(page.get_by_text("Choose a domain above")).to_be_visible()
    assert await page.locator("input[data-pick]").count() == 0
    await page.get_by_role("link", name="paged: 70").click()
    seen = await page.locator(f"{ROWS} .id").all_inner_texts()
    await page.get_by_role("link", name="Next page").click()
    await expect(page.get_by_role("link", name="First page")).to_be_visible()
    seen += await page.locator(f"{ROWS} .id").all_inner_texts()
    assert (len(seen), len(set(seen)), seen == sorted(seen, reverse=True)) == (70, 70, True)
    assert await page.get_by_role("link", name="Next page").count() == 0
    await page.get_by_role("link", name="Clear").click()
    await page.get_by_label("Type").fill("Pack")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator(ROWS)).to_have_count(1)
    await expect(page.get_by_label("Choose command ship-1", exact=True)).to_be_visible()
    await page.get_by_label("Type").fill("Nothing")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_text("No command that needs attention matches.")).to_be_visible()
    await page.goto(f"{site.url}{PATH}?cursor=abc")
    await expect(page.get_by_role("alert")).to_contain_text("must be the one that the last page gave")


async def test_two_people_at_once_act_once(page: Page, site: Site, profile: Any, watch: Any):
    """Both are shown the command; the second is told where it stands."""
    await troubled(site, "twice")
    await log_in(page, site, "operator", path_of("twice"))
    second = watch.over(await profile.new_page())
    await second.goto(site.url + path_of("twice"))
    for one in (page, second):
        await one.get_by_role("button", name="Cancel").click()
        await one.get_by_label("Why?").fill("both of us")
    await page.locator("#act-confirm").click()
    await told(page, "Cancel: 1 done.")
    await second.locator("#act-confirm").click()
    await told(second, "Cancel: 0 done. Left alone: command 'twice' is CANCELED")
    await second.close()
    assert [one.event_type for one in await bus_of(site).audit_trail("twice")].count("OPERATOR_CANCEL") == 1


async def test_a_command_that_is_not_there(page: Page, site: Site, watch: Any):
    """A page says so."""
    watch.expected.append("404")
    answer = await page.goto(site.url + path_of("nobody"))
    assert answer.status == 404
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()


async def test_hostile_texts(page: Page, site: Site):
    """Ids, types, data, errors and reasons are text, in the list and on the page of each; and can be acted on."""
    for text in HOSTILE:
        await troubled(site, text, domain="hostile", type=text, data=text)
    await log_in(page, site, "operator", f"{PATH}?domain=hostile")
    await expect(page.locator(ROWS)).to_have_count(len(HOSTILE))
    await run_nothing(page)
    for text in HOSTILE if WIDE else HOSTILE[::4]:
        await page.goto(site.url + path_of(text, "hostile"))
        assert (await page.locator("#command-title").text_content()) == text
        await run_nothing(page)
    await page.goto(f"{site.url}{PATH}?{urlencode({'domain': HOSTILE[2], 'type': HOSTILE[1]})}")
    await run_nothing(page)
    await page.goto(f"{site.url}{PATH}?domain=hostile")
    await page.get_by_label("Choose all on this page").check()
    await page.get_by_role("button", name="Cancel").click()
    await confirm(page, shown=f"{len(HOSTILE)}: ended as CANCELED", reason=HOSTILE[0])
    await told(page, f"Cancel: {len(HOSTILE)} done.")
    assert set(await statuses(site, *HOSTILE, domain="hostile")) == {"CANCELED"}
    await page.goto(site.url + path_of(HOSTILE[1], "hostile"))
    await expect(page.locator(".story .deed")).to_contain_text(HOSTILE[0])
    await run_nothing(page)


async def test_it_fits_and_is_accessible(page: Page, site: Site):
    """No serious finding by axe; nothing wider than the screen, at a desk or on a phone."""
    await troubled(site, "debit-2031-0001", "debit-2031-0002-" + "x" * 130)
    await troubled(site, "parcel-9", domain="shipping", type="Pack")
    for name, path in (
        ("commands", f"{PATH}?domain=billing"),
        ("commands-domains", PATH),
        ("command", path_of("debit-2031-0001")),
    ):
        await log_in(page, site, "operator", path)
        await looks_well(page, name)
