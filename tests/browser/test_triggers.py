"""The page of endpoints, and the tasks of webhooks, in a real browser; and what then stands in the database."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect
from sqlalchemy import insert

from redrive import PermanentError, Redrive, State, Task, TransientError
from redrive.ports import Actor
from redrive.systems.triggers import Triggers, TriggerSettings
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.ids import new_id
from redrive.systems.triggers.sql.tables import deliveries
from redrive.systems.triggers.values import Endpoint, NewEvent
from redrive.systems.webhooks import Webhooks, WebhookSettings
from tests.systems.triggers.receiver import Receiver, status

from .conftest import DESK, PHONE, log_in
from .looks import looks_well
from .site import Site, serving
from .test_acts import confirm
from .test_hostile import CORPUS, run_nothing

pytestmark = pytest.mark.asyncio(loop_scope="session")

HERE = "/systems/triggers"


def join(app: Redrive) -> None:
    """Triggers that may deliver to this machine, and webhooks of which some never succeed."""
    Triggers(app, TriggerSettings(_env_file=None, delivery_allow_networks=(ip_network("127.0.0.0/8"),)))
    webhooks = Webhooks(app, WebhookSettings(_env_file=None), sources=())
    healed: set[str] = set()

    @webhooks.handler("poison.*")
    async def poison(task: Task) -> None:
        if task.key not in healed:
            healed.add(task.key)
            raise PermanentError("cannot be read")

    @webhooks.handler("slow.*")
    async def slow(_task: Task) -> None:
        raise TransientError("503 from crm.example")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def joined(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """A service with triggers and webhooks."""
    async with serving(tmp_path_factory.mktemp("triggers"), join=join) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    """Answers with the status that its path begins with."""
    async with Receiver(lambda got: status(int(got.path[1:4]))) as made:
        yield made


def triggers_of(site: Site) -> Triggers:
    system = site.app.systems["triggers"]
    assert isinstance(system, Triggers)
    return system


async def endpoint(site: Site, url: str, *, user: str = "ada", **given: Any) -> Endpoint:
    """A new endpoint."""
    values = {"url": url, "event_types": ["*"], "secret": new_secret(), "policy": {}, "enabled": True}
    return await triggers_of(site).endpoints.create({"user_id": user, **values, **given})


async def failing(site: Site, receiver: Receiver, code: int, user: str) -> Endpoint:
    """An endpoint of a new user that has answered an event with this status."""
    made = await endpoint(site, f"http://127.0.0.1:{receiver.port}/{code}/hooks?token=hunter2", user=user)
    await post(site, user)

    async def failed() -> bool:
        found = await triggers_of(site).desk.page(user=user)
        return any(one.id == made.id and one.latest_failure for one in found.items)

    await site.until(failed)
    return made


async def post(site: Site, user: str) -> str:
    new = NewEvent(user_id=user, event_type="order.made", payload='{"order": 7}', correlation_id="c")
    [taken] = await triggers_of(site).intake.take([new])
    return taken.id


async def owe(site: Site, one: Endpoint, *, error: str) -> None:
    """A failed delivery that says this."""
    now = datetime.now(UTC)
    row = {
        "id": new_id(now), "event_id": await post(site, "nobody"), "endpoint_id": one.id, "user_id": one.user_id,
        "correlation_id": "c", "status": "dead", "last_error": error, "created_at": now, "updated_at": now,
    }  # fmt: skip
    await site.app.database.write(lambda connection: connection.execute(insert(deliveries).values(row)) and None)


def row_of(page: Page, one: Endpoint) -> Locator:
    return page.locator("tbody tr", has_text=one.id)


async def test_its_charts_show_events_in_their_own_words(page: Page, joined: Site) -> None:
    """An event that only lies in the inbox is in the ring, the flow and the depth of triggers, by the name of its status."""
    await post(joined, "inbox-only")
    await page.goto(joined.url + HERE)
    for name in ("states", "depth"):
        said = re.compile(r"[1-9]\d* received")
        await expect(page.locator(f"#chart-{name} svg[role=img]")).to_have_attribute("aria-label", said)
    await expect(page.locator("#chart-flow svg[role=img]")).to_have_attribute(
        "aria-label", re.compile(r"[1-9]\d* added")
    )
    await expect(page.locator("#chart-states .legend")).to_contain_text(
        re.compile("received.*queued.*delivered.*failed")
    )
    await expect(page.locator(".charts .chart")).to_have_count(8)


async def test_nothing_yet(page: Page, joined: Site):
    """Before anybody has subscribed, and where no endpoint matches: a sentence, not a bare table."""
    await page.goto(joined.url + HERE)
    await expect(page.locator(".empty")).to_contain_text("Nobody has subscribed yet")
    await page.goto(f"{joined.url}{HERE}?state=failing&user=nobody")
    await expect(page.locator(".empty")).to_contain_text("No endpoint matches")
    await page.goto(f"{joined.url}{HERE}?state=asleep")
    await expect(page.get_by_role("alert")).to_contain_text("There is no state 'asleep'")


async def test_what_is_held(page: Page, joined: Site, receiver: Receiver):
    """An endpoint whose deliveries are kept back says since when, how many wait and why; one that is well says nothing of it."""
    held = await endpoint(joined, f"http://127.0.0.1:{receiver.port}/200/hooks", user="held")
    well = await endpoint(joined, f"http://127.0.0.1:{receiver.port}/200/hooks", user="well")
    ledger: Any = await triggers_of(joined).lane.ledger()
    assert await ledger.pause_gate(held.id, Actor(name="olga", reason="it moves to another house"))
    for user in ("held", "held", "well"):
        await post(joined, user)
    await page.goto(joined.url + HERE)
    await expect(row_of(page, held)).to_contain_text(
        re.compile(r"paused since .*, 2 waiting: it moves to another house", re.DOTALL)
    )
    await expect(row_of(page, well)).not_to_contain_text("waiting")


async def test_what_is_shown(page: Page, joined: Site, receiver: Receiver):
    """Each endpoint with its owner, state, since when and why, what it owes, and the way to the latest failure; no secret."""
    gone, busy = await failing(joined, receiver, 410, "gone"), await failing(joined, receiver, 503, "busy")
    await page.goto(f"{joined.url}/systems")
    await page.get_by_role("link", name="Endpoints").click()
    await expect(page.get_by_role("heading", name="Endpoints", level=1)).to_be_visible()
    await expect(page.locator(".notice.alarm")).to_contain_text("1 endpoint was disabled by its failures.")
    shown = await row_of(page, gone).inner_text()
    for part in (f"127.0.0.1:{receiver.port}/410/hooks?…", "gone", "disabled", "since", "it answered 410 Gone"):
        assert part in shown
    await expect(row_of(page, busy).locator("[data-name=Retrying]")).to_have_text("1")
    await expect(row_of(page, busy).locator("[data-name=State]")).to_contain_text("failing")
    content = await page.content()
    assert not any(secret in content for secret in ("hunter2", "whsec_", gone.secret))
    assert await page.get_by_role("button", name=re.compile("able|Retry")).count() == 0
    await page.get_by_role("link", name="1 endpoint was disabled").click()
    await expect(page.locator("tbody").first.locator("tr")).to_have_count(1)
    await row_of(page, gone).locator("[data-name='Latest failure'] a").click()
    await expect(page.locator(".story")).to_contain_text("the endpoint answered 410")


async def test_enable_and_retry(page: Page, joined: Site, receiver: Receiver):
    """The way of the night: what its failures disabled is enabled, and what failed is delivered."""
    one = await failing(joined, receiver, 410, "night")
    receiver.answer = lambda _: status(200)
    await log_in(page, joined, "operator", f"{HERE}?user=night")
    await row_of(page, one).get_by_role("button", name="Enable").click()
    await confirm(page, shown="1: enabled, with a fresh start", reason="it answers again")
    await expect(page.get_by_role("status").filter(has_text="Enable: 1 done.")).to_be_visible()
    await expect(row_of(page, one).locator("[data-name=State]")).to_contain_text("enabled made")
    await row_of(page, one).get_by_role("button", name="Retry failed").click()
    await confirm(page, shown="goes back to waiting", reason="it answers again")
    await expect(page.get_by_role("status").filter(has_text="Retry failed: 1 done.")).to_be_visible()

    async def delivered() -> bool:
        return len(receiver.received) == 2

    await joined.until(delivered)
    now = await triggers_of(joined).endpoints.get("night", one.id)
    assert now is not None
    assert now.enabled


async def test_several_at_once(page: Page, joined: Site):
    """Chosen ones are disabled, their owners read why; who did it stands in the audit log; one that is off is left alone."""
    made = [await endpoint(joined, "http://127.0.0.1:9/", user="several") for _ in range(3)]
    await triggers_of(joined).desk.disable([made[0].id], actor="bob", reason="earlier")
    await log_in(page, joined, "operator", f"{HERE}?user=several")
    act = page.get_by_role("group", name="Act on the chosen endpoints")
    await expect(act.get_by_role("button", name="Disable")).to_be_disabled()
    await page.get_by_label(f"Choose endpoint {made[0].id}").check()
    await page.get_by_label(f"Choose endpoint {made[1].id}").check()
    await expect(page.locator("[data-picked]")).to_have_text("2 chosen")
    await act.get_by_role("button", name="Disable").click()
    await confirm(page, shown="2: disabled", reason="asked by <support>")
    said = page.get_by_role("status").filter(has_text="Disable: 1 done. Left alone: it is disabled already.")
    await expect(said).to_be_visible()
    seen = {one.id: one for one in (await triggers_of(joined).desk.page(user="several")).items}
    assert [seen[one.id].state for one in made] == ["disabled", "disabled", "enabled"]
    assert (seen[made[1].id].disabled_by, seen[made[0].id].disabled_by) == ("operator ada", "bob")
    await page.goto(f"{joined.url}/audit")
    deed = page.locator("tbody tr", has_text=made[1].id)
    for part in ("operator ada", "disable", "trigger_endpoints", "asked by <support>"):
        await expect(deed).to_contain_text(part)
    assert await deed.get_by_role("link").count() == 0


async def test_the_alert_ends_when_somebody_says_that_it_shall_stay_off(page: Page, joined: Site, receiver: Receiver):
    """One that its failures disabled can be disabled by a person; then nobody is called for it."""
    one = await failing(joined, receiver, 410, "stays off")
    await log_in(page, joined, "operator", f"{HERE}?user=stays+off")
    await row_of(page, one).get_by_role("button", name="Keep disabled").click()
    await confirm(page, shown="1: stays disabled", reason="the shop has closed")
    await expect(row_of(page, one)).to_contain_text("switched off by an operator: the shop has closed (operator ada)")
    assert not [alarm for alarm in await triggers_of(joined).alarms() if one.id in alarm.name]


async def test_pages(page: Page, joined: Site):
    """Fifty on a page, then the others; back to the first."""
    for number in range(51):
        await endpoint(joined, "http://127.0.0.1:9/", user="many", description=f"number {number}")
    await page.goto(f"{joined.url}{HERE}?user=many&state=enabled")
    rows = page.get_by_role("region", name="Endpoints").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await page.get_by_role("link", name="Next page").click()
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("number 0")
    await page.get_by_role("link", name="First page").click()
    await expect(rows).to_have_count(50)


async def test_hostile_texts(page: Page, joined: Site):
    """Owner, description, address, reason and error are text, whatever they look like; and they break no page."""
    made = []
    for text in CORPUS:
        address = f"http://127.0.0.1:9/{text}"
        one = await endpoint(joined, address, user=f"evil {text}", description=text * 2, event_types=[text])
        await owe(joined, one, error=text)
        await triggers_of(joined).desk.disable([one.id], actor=text, reason=text)
        made.append(one)
    for path in (f"{HERE}?state=disabled", "/audit", f"{HERE}?user={CORPUS[0]}"):
        await log_in(page, joined, "operator", path)
        await run_nothing(page)
        await page.set_viewport_size(PHONE)
        assert await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        await page.set_viewport_size(DESK)
    await page.goto(f"{joined.url}{HERE}?state=disabled")
    for text, one in zip(CORPUS, made, strict=True):
        for name, said in (("Endpoint", text), ("Owner", f"evil {text}"), ("State", text), ("Latest failure", text)):
            assert said in str(await row_of(page, one).locator(f"[data-name='{name}']").text_content())


async def test_looks(page: Page, joined: Site, receiver: Receiver):
    """No serious finding by axe, nothing wider than the screen, at a desk or on a phone."""
    await endpoint(joined, "https://shop.example/hooks", user="looks", description="the shop", event_types=["paid.*"])
    for code in (410, 503, 404):
        await failing(joined, receiver, code, "looks")
    await log_in(page, joined, "operator", f"{HERE}?user=looks")
    await looks_well(page, "triggers")


async def test_a_webhook_is_a_task_like_any_other(page: Page, joined: Site):
    """Its page shows the payload redacted, its tries and what comes next; a redrive runs it again under its own rules."""
    webhooks = joined.app.systems["webhooks"]
    assert isinstance(webhooks, Webhooks)
    dead = await webhooks.accept("poison.order", {"order": 7, "password": "hunter2"}, idempotency_key="poison-1")
    slow = await webhooks.accept("slow.order", {"order": 8}, idempotency_key="slow-1")
    assert dead is not None
    assert slow is not None

    async def settled() -> bool:
        one, other = await webhooks.lane.get_by_id(dead.id), await webhooks.lane.get_by_id(slow.id)
        return one.state is State.DEAD and other.failures == 1

    await joined.until(settled)
    await log_in(page, joined, "operator", f"/tasks/events/{slow.id}")
    await expect(page.locator(".notice").first).to_contain_text("4 are left")
    await expect(page.locator(".story")).to_contain_text("503 from crm.example")
    # What would only be refused is not offered.
    acts = page.locator("button[data-act]")
    assert [await one.get_attribute("data-act") for one in await acts.all()] == ["cancel"]
    await page.goto(f"{joined.url}/tasks/events/{dead.id}")
    await expect(page.locator(".payload")).to_contain_text("[redacted]")
    assert "hunter2" not in await page.content()
    await expect(page.locator(".story")).to_contain_text("cannot be read")
    assert await page.locator("button[data-act]").all_inner_texts() == [
        "Redrive",
        "Resolve as done",
        "Resolve as cancelled",
    ]
    await page.get_by_role("button", name="Redrive").click()
    await confirm(page, shown="1 task will go back to waiting", reason="mended")
    await expect(page.get_by_role("status").filter(has_text="1 task redriven.")).to_be_visible()

    async def done() -> bool:
        return (await webhooks.lane.get_by_id(dead.id)).state is State.DONE

    await joined.until(done)
    [deed] = await webhooks.lane.deeds(dead.id)
    assert (deed.act, deed.actor, deed.reason) == ("redrive", "operator ada", "mended")
