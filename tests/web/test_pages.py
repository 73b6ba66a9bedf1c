"""The pages as they are served: what is in them before any script runs, to whom, and under which headers.

How they work in a browser is tested in `tests/browser`.
"""

import asyncio
import html
import re
import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from unittest.mock import Mock

import httpx
import pytest
from fastapi import Request
from jinja2 import ChoiceLoader, DictLoader

from redrive import LedgerTable, Redrive, State, Words, hours
from redrive.errors import TableError
from redrive.http.panel import Panel
from redrive.running import Service
from redrive.settings import Settings
from redrive.system import System
from redrive.web.pages import systems
from redrive.web.pages.frame import ADDRESS_CHARS_MAX, templates
from redrive.web.pages.static import PACKAGED, STATIC

from .conftest import client_of, running

PAGES = (
    "/",
    "/tasks",
    "/dead",
    "/charts",
    "/operations",
    "/gates",
    "/effects",
    "/workers",
    "/systems",
    "/audit",
    "/docs",
    "/login",
)
HTML = {"Accept": "text/html"}


async def ended(app: Redrive, key: str, state: State) -> None:
    """Wait until a task is in a state."""
    while (await app.tasks.get(key)).state is not state:
        await asyncio.sleep(0.01)


async def test_the_overview_holds_the_numbers_of_its_moment(app: Redrive, local: httpx.AsyncClient):
    """Counts by state and charts are there without a script."""
    await app.add("mail", key="good")
    await app.add("mail", "fail", key="bad", attempts=1)
    await app.add("mail", key="later", delay=hours(2))
    await ended(app, "good", State.DONE)
    await ended(app, "bad", State.DEAD)
    counts: dict[str, str] = {}
    async with asyncio.timeout(60):  # they are counted every few seconds, and an answer holds for one
        while counts | {"dead": "1", "waiting": "1", "running": "0", "done": "1"} != counts:
            text = (await local.get("/")).text
            counts = dict(re.findall(r'<dd data-figure="(\w+)">([\d,]+)', text))
            await asyncio.sleep(0.2)
    charts = (await local.get("/charts")).text
    assert re.search(r'id="chart-states".*?class="total">3<', charts, re.DOTALL)


@pytest.mark.parametrize("path", ["/tasks", "/dead", "/audit?ledger=redrive_task", "/operations", "/gates"])
async def test_every_list_says_when_it_is_empty(local: httpx.AsyncClient, path: str):
    """In a sentence, not as a bare table."""
    text = (await local.get(path, headers=HTML)).text
    assert '<p class="empty">' in text
    assert "<tbody>" not in text


@pytest.mark.parametrize("path", ["/tasks/redrive_task/999999", "/tasks/nowhere/1", "/tasks/redrive_task/abc"])
async def test_a_task_that_is_not_there(local: httpx.AsyncClient, path: str):
    """A page says so, with a way back."""
    answer = await local.get(path, headers=HTML)
    assert answer.status_code == 404
    assert re.search(r"<h1[^>]*>Not found</h1>", answer.text)
    assert 'href="/"' in answer.text


async def test_a_page_that_breaks(local: httpx.AsyncClient, app: Redrive, monkeypatch: pytest.MonkeyPatch):
    """A reader gets a page that names the request, and nothing of what went wrong; a program gets the one form."""
    broken = Mock(side_effect=ZeroDivisionError("a secret"))
    monkeypatch.setattr(type(app.store.audit), "page", broken)
    page = await local.get("/audit", headers=HTML)
    assert broken.called
    assert (page.status_code, page.headers["Content-Type"]) == (500, "text/html; charset=utf-8")
    assert page.headers["X-Request-Id"] in page.text and 'aria-label="Main"' in page.text
    assert "secret" not in page.text and "ZeroDivision" not in page.text
    assert (await local.get("/audit")).json()["error"]["code"] == "internal_error"


