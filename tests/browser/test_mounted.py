"""The dashboard under a path of another application, with that application's login, in a real browser."""

import asyncio
import socket
from pathlib import Path

import pytest
import uvicorn
from playwright.async_api import Page, expect

from examples.fastapi_dashboard import build
from redrive import State

from .site import Server
from .test_acts import confirm

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_it_works_under_the_path(page: Page, tmp_path: Path) -> None:
    """Whoever asks for a dead task logs in to the host, is back at the task, redrives it, searches, and goes on by keyboard and by the API page.

    Every page is watched, as everywhere: no error, nothing refused by the policy.
    """
    web, app = build(str(tmp_path / "shop.db"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = Server(
            uvicorn.Config(web, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            async with asyncio.timeout(150):
                while not server.started:
                    await asyncio.sleep(0.02)
                await page.request.post(f"{url}/invoices/13")
                while (task := await app.tasks.get("invoice-13")) is None or task.state is not State.DEAD:
                    await asyncio.sleep(0.02)
            await page.goto(f"{url}/ops/redrive/tasks/redrive_task/{task.id}")
            await page.get_by_label("Name").fill("ada")
            await page.get_by_role("button", name="Log in").click()
            # And until its scripts are there: on a busy machine a click would come before them.
            await page.wait_for_url(f"{url}/ops/redrive/tasks/redrive_task/{task.id}")
            await page.get_by_role("button", name="Redrive").first.click()
            await confirm(page, shown="1 task", reason="mended")
            await expect(page.get_by_role("status").filter(has_text="redriven")).to_be_visible()
            [deed] = await app.tasks.deeds(task.id)
            assert (deed.actor, deed.reason) == ("ada", "mended")
            await page.goto(f"{url}/ops/redrive/tasks?text=invoice-13")
            await expect(page.locator("#found a.id, #results a.id, a.id").first).to_have_attribute(
                "href", f"/ops/redrive/tasks/redrive_task/{task.id}"
            )
            await page.keyboard.press("g")
            await page.keyboard.press("w")
            await expect(page).to_have_url(f"{url}/ops/redrive/workers")
            await page.goto(f"{url}/ops/redrive/docs")
            await expect(page.locator(".opblock-tag").first).to_be_visible()
        finally:
            server.should_exit = True
            await serving
