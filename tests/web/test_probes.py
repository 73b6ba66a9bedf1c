"""What workers and the handler of dead letters serve: three routes for monitoring, and no way in."""

import httpx

from redrive import Redrive
from redrive.access.sql.keys import SqlKeys
from redrive.running import Running
from redrive.settings import Settings
from redrive.web.probes import make_worker_probes


async def test_a_worker_serves_three_routes(app: Redrive):
    """Whether it is well is for all to ask; what it has done needs a key, unless this machine is trusted."""
    async with app:
        key = (await SqlKeys(app.database).create("prometheus", ["viewer"])).secret
        for trusted, status in ((False, 401), (True, 200)):
            running = Running(app, app.workers())
            web = make_worker_probes(running, Settings(_env_file=None, http_trust_loopback=trusted))
            served = {(path, *methods) for path, methods in web.openapi()["paths"].items()}
            assert served == {("/health", "get"), ("/ready", "get"), ("/metrics", "get")}
            transport = httpx.ASGITransport(web, client=("127.0.0.1", 12345))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                assert (await client.get("/metrics")).status_code == status
                assert (await client.get("/metrics", headers={"X-API-Key": key})).status_code == 200
                assert (await client.get("/health")).json()["checks"] == {"database": "ok"}
                assert (await client.get("/ready")).status_code == 503  # nothing runs here


async def test_a_worker_that_is_not_asked_counts_nothing(app: Redrive):
    """Counting costs a little with every task."""
    assert Running(app, app.workers(), measured=False).metrics is None
    assert app.observers == []
    await app.close()