async def test_an_address_that_leads_nowhere(local: httpx.AsyncClient, remote: httpx.AsyncClient):
    """A reader gets a page, with the menu if they may look and without a word of the service if not; a program gets the one form."""
    for path in ("/nothing", "/api/nothing", "/<script>"):
        page = await local.get(path, headers=HTML)
        assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
        assert "There is nothing at" in page.text and 'aria-label="Main"' in page.text
        assert "<script>" not in page.text.partition("<h1")[2].partition("</section>")[0]
        assert (await local.get(path)).json()["error"]["code"] == "not_found"
    stranger = await remote.get("/nothing", headers=HTML)
    assert stranger.status_code == 404
    assert 'aria-label="Main"' not in stranger.text and "sqlite" not in stranger.text
    assert (await local.delete("/tasks", headers=HTML)).json()["error"]["code"] == "method_not_allowed"


async def test_what_strangers_wrote_is_escaped(app: Redrive, local: httpx.AsyncClient):
    """Keys, kinds and errors are text, never markup."""
    await app.add("<script>alert(1)</script>", key='"><img src=x onerror=alert(2)>')
    await app.add("mail", "fail", key="bad", attempts=1)
    await ended(app, "bad", State.DEAD)
    text = (await local.get("/tasks")).text
    assert "<script>" not in text
    assert "<img src=x" not in text
    assert "no &lt;b&gt;mail&lt;/b&gt; today" in text


async def test_a_parked_task_names_what_keeps_it_back(app: Redrive, local: httpx.AsyncClient):
    """A due task behind a gate that holds, or of a kind that is paused, is not shown as if it only waited; one that is not due yet is."""
    await app.tasks.pause_gate("bank:DE", actor="ada", reason="away")
    await app.tasks.pause_gate("kind:telex", actor="ada", reason="away")
    await app.add("fax", key="behind", gate="bank:DE")
    await app.add("telex", key="of-a-kind")
    await app.add("fax", key="later", gate="bank:DE", delay=hours(2))
    text = (await local.get("/tasks?state=waiting")).text
    rows = {
        key: re.search(rf"<tr>(?:(?!</tr>).)*>{key}<.*?</tr>", text, re.DOTALL)
        for key in ("behind", "of-a-kind", "later")
    }
    said = {key: row[0] for key, row in rows.items() if row is not None}
    assert 'class="state parked"' in said["behind"]
    assert 'prefix=bank%3ADE">bank:DE</a>' in said["behind"]
    assert 'prefix=kind%3Atelex">kind telex</a>' in said["of-a-kind"]
    assert 'class="state waiting"' in said["later"]


async def test_kinds_without_a_handler_are_named(app: Redrive, local: httpx.AsyncClient):
    """What waits and nobody here would run is said."""
    await app.add("fax", key="f")
    text = (await local.get("/")).text
    assert re.search(r"Waiting without a handler here:</strong> <code>fax</code>", text)


async def test_no_handlers_at_all(url: str):
    """A service without an application says so, once, and lists no kind as missing."""
    async with running(Redrive(url)) as service, client_of(service) as client:
        await service.app.add("fax")
        text = (await client.get("/")).text
    assert "No handlers are loaded" in text
    assert "Waiting without a handler here" not in text


async def test_pages_while_the_store_is_not_open(app: Redrive):
    """The overview is there before the store is; the others say when to come back, as pages to readers."""
    async with client_of(Service(app, Settings(_env_file=None))) as client:
        answer = await client.get("/")
        assert answer.status_code == 200
        assert "The database is not open yet" in answer.text
        for path in ("/tasks", "/dead", "/gates", "/workers", "/audit"):
            refused = await client.get(path, headers=HTML)
            assert refused.status_code == 503
            assert "<h1" in refused.text
    await app.close()


@pytest.mark.parametrize("path", PAGES[:-1])
async def test_from_elsewhere_pages_need_a_login(remote: httpx.AsyncClient, path: str):
    """A browser is sent to it and comes back; a program is told what it lacks; neither learns anything."""
    sent = await remote.get(path, headers=HTML)
    assert sent.status_code == 303
    assert sent.headers["Location"] == f"/login?next={path.replace('/', '%2F')}"
    told = await remote.get(path)
    assert (told.status_code, told.json()["error"]["code"]) == (401, "key_missing")


