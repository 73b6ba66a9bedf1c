"""The dashboard under a path of another application, for people whom that application knows."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import unescape
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from redrive import PermanentError, Redrive
from redrive.asgi import lifespan
from redrive.dashboard import Dashboard, Person
from redrive.errors import UsageError
from redrive.http.place import own_path, with_root
from redrive.operator.sql.census import SqlCensus
from redrive.systems.flags import Flags
from redrive.systems.webhooks import Webhooks
from redrive.testing import drain, temporary_url

ROOT = "/ops/redrive"
HTML = {"accept": "text/html"}
PEOPLE = {"ada": Person("ada", "operator"), "bob": Person("bob", "viewer")}


def who(request: Request) -> Person | None:
    """As a host would, from a header that its own middleware has checked."""
    return PEOPLE.get(request.headers.get("x-user", ""))


def application() -> Redrive:
    """A handler that fails for ever."""
    app = Redrive(temporary_url())

    @app.handler
    async def send(_task: Any) -> None:
        raise PermanentError("no such invoice <script>")

    return app


def on_fastapi(life: Any, dashboard: Dashboard) -> tuple[Any, AbstractAsyncContextManager[Any]]:
    host = FastAPI(lifespan=life)
    host.mount(dashboard.path, dashboard)
    return host, host.router.lifespan_context(host)


def on_starlette(life: Any, dashboard: Dashboard) -> tuple[Any, AbstractAsyncContextManager[Any]]:
    """Two mounts deep: the inner one knows only its own part of the path."""
    host = Starlette(lifespan=life, routes=[Mount("/ops", routes=[Mount("/redrive", dashboard)])])
    return host, host.router.lifespan_context(host)


def on_litestar(life: Any, dashboard: Dashboard) -> tuple[Any, AbstractAsyncContextManager[Any]]:
    host = Litestar([asgi(dashboard.path, is_mount=True, copy_scope=True)(dashboard)], lifespan=[life])
    return host, host.lifespan()


HOSTS: list[Callable[..., Any]] = [on_fastapi, on_starlette, on_litestar]


@asynccontextmanager
async def opened(
    app: Redrive, host: Callable[..., Any] = on_fastapi, *, root_path: str = "", **how: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A browser of the application that has the dashboard."""
    dashboard = Dashboard(ROOT, **({"who": who, "login": "/login"} | how))
    made, life = host(lifespan(app, dashboard=dashboard), dashboard)
    transport = httpx.ASGITransport(made, client=("127.0.0.1", 1), root_path=root_path)
    async with life, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def links(page: httpx.Response) -> set[str]:
    """Where a page leads, and what it loads; without fragments."""
    if "html" in page.headers["content-type"]:
        found = re.findall(r'\b(?:href|src)="([^"#][^"]*)"', page.text)
        found += re.findall(r'<form[^>]*method="get"[^>]* action="([^"]*)"', page.text)
    else:
        found = re.findall(r'^import .* from "(\./[^"]+)"', page.text, re.MULTILINE)
    return {urlsplit(urljoin(str(page.url), unescape(one)))._replace(fragment="").geturl() for one in found}


async def walk(client: httpx.AsyncClient, pages_max: int) -> set[str]:
    """Follow every link from the first page on; each must be below the path and answer."""
    seen, ahead = set[str](), [f"http://127.0.0.1{ROOT}/"]
    while ahead and len(seen) < pages_max:
        address = ahead.pop(0)
        answer = await client.get(address, headers=HTML | {"x-user": "ada"})
        assert answer.status_code == 200, (address, answer.status_code, answer.text[:300])
        seen.add(address)
        for link in sorted(links(answer) - seen - {*ahead}):
            assert urlsplit(link).path.startswith(ROOT + "/"), f"{address} leads out to {link}"
            ahead.append(link)
    return seen


async def die(app: Redrive, *keys: str) -> None:
    """Have tasks that are dead."""
    for key in keys:
        await app.add("send", {"invoice": key}, key=key)
    await drain(app)


async def test_every_link_stays_under_the_path() -> None:
    """Pages, filters, scripts and what scripts import, systems included: all that can be reached answers."""
    app = application()
    Flags(app)
    Webhooks(app)
    async with opened(app) as client:
        await die(app, "a", 'b"/<i>')
        while not await SqlCensus(await app.tasks.ledger()).take():  # the service counts at the same time
            await asyncio.sleep(0.02)
        seen = {urlsplit(one).path.removeprefix(ROOT) for one in await walk(client, 400)}
    assert {"/", "/tasks", "/dead", "/operations", "/workers", "/systems/flags", "/audit", "/docs", "/openapi.json",
            "/static/redrive.css", "/static/place.js", "/metrics", "/gates"} <= seen  # fmt: skip
    assert any(one.startswith("/tasks/redrive_task/") for one in seen)
    assert any(one.startswith("/causes/") for one in seen)


@pytest.mark.parametrize("host", HOSTS[1:])
async def test_other_hosts_take_it_too(host: Callable[..., Any]) -> None:
    """Whether they leave the path in front or take it off."""
    app = application()
    async with opened(app, host) as client:
        assert len(await walk(client, 8)) == 8
        assert (await client.get(f"{ROOT}/api/session", headers={"x-user": "bob"})).json()["owner"] == "bob"


