"""Manual review in a real browser, without a broker: people look and act while it is away, and the database has it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect
from sqlalchemy import Connection, insert, select

from redrive import Redrive, State, seconds
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.tables import retry_queue
from tests.breadth import WIDE

from .conftest import PHONE, log_in
from .looks import fits, looks_well
from .site import Site, serving
from .test_acts import confirm
from .test_hostile import CORPUS, run_nothing

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/systems/relay"
ROWS = "[aria-label='Messages in review'] tbody tr"


def away(app: Redrive) -> None:
    """A relay whose broker is away: at the end its worker does not wait long for what waits for the broker."""
    relay = Relay(app, RelaySettings(_env_file=None, rabbitmq_url="amqp://guest:guest@127.0.0.1:1/"))
    tune = relay.lane.tune
    relay.lane.tune = lambda worker: replace(tune(worker), grace=seconds(0.5))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A service with such a relay."""
    async with serving(tmp_path_factory.mktemp("relay"), join=away) as running:
        yield running


async def in_review(site: Site, *message_ids: str, **given: Any) -> None:
    """Messages whose retries are spent."""
    now = datetime.now(UTC)
    values = {
        "original_payload": b'{"order": 7, "password": "hunter2"}', "original_queue": "orders.paid",
        "error_reason": "TimeoutError: pay.example did not answer", "retry_count": 3, "max_retries": 3, "status": "failed",
        "headers": {"tenant": "ada"}, "created_at": now, "updated_at": now, "content_type": "application/json",
    }  # fmt: skip

    def write(connection: Connection) -> None:
        connection.execute(insert(retry_queue), [values | {"message_id": one} | given for one in message_ids])

    await site.app.database.write(write)


async def standing(site: Site, *message_ids: str) -> list[tuple[str, int, str | None]]:
    """Status, count and who resubmitted it, of each."""

    def look(connection: Connection) -> dict[str, Any]:
        found = select(retry_queue).where(retry_queue.c.message_id.in_(message_ids))
        return {row.message_id: row for row in connection.execute(found)}

    rows = await site.app.database.read(look)
    return [(rows[one].status, rows[one].retry_count, rows[one].headers.get("x-resubmitted-by")) for one in message_ids]


FAILED = ("failed", 3, None)
RESUBMITTED = ("pending", 0, "operator ada")
RESOLVED = ("resolved", 3, None)


async def told(page: Page, sentence: str) -> None:
    """What was done is said at the edge of the page."""
    await expect(page.get_by_role("status").filter(has_text=sentence)).to_be_visible()


async def test_nothing_to_review(page: Page, site: Site):
    """An empty page says so, and that the broker is away; the list of systems leads to it."""
    await log_in(page, site, "operator", "/systems")
    await page.get_by_role("link", name="Manual review").click()
    await expect(page.get_by_role("heading", name="No message waits for a person")).to_be_visible()
    await expect(page.get_by_text("Nothing to review")).to_be_visible()
    await expect(page.get_by_text("RabbitMQ is away.")).to_be_visible()
    await expect(page.get_by_text("rabbitmq away")).to_be_visible()
    assert await page.locator("button[data-deed]").count() == 0


async def test_resubmit_and_resolve_some(page: Page, site: Site):
    """The chosen ones change, the others stay; who and why are kept."""
    await in_review(site, "some-1", "some-2", "some-3", original_queue="some")
    await log_in(page, site, "operator", f"{PATH}?queue=some")
    await expect(page.get_by_role("button", name="Resubmit", exact=True)).to_be_disabled()
    for name in ("some-1", "some-2"):
        await page.get_by_label(f"Choose {name}", exact=True).check()
    await page.get_by_role("button", name="Resubmit", exact=True).click()
    await confirm(page, shown="2: sent to the queue that it failed in", reason="the bank is back")
    await told(page, "Resubmit: 2 done.")
    assert await standing(site, "some-1", "some-2", "some-3") == [RESUBMITTED, RESUBMITTED, FAILED]
    lane = site.app.lanes["retry_queue"]
    [deed] = await lane.deeds((await lane.get("some-1")).id)
    assert (deed.act, deed.actor, deed.reason) == ("redrive", "operator ada", "the bank is back")
    await page.get_by_label("Choose some-3", exact=True).check()
    await page.get_by_role("button", name="Resolve", exact=True).click()
    await confirm(page, shown="1: closed", reason="done by hand")
    await told(page, "Resolve: 1 done.")
    assert await standing(site, "some-3") == [RESOLVED]
    await expect(page.get_by_text("No message in review matches.")).to_be_visible()


