"""The page of the flags works as it is written, with a service of its own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import forks

PAGE = Path(__file__).parents[2] / "docs" / "systems" / "flags.md"
PATIENCE_SECONDS = 150


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_the_walk_through(tmp_path: Path) -> None:
    """Its commands in their order do what it says that they do."""
    serve, address, create, config, schedule, fail, dead, retry = blocks("sh")
    port = free_port()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    settings = dict(re.findall(r"(\w+)=(\S+)", serve.splitlines()[0])) | {"HTTP_PORT": port}
    given = serve.splitlines()[1].split()[1:]
    service = forks.run(*given, folder=tmp_path, log=tmp_path / "log", environment=environment | settings)

    def run(commands: str) -> list[Any]:
        commands = f"{address}\n{commands}".replace("8086", port)
        ran = subprocess.run(
            ["bash", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines() if line.strip()]

    def run_until(commands: str, seen: Callable[[Any], bool]) -> list[Any]:
        """Instead of sleeping, look until it is so."""
        before, look = re.split(r"^sleep \d\n", commands, flags=re.MULTILINE)
        said = run(before)
        ends = time.monotonic() + PATIENCE_SECONDS
        while not seen(*(found := run(look))):
            assert time.monotonic() < ends, found
            time.sleep(0.3)  # each look starts a shell
        return [*said, *found]

    try:
        ends = time.monotonic() + PATIENCE_SECONDS
        while "Ctrl-C stops" not in (tmp_path / "log").read_text():
            assert time.monotonic() < ends and service.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        [made] = run(create)
        assert (made["flagKey"], made["enabled"]) == ("promo", False)
        assert run(config) == [{"promo": False}]
        planned, _ = run_until(schedule, lambda listed: listed["schedules"][0]["status"] == "applied")
        assert planned["status"] == "pending"
        assert run(config) == [{"promo": True}]
        planned, tries = run_until(fail, lambda tries: bool(tries["attempts"]))
        assert (planned["id"], tries["status"], tries["retryCount"], len(tries["upcoming"])) == (2, "failed", 1, 3)
        assert "not now" in tries["attempts"][0]["error"]
        planned, tries = run_until(dead, lambda tries: bool(tries["attempts"]))
        assert (planned["id"], tries["status"], tries["retryCount"], tries["upcoming"]) == (3, "failed", 0, [])
        back, _ = run_until(retry, lambda flag: flag["rolloutPercentage"] == 50)
        assert back["status"] in ("pending", "applied"), "it is due at once, and the answer says how it stands"
        said = (tmp_path / "log").read_text()
        assert "Retrying failed schedule" in said
        assert "Schedule retry limit exceeded" in said
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_SECONDS) == 0


def test_the_example(tmp_path: Path) -> None:
    """Its Python does what it says."""
    [code] = [block for block in blocks("python") if "asyncio.run(" in block]
    (tmp_path / "shop.py").write_text(code)
    ran = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"True\npending \S+ \S+\n", ran.stdout)
