"""What all commands share: help with an example, one line for a wrong setting, exit codes."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from redrive import Redrive, __version__
from redrive.cli import app as command_line
from redrive.cli.app_path import load_app
from redrive.cli.listen import listen
from redrive.errors import SettingsError
from redrive.settings import SYSTEMS

from .said import Said

Run = Callable[..., Said]


def leaves(group, path=()):
    """Every command with its path."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def commands() -> list[tuple[str, ...]]:
    return [path for path, _ in leaves(typer.main.get_command(command_line))]


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(redrive: Run, path: tuple[str, ...]):
    """`--help` tells what a command does and shows one that works."""
    said = redrive(*path, "--help")
    assert said.code == 0
    assert re.search(rf"Examples?: redrive {' '.join(path)}\b", re.sub(r"\s+", " ", said.out))


def test_version(redrive: Run):
    """The version of the package."""
    assert redrive("--version").out == f"redrive {__version__}\n"


def test_wrong_settings_are_one_line(redrive: Run, monkeypatch: pytest.MonkeyPatch):
    """A setting that cannot be used stops every command that needs settings, without a traceback."""
    monkeypatch.setenv("WORKER_LEASE", "never")
    for command in (["serve"], ["worker", "examples.sample:app"], ["tasks", "list"]):
        said = redrive(*command)
        assert said.code == 2
        assert said.err.startswith("redrive: WORKER_LEASE='never' cannot be used")
        assert said.err.count("\n") == 1


WRONG = {
    "flags": "FLAG_SCHEDULE_MAX_RETRIES",
    "relay": "BASE_DELAY_MS",
    "triggers": "RATE_LIMIT_PER_MINUTE",
    "webhooks": "QUEUE_MAXSIZE",
    "commands": "COMMANDS_MAX_ATTEMPTS",
}
"""A setting of each system."""


def on_a_database() -> list[tuple[str, ...]]:
    """Every command that works on a database."""
    return [
        path
        for path, command in leaves(typer.main.get_command(command_line))
        if "database" in {parameter.name for parameter in command.params}
    ]


ARGUMENTS = {
    ("tasks", "show"): ["1"],
    ("tasks", "add"): ["mail"],
    ("tasks", "redrive"): ["1", "--reason", "x"],
    ("tasks", "cancel"): ["1", "--reason", "x"],
    ("tasks", "resolve"): ["1", "--reason", "x"],
    ("effects", "answer"): ["1", "--answer", "happened", "--reason", "x"],
    ("gates", "show"): ["bank"],
    ("gates", "set"): ["bank", "--rate", "1/s", "--reason", "x"],
    ("gates", "pause"): ["bank", "--reason", "x"],
    ("gates", "resume"): ["bank", "--reason", "x"],
    ("operations", "start"): ["1", "--reason", "x"],
    ("operations", "show"): ["1"],
    **{("operations", act): ["1", "--reason", "x"] for act in ("pause", "resume", "halt", "give-back", "approve")},
    ("operations", "change"): ["1", "--rate", "1/s", "--reason", "x"],
    ("audit", "show"): ["1"],
    ("audit", "prune"): ["--older-than", "90d", "--reason", "x"],
    ("policy", "try"): [str(Path(__file__).with_name("policy.toml"))],
    ("keys", "create"): ["--user", "ada", "--scope", "viewer"],
    ("keys", "revoke"): ["x"],
    ("adopt",): ["orders"],
}


@pytest.mark.parametrize("path", on_a_database(), ids=" ".join)
def test_a_wrong_setting_is_said_without_a_database(
    redrive: Run, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, folder: Path
):
    """Whichever part of redrive it belongs to, and whether or not the database is there or named by an option."""
    assert set(WRONG) == set(SYSTEMS)
    where = ("--database", f"sqlite:///{folder}/missing.db")
    command = (*path, *ARGUMENTS.get(path, []))
    for system, name in [(None, "WORKER_LEASE"), *WRONG.items()]:
        with monkeypatch.context() as patch:
            patch.setenv(name, "wrong")
            if system is not None and system not in path:  # a command of a system names it itself
                patch.setenv("REDRIVE_SYSTEMS", system)
            for given in (command, (*command, *where)):
                said = redrive(*given)
                assert (said.code, f"redrive: {name}='wrong' cannot be used" in said.err) == (2, True), said
    assert list(folder.iterdir()) == []


def test_a_port_in_use_is_a_clear_error():
    """And says how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match=r"is in use.*--port"):
        listen("127.0.0.1", taken.getsockname()[1])
    for host in ("no.such.host.invalid", "192.0.2.1"):
        with pytest.raises(SettingsError, match="not an address of this machine"):
            listen(host, 0)


def test_sample_is_an_application():
    """What the guide names can be loaded."""
    assert isinstance(load_app("examples.sample:app"), Redrive)
    assert load_app("examples.sample") is load_app("examples.sample:app")
