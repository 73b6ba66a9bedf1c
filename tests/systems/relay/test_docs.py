"""The page about the relay works as it is written."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.settings import Settings
from redrive.systems.relay import Relay, RelaySettings
from redrive.systems.relay.settings import DeadLetterSettings

from .kit import Broker, row, rows, running, until

PAGE = (Path(__file__).parents[3] / "docs" / "systems" / "relay.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
[AIO_PIKA], [PIKA], [PRODUCER] = (
    [block for block in BLOCKS if mark in block] for mark in ("aio_pika", "start_consuming", "uuid")
)


def typed(code: str) -> str:
    """The producer with a content type."""
    return changed(code, "delivery_mode=2", 'delivery_mode=2, content_type="text/x-order"')


def without_id(code: str) -> str:
    """The producer that forgot its one duty."""
    return changed(code, "message_id=str(uuid.uuid4()), ", "")


def changed(code: str, before: str, after: str) -> str:
    assert before in code
    return code.replace(before, after)


@pytest.mark.parametrize("consumer", [AIO_PIKA, PIKA], ids=["aio-pika", "pika"])
async def test_producer_and_consumers(consumer: str, tmp_path: Path, broker: Broker) -> None:
    """The producer's message fails in the consumer, is retried three times, and ends with the reviewers.

    It keeps its content type. Messages without an id do not pass for one another: each of them is quarantined.
    """
    app = Redrive(f"sqlite:///{tmp_path / 'relay.db'}")
    relay = Relay(app, settings := broker.settings())
    orders = await broker.queue("orders")
    names = {'"orders"': f'"{orders}"', '"retry.scheduled"': f'"{settings.retry_queue}"'}
    environment = {"RABBITMQ_URL": settings.rabbitmq_url, "PATH": ""}

    def started(code: str, name: str) -> subprocess.Popen[bytes]:
        for written, real in names.items():
            code = code.replace(written, real)
        (tmp_path / name).write_text(code)
        with (tmp_path / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", name], cwd=tmp_path, env=environment, stdout=log, stderr=log
            )

    async with running(app, relay):
        with ExitStack() as stack:
            running_consumer = stack.enter_context(started(consumer, "consumer.py"))
            stack.callback(running_consumer.send_signal, signal.SIGKILL)
            for name, change in (("producer.py", typed), ("nameless-1.py", without_id), ("nameless-2.py", without_id)):
                producer = stack.enter_context(started(change(PRODUCER), name))
                stack.callback(producer.kill)
                assert await asyncio.to_thread(producer.wait, 20) == 0, (tmp_path / f"{name}.log").read_text()
            nameless = await broker.take(settings.invalid_queue, 2, seconds=120)
            assert {message.headers["x-invalid-reason"] for message in nameless} == {"no_message_id"}
            [review] = await broker.take(settings.manual_review_queue, seconds=120)
            assert running_consumer.poll() is None, (tmp_path / "consumer.py.log").read_text()
        body = json.loads(review.body)
        assert (body["retry_count"], body["original_payload"]) == (3, "YmFk")
        assert "TimeoutError('the bank did not answer')" in body["error_reason"]
        [found] = await rows(app)
        assert found["content_type"] == "text/x-order"
        await until(lambda: _failed(app, found["message_id"]), "it is written down")


async def _failed(app: Redrive, message_id: str) -> bool:
    return (await row(app, message_id))["status"] == "failed"


def test_the_configuration_table_is_complete() -> None:
    """Every setting of the relay and of the dead letters is in a table, with its default if there is one."""
    written = dict(re.findall(r"^\| `([A-Z_]+)` \| `?([^`|]+)", PAGE, re.MULTILINE))
    for name, field in (RelaySettings.model_fields | DeadLetterSettings.model_fields).items():
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        assert written.pop(name.upper()) == str(default) or default is None, name
    for name, default in written.items():
        if name != "SERVICE_NAME":
            assert default == str(Settings.model_fields[name.lower()].default), name
