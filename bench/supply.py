"""What comes with redrive from others: a bill of materials, its licences, and whether a weakness of it is known.

The tools live in an environment of their own (`dist.txt`), so that they are not in the bill themselves.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.venv import BUILD, HERE, ROOT, python_with

UNKNOWN = "not said"
OFTEN_SPELLED = {"Apache License 2.0": "Apache-2.0", "Apache 2.0": "Apache-2.0", "Apache": "Apache-2.0", "MIT License": "MIT"}  # fmt: skip
"""The same licence has several spellings."""


def bill(python: Path, where: Path) -> Path:
    """Write what is installed for an interpreter as CycloneDX, and its licences as a list beside it; say how it was."""
    tools = python_with(HERE / "dist.txt", BUILD / "dist-venv").parent
    made = where.with_suffix(".sbom.json")
    command = [tools / "cyclonedx-py", "environment", "--of", "JSON", "-o", made, python]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    listed = licences(json.loads(made.read_text()))
    where.with_suffix(".licences.txt").write_text("".join(f"{name}: {said}\n" for name, said in sorted(listed.items())))
    counted = ", ".join(f"{said} {amount}" for said, amount in Counter(listed.values()).most_common())
    sys.stdout.write(f"{made.name}: {len(listed)} packages; {counted}\n")
    return made


def licences(sbom: Mapping[str, Any]) -> dict[str, str]:
    """The licence of each package of a bill, by its name and version."""
    return {f"{one['name']} {one['version']}": _licence(one) for one in sbom["components"]}


def _licence(component: Mapping[str, Any]) -> str:
    for one in component.get("licenses", ()):
        said = one.get("expression") or one["license"].get("id") or one["license"].get("name", "")
        short = said.removeprefix("License :: OSI Approved :: ").removeprefix("declared license of ")
        if said and "\n" not in said:
            return OFTEN_SPELLED.get(short, short)
    return UNKNOWN


def audit() -> str:
    """What is known against the locked packages, or that nobody could be asked. Without `--strict` it would call what it skipped well."""
    tools = python_with(HERE / "dist.txt", BUILD / "dist-venv").parent
    command = [tools / "pip-audit", "--strict", "--disable-pip", "--require-hashes", "--format", "json", "-r", ROOT / "requirements-run.lock"]  # fmt: skip
    return verdict(subprocess.run(command, capture_output=True, text=True, check=False))


def verdict(ran: "subprocess.CompletedProcess[str]") -> str:
    """One sentence on a run of `pip-audit`; ends the process if it found something."""
    try:
        packages = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"NOT AUDITED: pip-audit could not look everything up ({why})"
    found = [f"{one['name']} {one['version']}: {known['id']}" for one in packages for known in one.get("vulns", ())]
    if found:
        sys.exit("known weaknesses: " + "; ".join(found))
    return f"audited: nothing is known against {len(packages)} packages"
