"""What is shipped, and what is said of what comes with it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.dist import CLIENT, PARTS, WHEEL_BYTES_MAX, build
from bench.pythons import CLAIMED, NEXT, installed
from bench.supply import licences, verdict
from redrive._version import __version__

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements-run.lock", "requirements.lock")


@pytest.mark.parametrize("part", PARTS, ids=["redrive", "redrive-service"])
def test_a_wheel_is_small_and_has_what_runs_alone(part: Path, tmp_path: Path) -> None:
    """Python, what pages are made of, and the mark that it is typed: no tests, no pictures, nothing of anybody else's."""
    wheel = build(part, tmp_path, "wheel")
    assert wheel.stat().st_size < WHEEL_BYTES_MAX
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} <= {"redrive", "redrive_service"}
    shipped = {Path(name).suffix or Path(name).name for name in names if ".dist-info" not in name}
    assert shipped <= {".py", ".pyi", ".html", ".css", ".js", ".svg", ".typed", ".proto", ".toml", ".sql", ".mako"}  # fmt: skip


def test_the_two_distributions_go_together() -> None:
    """Each names the other in this very version, under the same licence; every extra that needs a room of the second brings it."""
    first, second = (tomllib.loads((part / "pyproject.toml").read_text())["project"] for part in PARTS)
    pin = f"redrive-service=={__version__}"
    assert second["dependencies"] == [f"redrive=={__version__}"]
    extras = first["optional-dependencies"]
    assert [name for name, wanted in extras.items() if pin in wanted] == ["service", "rabbitmq", "commands", "aws"]
    assert sum("redrive-service" in one for wanted in extras.values() for one in wanted) == 4
    assert {name: first[name] for name in ("license", "requires-python", "authors")} == {
        name: second[name] for name in ("license", "requires-python", "authors")
    }
    assert (PARTS[0] / "LICENSE").read_text() == (PARTS[1] / "LICENSE").read_text()


def test_the_client_is_shipped_and_needs_httpx_alone(tmp_path: Path) -> None:
    """A wheel of redrive's version and licence, which its source archive makes again, and which the release publishes."""
    archive = build(CLIENT, tmp_path, "sdist")
    subprocess.run(["tar", "xzf", archive, "-C", tmp_path], check=True)
    wheel = build(archive.with_name(archive.name.removesuffix(".tar.gz")), tmp_path, "wheel")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        [metadata] = [packed.read(name).decode() for name in names if name.endswith("/METADATA")]
    assert wheel.name.startswith(f"redrive_client-{__version__}-")
    assert re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE) == ["httpx>=0.27"]
    assert {name for name in names if ".dist-info" not in name} == {
        "redrive_client/__init__.py",
        "redrive_client/py.typed",
    }
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    released = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["publish"]["steps"]
    published = [step["with"]["packages-dir"] for step in released if "pypi-publish" in step.get("uses", "")]
    assert published == ["service", "redrive", "client"]


def run(stdout: str = "", stderr: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.CompletedProcess([], 1, stdout, stderr)


def test_an_audit_that_could_not_be_made_is_none() -> None:
    """Offline it says so; with an answer it says how many were looked at, and ends where something is known."""
    said = verdict(run(stderr="ERROR: urllib3: Dependency not found on PyPI and could not be audited\n"))
    assert said.startswith("NOT AUDITED")
    assert "urllib3" in said
    assert "nothing is known against 1 packages" in verdict(run('{"dependencies": [{"name": "a", "vulns": []}]}'))
    with pytest.raises(SystemExit, match="a 1: CVE-1"):
        verdict(run('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}]}'))


def test_licences_are_read_from_the_bill() -> None:
    """By id, by expression, or as a package has spelled it; what is a whole text, or nothing, is not said."""
    bill = [
        {"name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "b", "version": "2", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        {"name": "c", "version": "3", "licenses": [{"license": {"name": "License :: OSI Approved :: MIT License"}}]},
        {"name": "d", "version": "4"},
    ]
    assert licences({"components": bill}) == {"a 1": "MIT", "b 2": "MIT OR Apache-2.0", "c 3": "MIT", "d 4": "not said"}


def test_interpreters_are_found_where_they_are_named_or_on_the_path(tmp_path: Path) -> None:
    """What is named goes first; what is nowhere is not taken for another version. The classifiers say what is tried, and no more."""
    own = "{}.{}".format(*sys.version_info[:2])
    other = next(version for version in (*CLAIMED, *NEXT) if version != own)
    program = tmp_path / f"python{other}"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert installed(sys.executable, str(tmp_path)) == {own: sys.executable, other: str(program)}
    assert installed("", str(tmp_path / "nowhere")) == {own: sys.executable}
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert [one.rpartition(" ")[2] for one in told if one.startswith("Programming Language")] == list(CLAIMED)


def test_make_run_installs_all_that_it_needs() -> None:
    """Its lock names every package that redrive and the extras of `make run` need, in the versions that the tests run with."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = re.search(r"--group build ((?:--extra \w+ ?)+)", (ROOT / "Makefile").read_text())
    assert given is not None
    wanted = [Requirement(one) for one in told["dependencies"]]
    for extra in re.findall(r"--extra (\w+)", given[1]):
        wanted += [Requirement(one) for one in told["optional-dependencies"][extra] if not one.startswith("redrive")]
    needed = set[str]()
    while wanted:
        one = wanted.pop()
        if canonicalize_name(one.name) in needed and not one.extras:
            continue
        needed.add(canonicalize_name(one.name))
        for inner in map(Requirement, distribution(one.name).requires or []):
            extras = ["", *one.extras]
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(inner)
    pins = [set(re.findall(r"^(\S+==\S+)", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS]
    assert needed - {canonicalize_name(pin.partition("==")[0]) for pin in pins[0]} == set()
    assert pins[0] <= pins[1]