async def test_somebody_was_quicker(page: Page, site: Site):
    """What changed since the page was made is left alone, and it is said why."""
    await in_review(site, "late-1", "late-2", original_queue="late")
    await log_in(page, site, "operator", f"{PATH}?queue=late")
    await page.get_by_label("Choose all on this page").check()
    await page.get_by_role("button", name="Resubmit", exact=True).click()
    lane = site.app.lanes["retry_queue"]
    await lane.resolve([(await lane.get("late-1")).id], State.CANCELLED, actor="grace", reason="mine")
    await confirm(page, shown="2: sent to", reason="both of them")
    await told(page, "Resubmit: 1 done. Left alone: it was resolved already.")
    assert await standing(site, "late-1", "late-2") == [RESOLVED, RESUBMITTED]


async def test_all_that_match(page: Page, site: Site):
    """On all pages; the number shown is the number acted on: what comes into review after the look is left alone."""
    many = [f"all-{number}" for number in range(60)]
    await in_review(site, *many, original_queue="all", error_reason="boom in pay.example")
    await in_review(site, "all-other", original_queue="all", error_reason="550 no such user")
    await log_in(page, site, "operator", f"{PATH}?queue=all&error=boom")
    await expect(page.get_by_role("link", name="Next page")).to_be_visible()
    await page.get_by_role("button", name="Resubmit all that match").click()
    await expect(page.locator("#act-count")).to_contain_text("60: sent to")
    await in_review(site, "all-late", original_queue="all", error_reason="boom in pay.example")
    before = datetime.now(UTC) - timedelta(minutes=1)  # it ended before the look, and was committed only now
    await in_review(site, "all-slow", original_queue="all", error_reason="boom in pay.example", updated_at=before)
    await confirm(page, shown="60: sent to", reason="all of them")
    await told(page, "Resubmit all that match: 60 of 60 done.")
    assert set(await standing(site, *many)) == {RESUBMITTED}
    assert await standing(site, "all-other", "all-late", "all-slow") == [FAILED, FAILED, FAILED]
    await page.get_by_label("Error contains").fill("")
    await page.get_by_role("button", name="Filter").click()
    await page.get_by_role("button", name="Resolve all that match").click()
    await confirm(page, shown="3: closed", reason="the rest")
    await told(page, "Resolve all that match: 3 of 3 done.")
    assert await standing(site, "all-other", "all-late", "all-slow") == [RESOLVED, RESOLVED, RESOLVED]


async def test_pages(page: Page, site: Site):
    """Forth, and back to the first, with the filter kept."""
    await in_review(site, *(f"page-{number}" for number in range(51)), original_queue="pages")
    await page.goto(f"{site.url}{PATH}?queue=pages")
    await expect(page.locator(ROWS)).to_have_count(50)
    await page.get_by_role("link", name="Next page").click()
    await expect(page.get_by_role("link", name="page-0", exact=True)).to_be_visible()
    await expect(page.locator(ROWS)).to_have_count(1)
    await page.get_by_role("link", name="First page").click()
    await expect(page.get_by_role("link", name="page-50", exact=True)).to_be_visible()
    # Who has not logged in looks and cannot act.
    assert await page.locator("button[data-deed], [data-pick]").count() == 0
    await expect(page.get_by_role("link", name="Log in with an operator's key")).to_be_visible()


async def test_one_message(page: Page, site: Site):
    """Its payload without secrets, its headers and its story; resubmitted from its own page, which then says so."""
    await in_review(site, "one-1", original_queue="one")
    await log_in(page, site, "operator", f"{PATH}?queue=one")
    await page.get_by_role("link", name="one-1", exact=True).click()
    await expect(page.locator("pre[aria-label=Payload]")).to_contain_text('"order": 7')
    await expect(page.locator("pre[aria-label=Payload]")).not_to_contain_text("hunter2")
    await expect(page.locator("pre[aria-label=Headers]")).to_contain_text('"tenant": "ada"')
    await page.get_by_role("button", name="Resubmit").click()
    await confirm(page, shown="1: sent to", reason="mended")
    await told(page, "Resubmit: 1 done.")
    assert await standing(site, "one-1") == [RESUBMITTED]
    await expect(page.get_by_text("It is not in review: it waits for its retry")).to_be_visible()
    await expect(page.locator("pre[aria-label=Headers]")).to_contain_text('"x-resubmitted-by": "operator ada"')
    assert await page.locator("button[data-deed]").count() == 0
    await page.get_by_role("link", name="every try").click()
    await expect(page.get_by_role("heading", name="Redrive by operator ada")).to_be_visible()


