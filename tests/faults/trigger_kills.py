"""Services of triggers that are killed while events come in and go out: small by `test_triggers_kill.py`, and at full size by
`python -m proof kills_triggers`."""

import asyncio
import random
import socket
import time
from collections import Counter
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import httpx
from sqlalchemy import Connection, func, select

from redrive import Redrive
from redrive.extend import ATTEMPTS
from redrive.systems.triggers.sql import tables as t
from tests import forks
from tests.systems.triggers.receiver import Received, Receiver, status

from .books import until
from .kill_proofs import PATIENCE_SECONDS
from .processes import Ground

KEY = "a-key-for-this-test-only"
LEASE_SECONDS = 2
SERVICES = 2
HANGING, HANGS_SECONDS = "hanging", 600.0


class ServiceProcess:
    """A `redrive serve` of its own, started again at the same port after each kill."""

    def __init__(self, ground: Ground, name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = ground.folder / f"{name}.log"
        self._environment = ground.environment | {
            "DATABASE_URL": ground.url,
            "REDRIVE_SYSTEMS": "triggers",
            "REDRIVE_ADMIN_KEY": KEY,
            "REDRIVE_SECRET_KEY": "A" * 43 + "=",
            "RETRY_DELAYS": "0.2",
            "DELIVERY_ALLOW_NETWORKS": "127.0.0.0/8",
            "RATE_LIMIT_PER_MINUTE": "1000000",
            "WORKER_LEASE": f"{LEASE_SECONDS}s",
            "LOG_LEVEL": "warning",
        }
        self._process: forks.Process | None = None

    def start(self) -> None:
        self._process = forks.run(
            "serve", "--port", str(self.port), folder=forks.ROOT, log=self._log, environment=self._environment
        )

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"the service ended by itself:\n{self._log.read_text()[-3000:]}"
        self._process.kill()
        self._process.wait()

    async def ready(self) -> None:
        """Come back when it answers."""
        ends = time.monotonic() + 150
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            while time.monotonic() < ends:
                try:
                    if (await client.get("/ready")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(f"the service is not ready:\n{self._log.read_text()[-3000:]}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


async def send(services: list[ServiceProcess], accepted: dict[str, str], name: str, stop: asyncio.Event) -> None:
    """Send events, one at least, each until somebody has said 201, and keep what was said."""
    async with httpx.AsyncClient(headers={"X-API-Key": KEY}, timeout=60) as client:
        number = 0
        while not (number and stop.is_set()):
            key = f"{name}-{number}"
            body = {"event_type": "load.test", "payload": {"key": key}}
            service = random.choice(services)
            try:
                answer = await client.post(f"{service.url}/v1/events", json=body, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue  # killed: whether it was stored is unknown, the key makes asking again harmless
            assert answer.status_code == 201, answer.text
            accepted[key] = answer.json()["event_id"]
            number += 1
            await asyncio.sleep(0.01)


def read(connection: Connection) -> tuple[dict[str, Any], dict[str, Counter[str]]]:
    """Every event, and what its attempts came to."""
    events = {row.id: row for row in connection.execute(select(t.events.c.id, t.events.c.status, t.events.c.payload))}
    a, d = ATTEMPTS, t.deliveries
    outcomes: dict[str, Counter[str]] = {id_: Counter() for id_ in events}
    found = select(d.c.event_id, a.c.outcome, func.count()).join(a, a.c.task_id == d.c.id)
    for event_id, outcome, amount in connection.execute(found.group_by(d.c.event_id, a.c.outcome)):
        outcomes[event_id][outcome] = amount
    return events, outcomes


async def triggers(ground: Ground, rng: random.Random, *, tasks: int, kills: int, senders: int = 3) -> str:
    """SIGKILL at any moment: every event that was accepted is delivered, and every extra delivery is explained.

    A delivery that arrived more than once belongs to a claim whose service was killed before it could settle, or whose
    answer was a failure: each arrival has an attempt of its own in the history.
    """
    accepted: dict[str, str] = {}
    stop = asyncio.Event()
    refused: set[str] = set()
    held: list[Received] = []

    def answer(got: Received) -> str:
        id_ = got.headers["webhook-id"]
        if id_.endswith(("0", "1")) and id_ not in refused:
            refused.add(id_)
            return status(503)
        return status(200)

    def seconds(got: Received) -> float:
        if hangs(got):
            held.append(got)
            if len(held) == 1:
                return HANGS_SECONDS
        return 0.3 if got.headers["webhook-id"].endswith(tuple("23456")) else 0.0  # so that a kill finds some under way

    def hangs(got: Received) -> bool:
        return HANGING.encode() in got.body

    async with Receiver(answer, seconds=seconds) as receiver:
        with ExitStack() as stack:
            services = [stack.enter_context(ServiceProcess(ground, f"service-{n}")) for n in range(SERVICES)]
            await asyncio.gather(*(service.ready() for service in services))
            async with httpx.AsyncClient(headers={"X-API-Key": KEY}, timeout=60) as client:
                made = await client.post(f"{services[0].url}/v1/endpoints", json={"url": receiver.url})
                assert made.status_code == 201, made.text
                sending = [asyncio.create_task(send(services, accepted, f"s{n}", stop)) for n in range(senders)]
                for round_ in range(kills):
                    # However slow the machine is: a kill of services that were given little would show little.
                    enough = tasks * (round_ + 1) // (kills + 1)
                    await until(lambda enough=enough: len(accepted) >= enough, "more was accepted", PATIENCE_SECONDS)
                    await asyncio.sleep(rng.uniform(0, 0.5))
                    victim = rng.choice(services)
                    victim.kill()
                    victim.start()
                    await victim.ready()
                await until(lambda: len(accepted) >= tasks, "all was accepted", PATIENCE_SECONDS)
                stop.set()
                await asyncio.gather(*sending)
                # The others hit by chance. These hit for certain: the delivery is under way until its service is killed.
                await send(services, accepted, HANGING, stop)
                await until(lambda: held, "it is under way, after all those before it", PATIENCE_SECONDS)
                for service in services:
                    service.kill()
                    service.start()
                await asyncio.gather(*(service.ready() for service in services))
                await _all_ended(client, services[0])
        app = Redrive(ground.url)
        await app.database.open()
        events, outcomes = await app.database.read(read)
        await app.close()
    arrived = Counter(got.headers["webhook-id"] for got in receiver.received)
    extra = sum(arrived.values()) - len(arrived)
    assert set(accepted.values()) == set(events), "accepted and stored are not the same"
    assert len(set(accepted.values())) == len(accepted), "two keys have one event"
    for id_, event in events.items():
        attempts = outcomes[id_]
        assert event.status == "delivered", (id_, event.status, attempts)
        assert attempts["done"] == 1, (id_, attempts)
        assert 1 <= arrived[id_] <= attempts.total(), (id_, arrived[id_], attempts)
    lost = sum(attempts["lease_expired"] for attempts in outcomes.values())
    assert lost, "the kills hit nothing: this shows nothing"
    assert extra >= len(refused)
    return (
        f"{len(events):,} events accepted, 0 lost; {kills + SERVICES} kills met {lost:,} deliveries under way, {extra - len(refused):,} arrived once more; "
        f"{sum(attempts.total() for attempts in outcomes.values()):,} claims, one attempt each"
    )


async def _all_ended(client: httpx.AsyncClient, service: ServiceProcess) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        open_ = 0
        for word in ("received", "queued"):
            page = (await client.get(f"{service.url}/v1/inbox?status={word}&limit=1")).json()
            open_ += page["pagination"]["total_count"]
        if not open_:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{open_} events are still open")
