"""Deploys: relays are replaced under load, gracefully."""

import random
import secrets
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from .books import until
from .processes import events
from .traffic import RelayProcess, Traffic

DEPLOYS = 2


def published(relay: RelayProcess) -> list[str]:
    """The messages that a relay says it has published."""
    return [line["message_id"] for line in events(relay.log, "retry_published")]


@pytest.mark.long_on("postgres")
async def test_a_deploy_costs_nothing(url: str, rabbitmq: str, tmp_path: Path, rng: random.Random) -> None:
    """SIGTERM under load, again and again: every message goes out exactly once, and each relay ends with 0."""
    traffic = Traffic(rabbitmq, f"deploy-{secrets.token_hex(4)}", bursts_per_second=10, burst=3)
    await traffic.start()
    made: list[RelayProcess] = []
    with ExitStack() as stack:
        try:
            for number in range(DEPLOYS):
                made.append(stack.enter_context(RelayProcess(tmp_path, f"relay-{number}", traffic, rabbitmq, url)))
                enough = rng.randrange(20, 60)
                await until(lambda relay=made[-1], least=enough: len(published(relay)) > least, "it works")
                if number == DEPLOYS - 1:
                    await traffic.stop_producing()
                    await until(lambda: not traffic.missing, "all has come")
                assert made[-1].stop() == 0, made[-1].log[-2000:]
        finally:
            await traffic.stop()
    twice = {key: len(came) for key, came in traffic.came.items() if len(came) > 1}
    counted = Counter(message_id for relay in made for message_id in published(relay))
    print(f"{len(traffic.sent)} messages, {DEPLOYS} relays, {len(twice)} duplicates")
    assert twice == {}
    assert set(counted) >= set(traffic.sent)
    assert all("Traceback" not in relay.log for relay in made)