async def test_the_tasks_page_means_the_same(page: Page, site: Site):
    """A redrive there is a resubmission; nobody can say there that it has gone out."""
    await in_review(site, "same-1", original_queue="same")
    id_ = (await site.app.lanes["retry_queue"].get("same-1")).id
    await log_in(page, site, "operator", f"/tasks/retry_queue/{id_}")
    assert await page.locator("button[data-act]").all_inner_texts() == ["Redrive", "Resolve as cancelled"]
    await page.get_by_role("button", name="Redrive").click()
    await confirm(page, shown="1 task will go back", reason="mended")
    await told(page, "1 task redriven.")
    assert await standing(site, "same-1") == [RESUBMITTED]


async def test_addresses_that_mean_nothing(page: Page, site: Site, watch):
    """A message that is not there is a page that says so; a cursor that is none is the first page."""
    watch.expected.append("404")
    for number in ("999999", "0", "x", "9" * 30, "-1", "²"):
        await page.goto(f"{site.url}{PATH}?message={number}")
        await expect(page.get_by_text("There is no such message")).to_be_visible()
    for query in ("cursor=x", "cursor=" + "9" * 40, "queue=%00", "error=%25_%5C", "queue=" + "q" * 2000):
        answer = await page.goto(f"{site.url}{PATH}?{query}")
        assert answer.status == 200


async def test_what_strangers_wrote_is_text(page: Page, site: Site):
    """In every field: the id, the queue, the error, headers, content type and payload; in the list, alone, and in filters."""
    for number, evil in enumerate(CORPUS):
        await in_review(
            site, f"{evil} {number}", original_queue=evil[:255], error_reason=evil, last_error=evil, content_type=evil,
            headers={evil: [evil]}, original_payload=f"{evil}\nhostile".encode(),
        )  # fmt: skip
    await log_in(page, site, "operator", PATH)
    await run_nothing(page)
    links = page.locator(f"{ROWS} th a")
    paths = [await one.get_attribute("href") for one in await links.all()]
    each = list(zip(reversed(CORPUS), paths[: len(CORPUS)], strict=True))
    for evil, path in each if WIDE else each[::4]:
        await page.goto(site.url + path)
        await run_nothing(page)
        await expect(page.locator("pre[aria-label=Payload]")).to_contain_text("hostile")
        assert evil in await page.locator("main").inner_text() or evil in await page.locator("main").text_content()
    for evil in CORPUS[:: 4 if WIDE else 8]:
        await page.goto(f"{site.url}{PATH}?queue={quote(evil)}&error={quote(evil)}&message_id={quote(evil)}")
        await run_nothing(page)
        await expect(page.get_by_label("Queue", exact=True)).to_have_value(evil)


async def test_it_fits_and_is_accessible(page: Page, site: Site):
    """The list and one message: no serious finding by axe, nothing wider than a desk or a phone."""
    long = "x" * 400
    await in_review(site, long, original_queue=long[:255], error_reason=long, content_type=long)
    await in_review(site, *(f"order-{number}" for number in range(4)))
    await in_review(site, "scan-1", original_payload=bytes(range(256)), content_type=None, headers={})
    await log_in(page, site, "operator", PATH)
    assert await fits(page)
    hrefs = [
        await page.locator(f"{ROWS} th a", has_text=name).first.get_attribute("href") for name in ("order-3", "xxx")
    ]
    for name, path in {"list": f"{PATH}?queue=orders.paid", "message": hrefs[0]}.items():
        await page.goto(site.url + path)
        await looks_well(page, f"relay-{name}")
    await page.set_viewport_size(PHONE)
    for path in (PATH, hrefs[1]):
        await page.goto(site.url + path)
        assert await fits(page), path
    await page.goto(site.url + PATH)
    queue = await page.get_by_label("Queue", exact=True).bounding_box()
    assert queue is not None and queue["width"] > 100, "what is looked for can be read while it is typed"
