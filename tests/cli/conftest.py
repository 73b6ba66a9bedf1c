"""The command line as a user has it: an empty folder, no settings, and what a command said."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from redrive.cli import app
from redrive.settings import Settings
from tests import forks

from .said import PATIENCE_SECONDS, Said, Started

ROOT = Path(__file__).parents[2]
"""Where `examples` is: it is not installed with the package."""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder and an environment without settings."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def application(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module with an application; returns its path. Each has a name that was never imported before."""

    def write(source: str) -> str:
        name = f"application_{secrets.token_hex(6)}"
        (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        return f"{name}:app"

    return write


@pytest.fixture
def redrive() -> Iterator[Callable[..., Said]]:
    """Run a command in this process. Where it writes its log is forgotten afterwards: that stream is closed with it."""
    before = structlog.get_config()

    def run(*arguments: str, input: str | None = None) -> Said:
        result = CliRunner().invoke(app, list(arguments), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    yield run
    structlog.configure(**before)


@pytest.fixture
def stored(redrive: Callable[..., Said], url: str) -> Callable[..., Said]:
    """The same on a migrated database of each kind."""

    def run(*arguments: str, input: str | None = None) -> Said:
        return redrive(*arguments, "--database", url, input=input)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a command; it is killed at the end of the test if it still runs."""
    started: list[Started] = []

    def run(*arguments: str, module: str = "redrive", **environment: str) -> Started:
        log = tmp_path / f"said-{len(started)}.log"
        own = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), "HTTP_TRUST_LOOPBACK": "true"}  # as `make run` has it
        given = {**os.environ, **own, **environment}
        process = forks.run(*arguments, module=module, folder=tmp_path, log=log, environment=given)
        started.append(Started(process, log))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(PATIENCE_SECONDS)
