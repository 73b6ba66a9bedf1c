"""The two wheels: unpacked alone and together, beside the packages of these tests and without these sources."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.dist import PARTS, build
from redrive import parts
from redrive._version import __version__
from redrive.errors import MissingExtraError, needs_extra
from redrive.settings import SYSTEMS

ROOT = Path(__file__).parents[1]
IMPORTED = """
import importlib, pkgutil, sys
import redrive
from redrive.errors import MissingExtraError
ours = lambda name: not name.startswith(("redrive.django", "redrive.ledgers.sql.migrations"))  # Django wants settings, Alembic its context
names = [found.name for found in pkgutil.walk_packages(redrive.__path__, "redrive.", onerror=lambda name: None)]
for name in filter(ours, names):
    if name == "redrive.__main__":
        continue
    try:
        importlib.import_module(name)
    except MissingExtraError as error:
        print(name, error)
"""
COMMANDS = """
import itertools, json, shlex, sys
from typer.testing import CliRunner
from redrive.cli import app
said = []
for line in json.loads(sys.argv[1]):
    words = shlex.split(line)
    given = list(itertools.takewhile(lambda word: "=" in word, words))
    ran = CliRunner().invoke(app, words[len(given):], env=dict(one.split("=") for one in given))
    said.append((ran.exit_code, ran.stdout, ran.stderr))
print(json.dumps(said))
"""
SHOP = """
from redrive import Redrive
app = Redrive("sqlite:///shop.db")

@app.handler
async def hello(task):
    print("hello", task.payload["to"], flush=True)
