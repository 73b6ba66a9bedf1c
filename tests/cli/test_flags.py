"""`redrive flags process`, as cron starts it."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from redrive.testing import VirtualClock
from tests.systems.flags.conftest import Home, MakeHome, home, make_home, url  # noqa: F401 - fixtures

PATIENCE_SECONDS = 150


def process(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder of its own."""
    return subprocess.run(
        [sys.executable, "-m", "redrive", "flags", "process", *arguments],
        cwd=folder, env=os.environ | {"LOG_FORMAT": "json"} | environment, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture
def clock() -> VirtualClock:
    """The past: what is planned soon after is due for a process with a real clock."""
    return VirtualClock(datetime(2020, 1, 1, tzinfo=UTC))


async def test_one_run_applies_what_is_due(home: Home, tmp_path: Path) -> None:  # noqa: F811
    """One JSON document on stdout, log lines on stderr, and the change in the database."""
    made = await home.plan()
    await home.flags.put("broken", actor="ada")
    await home.plan_broken("broken")
    await home.app.close()
    ran = process(tmp_path, "--database", home.url, "--json")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert list(said) == ["processed", "applied", "retried", "failed", "superseded", "duration_ms"]
    assert [*said.values()][:-1] == [2, 1, 1, 0, 0]
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    assert {line["event"] for line in lines} >= {"Schedule applied", "Retrying failed schedule"}
    assert all((line["system"], line["service"]) == ("flags", "redrive") for line in lines)
    assert all(line["message"] == line["event"] for line in lines)
    assert (await home.schedule(made.id)).status == "applied"
    assert await home.actions(made.id) == ["created", "applied"]


@pytest.mark.parametrize("store", ["sqlite"])
async def test_on_an_application_of_ones_own(make_home: MakeHome, tmp_path: Path) -> None:  # noqa: F811
    """`--app` finds the flags that an application has already, or gives it some."""
    home = await make_home()  # noqa: F811
    made = await home.plan()
    await home.app.close()
    source = "from redrive import Redrive\nfrom redrive.systems.flags import Flags\n"
    (tmp_path / "shop.py").write_text(f"{source}app = Redrive({home.url!r})\nflags = Flags(app)\n")
    ran = process(tmp_path, "--app", "shop:app")
    assert json.loads(ran.stdout)["processed"] == 1, ran.stderr
    assert (await home.schedule(made.id)).status == "applied"


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    """A run in the wrong folder says so instead of working on an empty file."""
    ran = process(tmp_path, "--database", f"sqlite:///{tmp_path / 'none.db'}")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "there is no database file" in ran.stderr
    assert not (tmp_path / "none.db").exists()