async def test_an_address_too_long_to_come_back_to_is_shortened(service: Service, remote: httpx.AsyncClient):
    """Without its query, or to the start page: the form is there in any case, and the login works."""
    secret = (await service.keys.create("ada", ["viewer"])).secret
    whole = f"/tasks?error={'x' * (ADDRESS_CHARS_MAX - len('/tasks?error='))}"
    ways = {whole: whole, f"{whole}x": "/tasks", f"/tasks/redrive_task/{'x' * ADDRESS_CHARS_MAX}": "/"}
    for address, back in ways.items():
        sent = await remote.get(address, headers=HTML)
        assert sent.status_code == 303
        form = await remote.get(sent.headers["Location"], headers=HTML)
        assert form.status_code == 200
        assert f'name="next" value="{back}"' in form.text
    entered = await remote.post("/login", data={"key": secret, "next": whole}, headers=HTML)
    assert (entered.status_code, entered.headers["Location"]) == (303, whole)


async def test_the_login_tells_nothing_of_the_service(remote: httpx.AsyncClient, app: Redrive):
    """Open to all, so neither its database nor its version is there."""
    text = (await remote.get("/login")).text
    assert app.database.url not in text
    assert "redrive 0" not in text
    assert "Main" not in text


@pytest.mark.parametrize("path", PAGES)
async def test_pages_run_our_own_files_only(local: httpx.AsyncClient, path: str):
    """The policy allows nothing inline, neither script nor style, and nothing from elsewhere."""
    policy = (await local.get(path)).headers["Content-Security-Policy"]
    assert "script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


class Outline(HTMLParser):
    """What an accessible page must have."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        if "svg" not in self.open:  # a picture has a title of its own
            self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("path", PAGES)
async def test_pages_are_well_formed(app: Redrive, local: httpx.AsyncClient, path: str):
    """Every tag is closed; there is a language, a title, one main, one h1, header cells with a scope; nothing is inline."""
    await app.add("fax", key="f")
    outline = Outline()
    outline.feed((await local.get(path)).text)
    assert outline.open == []
    tags = [tag for tag, _ in outline.tags]
    assert (tags.count("main"), tags.count("h1"), tags.count("title")) == (1, 1, 1)
    assert dict(outline.tags)["html"] == {"lang": "en"}
    assert all("scope" in attributes for tag, attributes in outline.tags if tag == "th")
    assert all("src" in attributes for tag, attributes in outline.tags if tag == "script")
    assert "style" not in tags
    assert not any(name.startswith("on") or name == "style" for _, attributes in outline.tags for name in attributes)
    outside = [
        value for _, attributes in outline.tags for value in (attributes.get("href"), attributes.get("src")) if value
    ]
    assert all(value.startswith(("/", "#")) for value in outside)


async def test_static_files_are_listed_ones_only(local: httpx.AsyncClient):
    """Each file of the folder and of the packages is served, and no path leads out of it."""
    for name in (*(file.name for file in STATIC.iterdir()), *PACKAGED):
        assert (await local.get(f"/static/{name}")).status_code == 200
    for name in ("..%2Fapp.py", "%2e%2e/app.py", "base.html", "redrive.css%00", "icons.html"):
        assert (await local.get(f"/static/{name}")).status_code == 404


async def test_static_files_are_asked_for_once(local: httpx.AsyncClient):
    """Ours are checked by their tag each time; those of packages are kept for good under their version, and compressed."""
    ours = await local.get("/static/redrive.css")
    assert "no-cache" in ours.headers["Cache-Control"]
    again = await local.get("/static/redrive.css", headers={"If-None-Match": ours.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    page = (await local.get("/docs")).text
    [source] = re.findall(r'src="(/static/swagger-ui\.js\?v=[\d.]+)"', page)
    packaged = await local.get(source)
    assert "immutable" in packaged.headers["Cache-Control"]
    assert packaged.headers["Content-Encoding"] == "gzip"
    assert "immutable" not in (await local.get("/static/swagger-ui.js")).headers["Cache-Control"]


async def test_every_colour_is_chosen_for_both_themes(local: httpx.AsyncClient):
    """Light and dark stand side by side, and each mark and text can be read on the card in its theme."""
    css = (await local.get("/static/redrive.css")).text
    colours = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", css))
    for name in (
        "text",
        "quiet",
        "link",
        "bad",
        "warn",
        "good",
        "info",
        "waiting",
        "parked",
        "running",
        "done",
        "plain",
    ):
        for own, ground in zip(colours[name].split(", "), colours["card"].split(", "), strict=True):
            assert _contrast(own, ground) >= 4.5, (name, own, ground)
    for ground in colours["press"].split(", "):
        assert _contrast("#ffffff", ground) >= 4.5


def _contrast(one: str, other: str) -> float:
    """The ratio that WCAG asks for."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


