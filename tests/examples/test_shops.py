"""The stories of the guides to web frameworks: an order and its invoice are both there or neither, and the invoice is retried."""

import asyncio
from pathlib import Path

import httpx

from examples.fastapi_shop import build
from examples.flask_shop import create_app, jobs
from redrive.testing import drain


async def test_fastapi_takes_both_or_neither_and_sends_in_its_own_process(tmp_path: Path) -> None:
    """The lifespan runs the worker, which retries and sends; the order that was not committed left no task."""
    sent: asyncio.Queue[int] = asyncio.Queue()
    web = build(str(tmp_path / "shop.db"), sent.put_nowait)
    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop") as client,
    ):
        assert (await client.post("/orders/13")).json() == {"taken": False}
        assert (await client.post("/orders/7")).json() == {"taken": True}
        assert await asyncio.wait_for(sent.get(), 60) == 7
    assert sent.empty()


def test_flask_takes_both_or_neither(tmp_path: Path) -> None:
    """The handler runs in the context of the application that the factory made."""
    app = create_app(str(tmp_path / "shop.db"))
    said = app.test_cli_runner().invoke(args=["redrive", "migrate"])
    assert "redrive" in said.output
    assert said.exit_code == 0
    client = app.test_client()
    assert client.post("/orders/13").json == {"taken": False}
    assert client.post("/orders/7").json == {"taken": True}
    with app.app_context():
        redrive = jobs.app

    async def work() -> None:
        async with redrive:
            await drain(redrive)

    asyncio.run(work())
    assert app.config["SENT"] == [7]
