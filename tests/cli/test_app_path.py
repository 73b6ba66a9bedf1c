"""Where the application is: what cannot be loaded says why."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.cli.app_path import load_app
from redrive.errors import SettingsError

from .said import Said

Run = Callable[..., Said]


@pytest.mark.parametrize(
    ("source", "path", "says"),
    [
        (None, "no_such_module:app", "there is no module 'no_such_module'"),
        (None, "no_such.module:app", "there is no module 'no_such.module'"),
        (None, "not a module", "is not an application path"),
        (None, ":app", "is not an application path"),
        ("import not_installed_anywhere", "{name}:app", "failed at .*: ModuleNotFoundError"),
        ("1 / 0", "{name}:app", r"failed at .*:1: ZeroDivisionError"),
        ("x = (", "{name}:app", "SyntaxError"),
        ("from redrive import Redrive\nshop = Redrive()", "{name}:app", "it has {name}:shop"),
        ("other = 1", "{name}", "has no 'app': it has no Redrive"),
        ("app = 1", "{name}:app", "must be a redrive.Redrive application, not int"),
        ("from redrive import Redrive\napp = Redrive('mysql://x')", "{name}", "unknown database 'mysql'"),
    ],
)
def test_wrong_application_paths_say_why(source: str | None, path: str, says: str, folder: Path, request, monkeypatch):
    """Module, attribute and type are told apart, and the file and line of what fails inside are named."""
    name = "wrong_" + re.sub(r"\W", "_", request.node.callspec.id)[-30:]
    if source is not None:
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(SettingsError, match=says.format(name=name)):
        load_app(path.format(name=name))


def test_the_working_folder_can_be_imported_from(folder: Path):
    """As a user runs it: no PYTHONPATH, the module in the current folder."""
    (folder / "here.py").write_text("from redrive import Redrive\napp = Redrive()\n")
    said = subprocess.run(
        [Path(sys.executable).parent / "redrive", "doctor", "--app", "here:app", "--json"],
        capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    assert json.loads(said.stdout)["findings"][1]["name"] == "store"


def test_database_and_app_exclude_each_other(redrive: Run):
    """Two databases at once would be a guess."""
    said = redrive("tasks", "list", "--database", "sqlite:///x.db", "--app", "examples.sample:app")
    assert said.code == 2
    assert "either --database or --app" in said.err


def test_missing_extra_is_named(folder: Path):
    """Without FastAPI the service says what to install."""
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from redrive.cli import app; sys.argv = ['redrive', 'serve', '--port', '0']; app()"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert said.returncode == 1
    assert "pip install 'redrive[service]'" in said.stderr
    assert "Traceback" not in said.stderr