"""


class Said(NamedTuple):
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


class Unpacked:
    """An empty folder, and a Python that finds redrive as wheels have it."""

    def __init__(self, folder: Path, package: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(package), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        # Without `site` nobody reads the file that leads to these sources.
        self._command = [sys.executable, "-S"]
        self.environment = {**os.environ, "PYTHONPATH": path, "LOG_FORMAT": "pretty"}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What Python says to these arguments, in the folder."""
        return subprocess.run(
            [*self._command, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )  # fmt: skip

    def commands(self, *lines: str) -> dict[str, Said]:
        """What the command line says to each of these, all in one process; words like `NAME=value` before it are settings."""
        ran = self.run("-c", COMMANDS, json.dumps(lines))
        assert ran.returncode == 0, ran.stderr
        return {line: Said(*said) for line, said in zip(lines, json.loads(ran.stdout), strict=True)}

    def started(self, *arguments: str) -> "subprocess.Popen[str]":
        """The command line, running on."""
        return subprocess.Popen(
            [*self._command, "-m", "redrive", *arguments], cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both wheels, as they would be published."""
    folder = tmp_path_factory.mktemp("dist")
    return [build(part, folder, "wheel") for part in PARTS]


@pytest.fixture(scope="module")
def packages(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the first wheel holds, and what both hold: unpacked once, so that they are compiled once."""
    made = [tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("both")]
    for number, folder in enumerate(made, 1):
        for wheel in wheels[:number]:
            zipfile.ZipFile(wheel).extractall(folder)
    return made


@pytest.fixture
def alone(packages: list[Path], tmp_path: Path) -> Unpacked:
    """`pip install redrive`."""
    return Unpacked(tmp_path, packages[0])


@pytest.fixture
def both(packages: list[Path], tmp_path: Path) -> Unpacked:
    """`pip install 'redrive[service]'`."""
    return Unpacked(tmp_path, packages[1])


def test_no_file_is_in_both_and_none_is_lost(wheels: list[Path]) -> None:
    """What one wheel leaves out, the other has: together they are the package."""
    first, second = (
        {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name} for wheel in wheels
    )
    assert first & second == set()
    package = ROOT / "src" / "redrive"
    all_there = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.is_file()}
    assert first | second == {name for name in all_there if "__pycache__" not in name and not name.endswith(".md")}


def test_archives_make_the_same_wheels(wheels: list[Path], tmp_path: Path) -> None:
    """Who builds from the source archives gets what was built from the tree."""
    for part, wheel in zip(PARTS, wheels, strict=True):
        archive = build(part, tmp_path, "sdist")
        subprocess.run(["tar", "xzf", archive, "-C", tmp_path], check=True)
        again = build(archive.with_name(archive.name.removesuffix(".tar.gz")), tmp_path, "wheel")
        assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_every_module_of_the_first_wheel_works_or_names_an_extra(alone: Unpacked) -> None:
    """No import at the top of a file asks for the other wheel in silence."""
    tried = alone.run("-W", "ignore", "-c", IMPORTED)
    assert tried.returncode == 0, tried.stderr
    refused = dict(line.split(" ", 1) for line in tried.stdout.splitlines())
    assert set(refused) == {"redrive.dashboard", "redrive.functions", "redrive.http", "redrive.systems", "redrive.web"}
    assert all(" pip install 'redrive[" in said for said in refused.values())


def test_the_first_wheel_alone_adds_works_and_shows(alone: Unpacked) -> None:
    """Tasks are added, run and looked at without the service."""
    (alone.folder / "shop.py").write_text(SHOP)
    [added] = alone.commands("""tasks add hello '{"to": "you"}' --app shop:app""").values()
    assert added.code == 0, added.err
    with alone.started("worker", "shop:app") as worker:
        assert worker.stdout is not None
        try:
            assert any(line == "hello you\n" for line in worker.stdout)
        finally:
            worker.terminate()
    shown, looked = alone.commands("tasks list --state done --app shop:app", "doctor --app shop:app").values()
    assert "hello" in shown.out
    assert "all is well" in looked.out


def test_what_needs_the_second_wheel_says_so(alone: Unpacked) -> None:
    """One line with the pip command, and no traceback. Who only looks at tasks is not held up by a system that runs elsewhere."""
    (alone.folder / "shop.py").write_text("from redrive.systems.webhooks import Webhooks\n")
    commands = {
        "serve": "`redrive serve` needs an extra: pip install 'redrive[service]'",
        "worker --http-port 0": "`redrive worker --http-port` needs an extra: pip install 'redrive[service]'",
        "worker shop:app": "redrive.systems needs an extra: pip install 'redrive[service]'",
        "flags process": "`redrive flags process` needs an extra: pip install 'redrive[service]'",
        "relay classify": "sorting dead letters needs an extra: pip install 'redrive[rabbitmq]'",
        "migrate --systems flags": "migrating the tables of flags needs an extra: pip install 'redrive[service]'",
        "secrets rotate": "`redrive secrets rotate` needs an extra: pip install 'redrive[service]'",
        "REDRIVE_SYSTEMS=webhooks worker": "webhooks needs an extra: pip install 'redrive[service]'",
        "EVENTS_TABLE_NAME=events tasks list": "EVENTS_TABLE_NAME needs an extra: pip install 'redrive[aws]'",
    }
    for command, said in alone.commands(*commands).items():
        assert (said.code, said.err) == (1, f"redrive: {commands[command]}\n"), command
    for command, said in alone.commands(
        "migrate", "REDRIVE_SYSTEMS=webhooks tasks list", "preview --policy flags"
    ).items():
        assert said.code == 0, (command, said.err)


def test_a_store_with_tables_of_systems_serves_who_has_no_systems(
    alone: Unpacked, both: Unpacked, tmp_path: Path
) -> None:
    """A worker without the service works beside one: it minds only its own tables, and leaves migrating to the other."""
    at = f"--database sqlite:///{tmp_path / 'shared.db'}"
    [made] = both.commands(f"migrate --systems triggers,webhooks {at}").values()
    assert made.code == 0
    added, listed, looked, refused = alone.commands(
        f"tasks add hello {at}", f"tasks list {at}", f"doctor {at}", f"migrate {at}"
    ).values()
    assert added.code == 0
    assert "hello" in listed.out
    assert "not looked at: webhooks: webhooks needs an extra" in listed.err
    assert "secrets: they are not looked at: triggers needs an extra" in looked.out
    assert "migrating the tables of triggers, webhooks needs an extra" in refused.err


def test_both_wheels_serve_everything(both: Unpacked) -> None:
    """The service with all systems comes up, with its pages."""
    assert both.run("-W", "ignore", "-c", IMPORTED).stdout == ""
    with both.started("serve", "--systems", "flags,triggers,webhooks", "--port", "0") as service:
        assert service.stdout is not None
        try:
            said = list(_until(iter(service.stdout), "Ctrl-C stops"))
        finally:
            service.terminate()
    assert any("systems      flags, triggers, webhooks" in line for line in said), said


def _until(lines: Iterator[str], ends: str) -> Iterator[str]:
    for line in lines:
        yield line
        if ends in line:
            return


def test_another_version_of_the_second_wheel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who upgrades one alone is told what goes with it; a clone has no second distribution."""
    monkeypatch.setattr(parts, "version", lambda name: "0.0.9")
    said = rf"redrive\.http needs redrive-service {__version__}, and 0\.0\.9 is installed: pip install 'redrive\[service\]'"
    with pytest.raises(MissingExtraError, match=said):
        parts.require_room("redrive.http", "guard")
    with pytest.raises(MissingExtraError, match=r"the relay needs redrive-service .*redrive\[rabbitmq\]"), needs_extra("the relay", "rabbitmq"):  # fmt: skip
        parts.require_room("redrive.systems", "kit")
    monkeypatch.setattr(parts, "version", lambda name: __version__)
    parts.require_room("redrive.systems", SYSTEMS[0])