async def test_a_system_brings_its_own_page(url: str, monkeypatch: pytest.MonkeyPatch):
    """Its name, what it is, what it depends on, and a link to its page; those in trouble hide nobody."""

    class Pigeons(System):
        """Carries messages <home>."""

        name = "pigeons"

        async def checks(self):
            return {"loft": False}

        def panel(self):
            return Panel(title="Loft", template="pigeons.html", content=content)

    class Moles(System):
        """Blind."""

        name = "moles"

        async def checks(self):
            raise ValueError("password=hunter2 does not work here")

    class Snails(System):
        """Slow."""

        name = "snails"

        async def checks(self):
            await asyncio.sleep(60)
            return {}

    async def content(request: Request) -> dict[str, object]:
        return {"loft": f"pigeons in {request.query_params['town']}"}

    loader = ChoiceLoader([templates.loader, DictLoader({"pigeons.html": "<p>{{ content.loft }}</p>"})])
    monkeypatch.setattr(templates, "loader", loader)

    monkeypatch.setattr(systems, "CHECKED_WITHIN_SECONDS", 0.05)
    app = Redrive(url)
    Pigeons(app)
    Moles(app)
    Snails(app)
    async with running(app) as service, client_of(service) as client:
        text = (await client.get("/systems")).text
        page = (await client.get("/systems/pigeons?town=<Rome>")).text
        assert (await client.get("/systems/moles")).status_code == 404
        assert (await client.get("/systems/owls")).status_code == 404
    assert 'href="/systems/pigeons"' in text
    assert 'href="/systems/moles"' not in text
    assert "<h1>Loft</h1>" in page
    assert "<p>pigeons in &lt;Rome&gt;</p>" in page
    assert "Carries messages &lt;home&gt;." in text
    assert "loft away" in text
    assert 'id="snails"' in text
    assert "It is not responding as expected" in text
    assert "hunter2" not in text


IDS = ("a/b?c#d", "é & ü", "100%", "'\"<x>", "../up")
PARCELS = LedgerTable(
    "parcels", key="id", words=Words(waiting="new", done="sent", dead="lost"), due="due_at", count="tries"
)


async def test_ids_may_be_any_text(tmp_path):
    """The link in the list of an adopted table leads to the task, whatever signs its id is made of."""
    location = f"sqlite:///{tmp_path / 'parcels.db'}"
    with closing(sqlite3.connect(tmp_path / "parcels.db")) as raw:
        raw.execute("CREATE TABLE parcels (id TEXT PRIMARY KEY, status TEXT NOT NULL, due_at DATETIME, tries INTEGER)")
        raw.executemany("INSERT INTO parcels VALUES (?, 'lost', NULL, 3)", [(id_,) for id_ in IDS])
        raw.commit()
        with pytest.raises(TableError) as refused:
            async with Redrive(location) as looked:
                await looked.adopt(PARCELS).ledger()
        raw.executescript(";".join(refused.value.migration))
    app = Redrive(location)
    app.adopt(PARCELS).handler()(lambda _task: None)
    async with running(app) as service, client_of(service) as client:
        page = (await client.get("/tasks?ledger=parcels")).text
        links = [html.unescape(link) for link in re.findall(r'class="id" href="([^"]+)"', page)]
        assert len(links) == len(IDS)
        shown = set()
        for link in links:
            task = await client.get(link)
            assert task.status_code == 200
            shown.add(html.unescape(re.search(r"<dt>Key</dt><dd><code>(.*?)</code>", task.text)[1]))
        assert shown == set(IDS)
