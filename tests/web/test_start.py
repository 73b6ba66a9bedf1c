"""The start page."""

import asyncio
import re
from html.parser import HTMLParser

import httpx

from redrive import Redrive, State, hours
from redrive.settings import Settings
from redrive.wiring import Service

from .conftest import client_of, running


async def ended(app: Redrive, key: str, state: State) -> None:
    """Wait until a task is in a state."""
    while (await app.get(key)).state is not state:
        await asyncio.sleep(0.01)


async def test_page_shows_counts_and_the_latest_tasks(app: Redrive, local: httpx.AsyncClient):
    """For each state: how many, and the latest with kind, failures, due and error."""
    await app.add("mail", key="good")
    await app.add("mail", "fail", key="bad", attempts=1)
    await app.add("mail", key="later", delay=hours(2))
    await ended(app, "good", State.DONE)
    await ended(app, "bad", State.DEAD)
    text = (await local.get("/")).text
    counts = dict(re.findall(r'aria-hidden="true"></span>(\w+)</dt>\s*<dd>([\d,]+)</dd>', text))
    assert counts == {"dead": "1", "waiting": "1", "claimed": "0", "done": "1", "cancelled": "0"}
    for shown in ("good", "bad", "later", "1 of 1", "redrive tasks show"):
        assert shown in text
    assert re.search(r"in (2h|1h 59m)", text)


async def test_what_strangers_wrote_is_escaped(app: Redrive, local: httpx.AsyncClient):
    """Keys, kinds and errors are text, never markup."""
    await app.add("<script>alert(1)</script>", key='"><img src=x onerror=alert(2)>')
    await app.add("mail", "fail", key="bad", attempts=1)
    await ended(app, "bad", State.DEAD)
    text = (await local.get("/")).text
    assert "<script" not in text
    assert "<img" not in text
    assert "no &lt;b&gt;mail&lt;/b&gt; today" in text


async def test_kinds_without_a_handler_are_named(app: Redrive, local: httpx.AsyncClient):
    """What waits and nobody here would run is said."""
    await app.add("fax", key="f")
    text = (await local.get("/")).text
    assert re.search(r"Waiting without a handler here:</strong>\s*<code>fax</code>", text)


async def test_no_handlers_at_all(url: str):
    """A service without an application says so, once, and lists no kind as missing."""
    async with running(Redrive(url)) as service, client_of(service) as client:
        await service.app.add("fax")
        text = (await client.get("/")).text
    assert "No handlers are loaded" in text
    assert "Waiting without a handler here" not in text


async def test_page_while_the_store_is_not_open(app: Redrive):
    """The page is there before the store is."""
    async with client_of(Service(app, Settings(_env_file=None))) as client:
        answer = await client.get("/")
    assert answer.status_code == 200
    assert "The store is not open" in answer.text
    await app.close()


async def test_refreshing_is_the_readers_choice(local: httpx.AsyncClient):
    """By itself the page stands still; a wrong interval is refused."""
    assert "http-equiv" not in (await local.get("/")).text
    assert '<meta http-equiv="refresh" content="5">' in (await local.get("/?refresh=5")).text
    assert (await local.get("/?refresh=0")).status_code == 422


class Outline(HTMLParser):
    """What an accessible page must have."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


async def test_page_is_well_formed_and_accessible(app: Redrive, local: httpx.AsyncClient):
    """Every tag is closed; there is a language, a title, one main, one h1, header cells with a scope; and no script."""
    await app.add("fax", key="f")
    outline = Outline()
    outline.feed((await local.get("/")).text)
    assert outline.open == []
    tags = [tag for tag, _ in outline.tags]
    assert (tags.count("main"), tags.count("h1"), tags.count("title")) == (1, 1, 1)
    assert dict(outline.tags)["html"] == {"lang": "en"}
    assert all("scope" in attributes for tag, attributes in outline.tags if tag == "th")
    assert "script" not in tags
    assert not any(name.startswith("on") or name == "style" for _, attributes in outline.tags for name in attributes)
    outside = [
        value for _, attributes in outline.tags for value in (attributes.get("href"), attributes.get("src")) if value
    ]
    assert all(value.startswith(("/", "#")) for value in outside)


async def test_static_files_are_listed_ones_only(local: httpx.AsyncClient):
    """No path leads out of the folder."""
    assert (await local.get("/static/redrive.css")).headers["Content-Type"].startswith("text/css")
    assert (await local.get("/static/redrive.svg")).status_code == 200
    for name in ("..%2Fapp.py", "%2e%2e/app.py", "start.html", "redrive.css%00"):
        assert (await local.get(f"/static/{name}")).status_code == 404


async def test_both_colour_schemes_are_styled(local: httpx.AsyncClient):
    """Light and dark by the reader's preference, with the same variables in both."""
    css = (await local.get("/static/redrive.css")).text
    light, dark = css.split("@media (prefers-color-scheme: dark)")[:2]
    names = set(re.findall(r"--[\w-]+(?=:)", light))
    assert set(re.findall(r"--[\w-]+(?=: #)", dark)) == names


async def test_the_page_asks_the_store_at_most_once_a_second(app: Redrive, local: httpx.AsyncClient, monkeypatch):
    """Many readers cost one look."""
    looked = 0
    counts = app.counts

    async def counting(**options: int):
        nonlocal looked
        looked += 1
        return await counts(**options)

    monkeypatch.setattr(app, "counts", counting)
    monkeypatch.setattr("redrive.web.start.FRESH_SECONDS", 1000)
    await asyncio.gather(*(local.get("/") for _ in range(10)))
    assert looked == 1