async def test_a_proxy_may_have_taken_a_path_off_before() -> None:
    """What the host itself is under stands in front of every link."""
    async with opened(application(), root_path="/shop") as client:
        page = await client.get(f"/shop{ROOT}/", headers=HTML | {"x-user": "ada"})
        assert page.status_code == 200
        assert f'href="/shop{ROOT}/tasks"' in page.text
        assert 'href="/tasks"' not in page.text


async def test_nobody_is_sent_to_the_login_of_the_host() -> None:
    """And comes back from there to the page that was asked for; the API says 401, and redrive's own login is not there."""
    async with opened(application()) as client:
        first = await client.get(f"{ROOT}/tasks?state=dead", headers=HTML)
        assert first.status_code == 303
        second = await client.get(first.headers["location"], headers=HTML)
        assert second.headers["location"] == "/login?next=%2Fops%2Fredrive%2Ftasks%3Fstate%3Ddead"
        assert (await client.get(f"{ROOT}/api/tasks")).status_code == 401
        assert (await client.post(f"{ROOT}/login", data={"key": "x"})).status_code == 404
        assert "Log out" not in (await client.get(f"{ROOT}/", headers=HTML | {"x-user": "ada"})).text


async def test_a_host_without_an_address_of_its_login_is_named() -> None:
    """The page says what to do, and leads nowhere in a circle."""
    async with opened(application(), login=None) as client:
        page = await client.get(f"{ROOT}/", headers=HTML, follow_redirects=True)
    assert (page.status_code, len(page.history)) == (401, 1)
    assert "log in there" in page.text


async def test_acts_need_a_role_and_a_page_of_ours() -> None:
    """An operator acts by the page's token; without it, from another origin, or as a viewer nothing happens. The audit names the person."""
    app = application()
    async with opened(app) as client:
        await die(app, "a")
        page = await client.get(f"{ROOT}/", headers=HTML | {"x-user": "ada"})
        found = re.search(r'name="csrf-token" content="(\w+)"', page.text)
        assert found is not None
        kept = page.headers["set-cookie"]
        assert f"Path={ROOT};" in kept
        assert "HttpOnly" in kept
        token = {"x-csrf-token": found[1]}
        task = await app.tasks.get("a")
        assert task is not None
        body = {"ids": [str(task.id)], "reason": "mended"}

        async def act(**headers: str) -> int:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.post(f"{ROOT}/api/tasks/redrive", json=body, headers=sent)).status_code

        assert await act(x_user="ada") == 403
        assert await act(x_user="ada", **token, origin="http://evil.example") == 403
        assert await act(x_user="bob", **token) == 403
        assert await act(**token) == 401
        assert await act(x_user="ada", **token, origin="http://127.0.0.1") == 200
        [deed] = await app.tasks.deeds(task.id)
    assert (deed.actor, deed.reason) == ("ada", "mended")


async def test_keys_of_programs_go_on_working() -> None:
    """A host's people need no key; its programs have theirs. This machine itself is not trusted, since a proxy may stand before the host."""
    app = application()
    async with opened(app) as client:
        key = (await app.store.keys.create("a program", ["viewer"])).secret
        assert (await client.get(f"{ROOT}/api/tasks", headers={"x-api-key": key})).status_code == 200
        assert (await client.get(f"{ROOT}/metrics")).status_code == 401
        described = (await client.get(f"{ROOT}/openapi.json")).json()
    assert described["servers"] == [{"url": ROOT}]


async def test_without_a_host_that_knows_people_they_log_in_with_keys() -> None:
    """The form, its cookie and the way back stay under the path."""
    app = application()
    async with opened(app, who=None, login=None) as client:
        key = (await app.store.keys.create("ada", ["operator"])).secret
        asked = await client.get(f"{ROOT}/tasks", headers=HTML, follow_redirects=True)
        assert f'action="{ROOT}/login"' in asked.text
        sent = await client.post(f"{ROOT}/login", data={"key": key, "next": "//evil.example"}, headers=HTML)
        assert (sent.status_code, sent.headers["location"]) == (303, f"{ROOT}/")
        assert f"Path={ROOT}/;" in sent.headers["set-cookie"]
        assert "Log out" in (await client.get(f"{ROOT}/", headers=HTML)).text
        wrong = await client.post(f"{ROOT}/login", data={"key": "wrong"}, headers=HTML)
        assert wrong.headers["location"] == f"{ROOT}/login?problem=key_invalid"


async def test_mistakes_are_named() -> None:
    """A path that cannot be one, a login of nobody, and a dashboard that nobody has opened."""
    for path in ("ops", "/ops/", "/"):
        with pytest.raises(UsageError, match="slash"):
            Dashboard(path)
    with pytest.raises(UsageError, match="give `who` too"):
        Dashboard(ROOT, login="/login")
    host, _ = on_fastapi(None, Dashboard(ROOT, who=who))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://127.0.0.1") as client:
        with pytest.raises(RuntimeError, match="lifespan"):
            await client.get(f"{ROOT}/")


def test_only_links_of_the_page_get_the_root() -> None:
    """Not other hosts, not fragments, not what a task wrote."""
    page = '<a href="/x" data-deed="/api"><a href="//else"><a href="#a">href=&#34;/y<form action="/z">'
    assert with_root(page, '/a"b') == page.replace('="/x"', '="/a&#34;b/x"').replace('="/z"', '="/a&#34;b/z"')
    assert own_path({"path": "/ops/redrivers", "root_path": "/ops/redrive"}) == "/ops/redrivers"
