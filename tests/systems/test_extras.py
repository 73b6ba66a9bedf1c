"""Without the packages of an extra, a system works or says which extra to install."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

from redrive.settings import SYSTEMS

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TRIED = """
import json, os, sys
import alembic.command, pydantic_settings, sqlalchemy.ext.asyncio, structlog, typer  # no extra brings them, so each need not import them anew
asked = json.loads(sys.argv[1])
for extra, hidden in sorted(asked["hidden"].items(), key=lambda one: one[0] != "traces"):
    if extra != "traces":  # an application without it is tried first; of the other extras nothing is there after this, as is asserted
        import redrive.cli, redrive.systems.commands, redrive.systems.flags, redrive.systems.webhooks
    assert not set(hidden) & set(sys.modules), hidden
    if os.fork():
        assert os.wait()[1] == 0, extra
        continue
    for name in hidden:
        sys.modules[name] = None  # an import of it is then a ModuleNotFoundError
    from redrive.errors import MissingExtraError
    for name in asked["systems"]:
        try:
            module = __import__(f"redrive.systems.{name}", fromlist=["*"])
            getattr(module, name.capitalize())
            print(extra, name, "works")
        except MissingExtraError as error:
            print(extra, name, error)
    try:
        if extra == "service":  # FastAPI itself needs some of the others
            from redrive.web.app import make_web
        print(extra, "web works")
    except MissingExtraError as error:
        print(extra, "web", error)
    sys.stdout.flush()
    os._exit(0)
"""


def modules_of(extra: str, found: Mapping[str, list[str]]) -> list[str]:
    """The modules that the packages of an extra bring."""
    names = {re.split(r"[\\[<>=;]", given)[0].strip().lower() for given in EXTRAS[extra]}
    return sorted(module for module, homes in found.items() if names & {home.lower() for home in homes})


def test_a_missing_extra_is_named() -> None:
    """Each public class of a system, and the web application, is there without an extra, or says `pip install` with its name."""
    found = packages_distributions()
    hidden = {extra: modules_of(extra, found) for extra in EXTRAS if extra != "all"}
    assert all(hidden.values())
    tried = subprocess.run(
        [sys.executable, "-c", TRIED, json.dumps({"hidden": hidden, "systems": SYSTEMS})],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    for extra in hidden:
        said = dict(line.split(" ", 2)[1:] for line in tried.stdout.splitlines() if line.startswith(f"{extra} "))
        assert set(said) == {*SYSTEMS, "web"}, extra
        needed = {name for name, how in said.items() if how != "works"}
        assert needed == {"service": {"triggers", "web"}, "rabbitmq": {"relay"}}.get(extra, set()), extra
        for name in needed:
            assert f"pip install 'redrive[{extra}]'" in said[name]
