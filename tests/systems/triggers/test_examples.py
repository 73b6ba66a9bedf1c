"""The examples of the docs work as written: curl, Python and JavaScript, against `redrive serve` itself."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import playwright
import pytest

from redrive.systems.triggers.status import MOVES, STATUSES
from tests.stores.items import item_settings

from .conftest import ITEMS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "systems" / "triggers.md"


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


def node() -> str:
    """Node, from the machine or the one that comes with Playwright."""
    return shutil.which("node") or str(Path(playwright.__file__).parent / "driver" / "node")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Place:
    """A folder with a service that runs in it."""

    def __init__(self, folder: Path, surroundings: Mapping[str, str]) -> None:
        self.folder = folder
        self.port, self.hooks = free_port(), free_port()
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DELIVERY_ALLOW_NETWORKS": "127.0.0.0/8",
            "HTTP_PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
        }
        self.environment.pop("DATABASE_URL", None)
        self.environment |= surroundings
        self._started: list[subprocess.Popen[bytes]] = []

    def adapted(self, code: str) -> str:
        return code.replace("127.0.0.1:8086", f"127.0.0.1:{self.port}").replace("9000", str(self.hooks))

    def start(self, *command: str) -> Path:
        """Start a command; the file that it writes to."""
        log = self.folder / f"log-{len(self._started)}"
        with log.open("wb") as file:
            self._started.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                 stdout=file, stderr=subprocess.STDOUT)
            )  # fmt: skip
        return log

    def run(self, *command: str) -> str:
        ran = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=150
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def write(self, name: str, code: str) -> str:
        (self.folder / name).write_text(self.adapted(code))
        return name

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


def until(holds: Callable[[], bool], why: Callable[[], str]) -> None:
    ends = time.monotonic() + 150
    while not holds():
        assert time.monotonic() < ends, why()
        time.sleep(0.05)


@pytest.fixture
def place(store: str, url: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, item_settings(url) if store == ITEMS else {})
    try:
        said = made.start(sys.executable, "-m", "redrive", "serve", "--systems", "triggers")

        def ready() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{made.port}/ready").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, said.read_text)
        yield made
    finally:
        made.end()


def last_json(text: str) -> Any:
    return json.loads(text[text.rindex('{"event') if '{"event' in text else text.index("{") :])


@pytest.mark.long_on("sqlite")
@pytest.mark.parametrize("store", ["sqlite", ITEMS])
def test_the_examples_work_as_written(place: Place) -> None:
    """The first event, the inbox, the client, JavaScript, an endpoint, and receivers in both languages that verify."""
    first, inbox, subscribe = blocks("sh")
    client, python_receiver = blocks("python")
    sender, js_receiver = blocks("js")

    shell = place.write("first.sh", f'{first}\necho\n{inbox}\necho\nprintf "%s" "$KEY" > key\n')
    made, listed = place.run("bash", "-euo", "pipefail", shell).strip().splitlines()
    assert json.loads(made)["status"] == "received"
    assert json.loads(listed)["events"][0]["payload"] == {"order": 7}
    place.environment["KEY"] = (place.folder / "key").read_text()

    assert place.run(sys.executable, place.write("send.py", client)).split() == ["received", "delivered"]
    id_, status = place.run(node(), place.write("send.mjs", sender)).split()
    assert status == "received"
    assert re.fullmatch(r"[0-9a-f-]{36}", id_)

    endpoint = json.loads(place.run("bash", "-euo", "pipefail", place.write("subscribe.sh", subscribe)))
    place.environment["SECRET"] = endpoint["secret"]
    for command, code, order in (
        ((sys.executable, place.write("receive.py", python_receiver)), python_receiver, 10),
        ((node(), place.write("receive.mjs", js_receiver)), js_receiver, 11),
    ):
        assert code
        log = place.start(*command)
        until(lambda: _listens(place.hooks), log.read_text)
        forged = httpx.post(
            f"http://127.0.0.1:{place.hooks}/hooks", content=b"{}",
            headers={"webhook-id": "1", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,AAAA"},
        )  # fmt: skip
        assert forged.status_code == 400
        body = {"event_type": "order.created", "payload": {"order": order}}
        headers = {"X-API-Key": place.environment["KEY"]}
        sent = httpx.post(f"http://127.0.0.1:{place.port}/v1/events", json=body, headers=headers)
        assert sent.status_code == 201
        until(lambda log=log, order=order: "received order.created" in log.read_text() and str(order) in log.read_text(),
              log.read_text)  # fmt: skip
        place._started[-1].kill()
        place._started[-1].wait()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_the_drawn_life_is_the_real_one() -> None:
    """The drawing of the docs shows exactly the moves that the store allows."""
    [drawing] = blocks("mermaid")
    drawn = set(re.findall(r"(\w+) --> (\w+):", drawing))
    assert drawn == set(MOVES)
    assert {word for move in drawn for word in move} == set(STATUSES)
