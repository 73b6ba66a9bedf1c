"""Without the packages of an extra, a system works or says which extra to install."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from redrive.settings import SYSTEMS

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TRIED = """
import sys
hidden, systems = sys.argv[1].split(","), sys.argv[2].split(",")
for name in hidden:
    sys.modules[name] = None  # an import of it is then a ModuleNotFoundError
from redrive.errors import MissingExtraError
for name in systems:
    try:
        module = __import__(f"redrive.systems.{name}", fromlist=["*"])
        getattr(module, name.capitalize())
        print(name, "works")
    except MissingExtraError as error:
        print(name, error)
try:
    if sys.argv[3] == "service":  # FastAPI itself needs some of the others
        from redrive.web.app import make_web
    print("web works")
except MissingExtraError as error:
    print("web", error)
"""


def modules_of(extra: str) -> list[str]:
    """The modules that the packages of an extra bring."""
    names = {re.split(r"[\\[<>=;]", given)[0].strip().lower() for given in EXTRAS[extra]}
    found = packages_distributions()
    return sorted(module for module, homes in found.items() if names & {home.lower() for home in homes})


@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "all"])
def test_a_missing_extra_is_named(extra: str):
    """Each public class of a system, and the web application, is there without the extra, or says `pip install` with its name."""
    hidden = modules_of(extra)
    assert hidden
    tried = subprocess.run(
        [sys.executable, "-c", TRIED, ",".join(hidden), ",".join(SYSTEMS), extra],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    said = dict(line.split(" ", 1) for line in tried.stdout.splitlines())
    assert set(said) == {*SYSTEMS, "web"}
    needed = {name for name, how in said.items() if how != "works"}
    assert needed == {"service": {"triggers", "web"}, "rabbitmq": {"relay"}}.get(extra, set())
    for name in needed:
        assert f"pip install 'redrive[{extra}]'" in said[name]
