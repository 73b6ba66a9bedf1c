"""Servers of the inbox that are killed at random, while senders send and handlers run: small by `test_webhooks_kill.py`, and at full size by
`python -m proof kills_webhooks`."""

import asyncio
import random
import socket
from collections import defaultdict
from datetime import datetime
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import httpx
from sqlalchemy import Connection, text

from redrive import Redrive, State
from redrive.systems.webhooks import Webhooks, WebhookSettings
from tests import forks

from . import evidence
from .books import Books, until
from .kill_proofs import PATIENCE_SECONDS
from .processes import STOP_SECONDS, Ground

LEASE_SECONDS = 2.0
SERVERS = 3
HANGING = "hanging"
LATER_SECONDS = 20.0
ON_TIME_SECONDS = 120.0
"""How late a retry may start on a busy machine that has just restarted its servers."""


class Servers:
    """Servers of the inbox, one on each port; a new one where one was killed."""

    def __init__(self, ground: Ground, ports: list[int]) -> None:
        self._environment = ground.environment | {
            "WORKER_LEASE": f"{LEASE_SECONDS}s", "WORKER_GRACE": "2s", "REDRIVE_SYSTEMS": "webhooks",
            "HTTP_TRUST_LOOPBACK": "true",
        }  # fmt: skip
        self._log = ground.folder / "servers.log"
        self._on = {port: self._start(port) for port in ports}

    def _start(self, port: int) -> forks.Process:
        given = ("--app", "tests.faults.webhooks_server:app", "--port", str(port))
        return forks.run("serve", *given, folder=forks.ROOT, log=self._log, environment=self._environment)

    def kill(self, port: int) -> None:
        """SIGKILL."""
        assert self._on[port].poll() is None, f"a server ended by itself: {self._log.read_text()[-3000:]}"
        self._on[port].kill()
        self._on[port].wait()

    def replace(self, port: int) -> None:
        """A new one."""
        self._on[port] = self._start(port)

    def stop(self) -> set[int]:
        """SIGTERM to all; their exit codes."""
        for server in self._on.values():
            server.terminate()
        return {server.wait(STOP_SECONDS) for server in self._on.values()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._on.values():
            server.kill()
            server.wait()


def free_ports(amount: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(amount)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Sender:
    """Sends one webhook after the other, each until it is answered with 2xx, to whichever server answers."""

    def __init__(self, name: str, ports: list[int], rng: random.Random) -> None:
        self._name = name
        self._ports = ports
        self._rng = rng
        self.accepted: dict[str, list[dict[str, Any]]] = {}
        self.broken = 0

    async def run(self, stopped: asyncio.Event) -> None:
        number = 0
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            while not stopped.is_set():
                key = f"{self._name}-{number}"
                payload: dict[str, Any] = {
                    "ms": self._rng.choice([0, 1, 20, 80]),
                    "fails": int(self._rng.random() < 0.2),
                }
                await self._send(client, key, payload)
                number += 1

    async def send(self, key: str, payload: dict[str, Any]) -> None:
        """One webhook."""
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            await self._send(client, key, payload)

    async def _send(self, client: httpx.AsyncClient, key: str, payload: dict[str, Any]) -> None:
        body = {"idempotency_key": key, "event_type": "work", "payload": payload}
        # Sometimes again though it was taken, as senders do that have lost the answer.
        wanted = 2 if self._rng.random() < 0.1 else 1
        while len(self.accepted.get(key, ())) < wanted:
            port = self._rng.choice(self._ports)
            try:
                answer = await client.post(f"http://127.0.0.1:{port}/webhooks", json=body)
            except httpx.TransportError:
                self.broken += 1
                await asyncio.sleep(0.01)
                continue
            assert answer.status_code in (200, 202, 503), f"{answer.status_code}: {answer.text[:200]}"
            if answer.is_success:
                self.accepted.setdefault(key, []).append(answer.json())
            else:
                await asyncio.sleep(0.05)


def all_rows(connection: Connection) -> tuple[list[Any], list[Any]]:
    """The table, and the history of its rows."""
    events = connection.execute(text("SELECT id, idempotency_key, status, attempts, retry_after FROM events")).all()
    attempts = connection.execute(text("SELECT * FROM redrive_attempt WHERE ledger = 'events'")).all()
    return list(events), list(attempts)


async def read_books(app: Redrive, ground: Ground) -> Books:
    """Every webhook with its attempts and the runs of its handler."""
    rows, attempt_rows = await app.database.read(all_rows)
    attempts, runs = defaultdict(list), defaultdict(list)
    for one in attempt_rows:
        # Text as SQLite keeps it: 32 digits.
        claim = str(one.claim_id).replace("-", "")
        attempts[one.task_id].append(SimpleNamespace(claim_id=claim, outcome=one.outcome))
    for line in evidence.read(ground.evidence):
        if line.what == "start":
            runs[line.task].append(SimpleNamespace(claim=line.claim.replace("-", "")))
    tasks = {
        row.id: SimpleNamespace(
            key=row.idempotency_key,
            state="done" if row.status == "completed" else row.status,
            failures=row.attempts - 1,
        )
        for row in rows
    }
    return Books(tasks=tasks, attempts=attempts, runs=runs)


async def webhooks(ground: Ground, rng: random.Random, *, tasks: int, kills: int, senders_amount: int = 4) -> str:
    """SIGKILL at any moment: every webhook answered with 2xx is there, and ends completed once for its key.

    A key that was sent again, to any server, is the same row. Every extra run of a handler is explained by a claim whose
    worker was lost. Webhooks that wait for a later `retry_after` when all servers die run on time after the restart.
    """
    ports = free_ports(SERVERS)
    app = Redrive(ground.url)
    inbox = Webhooks(app, WebhookSettings(_env_file=None), sources=())
    senders = [Sender(f"s{number}", ports, rng) for number in range(senders_amount)]
    stopped = asyncio.Event()
    async with app:
        with Servers(ground, ports) as servers:
            sending = [asyncio.create_task(sender.run(stopped)) for sender in senders]

            async def accepted_at_least(amount: int) -> None:
                """Wait for them; a sender that broke says why."""

                def enough() -> bool:
                    broken = [one.exception() for one in sending if one.done() and not stopped.is_set()]
                    assert not broken, broken
                    return sum(len(one.accepted) for one in senders) >= amount

                await until(enough, "more were sent", PATIENCE_SECONDS)

            killed = 0
            while killed < kills:
                await accepted_at_least(tasks * (killed + 1) // (kills + 1))
                await asyncio.sleep(rng.uniform(0.05, 0.4))
                for victim in ports if rng.random() < 0.1 else [rng.choice(ports)]:
                    servers.kill(victim)
                    servers.replace(victim)
                    killed += 1
            await accepted_at_least(tasks)
            waiting = await send_later(ports, rng)
            # The others hit by chance. This one hits for certain: the handler runs until its server is killed.
            last = Sender(HANGING, ports, rng)
            senders.append(last)
            await last.send(HANGING, {"ms": 0, "fails": 0, "hangs": True})
            await until(lambda: ground.starts(HANGING), "it was begun", PATIENCE_SECONDS)
            for port in ports:
                servers.kill(port)
            for port in ports:
                servers.replace(port)
            stopped.set()
            await asyncio.gather(*sending)
            await until(lambda: nothing_open(inbox), "all webhooks ended", PATIENCE_SECONDS)
            assert servers.stop() == {0}
        books = await read_books(app, ground)
        check_on_time(ground, waiting)
    accepted = {key: answers for sender in senders for key, answers in sender.accepted.items()}
    by_key = {task.key: id_ for id_, task in books.tasks.items()}
    outcomes = books.outcomes()
    extra = books.run_count - outcomes["done"] - outcomes["failed"]
    assert set(accepted) | set(waiting) == set(by_key), "accepted and stored are not the same"
    assert all({answer["id"] for answer in answers} == {by_key[key]} for key, answers in accepted.items())
    assert books.faults() == []
    assert extra, "the kills hit nothing: this shows nothing"
    return (
        f"{len(by_key):,} webhooks accepted, 0 lost; {killed + SERVERS} kills cut {sum(one.broken for one in senders):,} requests and met "
        f"{outcomes['lease_expired']:,} webhooks held, {extra:,} of them running; {outcomes.total():,} claims, one attempt each"
    )


async def send_later(ports: list[int], rng: random.Random) -> dict[str, float]:
    """Webhooks that fail once and then wait; comes back when each has failed. When each is due, as the service says."""
    due: dict[str, float] = {}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

        async def ask(method: str, path: str, **given: Any) -> httpx.Response:
            while True:
                try:
                    return await client.request(method, f"http://127.0.0.1:{rng.choice(ports)}{path}", **given)
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

        async def one(number: int) -> None:
            key = f"later-{number}"
            payload = {"seconds": LATER_SECONDS + number / 10}
            body = {"idempotency_key": key, "event_type": "later", "payload": payload}
            assert (await ask("POST", "/webhooks", json=body)).is_success

            async def waits() -> bool:
                shown = (await ask("GET", "/webhooks", params={"idempotency_key": key})).json()
                assert shown["status"] != "completed", f"{key} ran again before anybody saw it wait"
                if shown["status"] == "pending" and shown["attempts"] >= 1 and shown["retry_after"]:
                    due[key] = datetime.fromisoformat(shown["retry_after"]).timestamp()
                return key in due

            await until(waits, f"{key} has failed once", PATIENCE_SECONDS)

        await asyncio.gather(*(one(number) for number in range(10)))
    return due


def check_on_time(ground: Ground, due: dict[str, float]) -> None:
    """Each ran at its time or soon after, and not before."""
    late = {}
    for key, at in due.items():
        last = max(line.at for line in ground.starts(key))
        late[key] = last - at
    print(f"retries after the restart were late by {min(late.values()):.3f} to {max(late.values()):.3f} s")
    assert all(-0.01 <= span <= ON_TIME_SECONDS for span in late.values()), late


async def nothing_open(webhooks: Webhooks) -> bool:
    """Whether no webhook waits or is processed."""
    counts = await webhooks.lane.counts()
    return counts[State.WAITING] == counts[State.CLAIMED] == 0
