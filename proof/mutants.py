"""Mutation testing of `core` and `engine`: the code is broken in thousands of small ways, one at a time, and a test must notice each.

    python -m proof.mutants core.decide core.policy     some modules; without names all of `core`, which takes hours
    python -m proof.mutants --survivors core.decide     what was found the last time, with each change that nobody noticed

mutmut works on a copy of the tree below `build/mutants`, in an environment of its own, since it wants another pytest. What it has tried
is kept there: a second run goes on where the first was stopped. Tests that have changed count after `--anew`.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
WITH = ("mutmut==3.8.0", "pytest==9.0.3", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0")
CHOSEN = {"core": "not postgres", "engine": "not postgres and not simulation"}
"""By room the tests that are to notice: those of the room, where a database is needed on SQLite."""
ENDS = {0: "survived", 1: "killed", 3: "killed", 5: "without a test", 33: "without a test", 37: "killed"}
"""What the exit code of a run says; any other is one that never ended, or broke down."""
PROCESSES = os.environ.get("PROOF_PROCESSES", "2")


def main(given: Sequence[str]) -> int:
    """Try mutants of modules, and print by module how many were noticed."""
    names = [one for one in given if not one.startswith("-")] or _modules("core")
    rooms = sorted({name.partition(".")[0] for name in names})
    for room in rooms:
        mine = [name for name in names if name.startswith(f"{room}.")]
        if "--survivors" not in given:
            _run(room, mine, anew="--anew" in given)
        _tell(room, mine, shown="--survivors" in given)
    return 0


def _modules(room: str) -> list[str]:
    return sorted(f"{room}.{one.stem}" for one in (ROOT / "src" / "redrive" / room).glob("[!_]*.py"))


def _run(room: str, names: Sequence[str], *, anew: bool) -> None:
    """Let mutmut try them, each by the tests that reach it."""
    environment, place = PLACE / "environment", PLACE / room
    if not environment.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", *WITH], check=True)
        [packages] = environment.glob("lib/python*/site-packages")
        (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")  # behind its own: its pytest wins
    if anew:
        shutil.rmtree(place, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    broken = {f"src/redrive/{one.replace('.', '/')}.py" for one in names}
    for name in listed.splitlines():
        if name.startswith(("src/", "tests/", "bench/", "proof/", "pyproject.toml", "README.md")):
            target = (place if name in broken else place / "mutants") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    python, tried = environment / "bin" / "python", "mutants/proof/mutants_tried.py"
    run = [str(python), "-W", "ignore", tried, CHOSEN[room], *(f"redrive.{one}" for one in names)]
    subprocess.run(run, cwd=place, check=True, env=os.environ | {"REDRIVE_TEST_EXAMPLES": "25"})


def _ends(room: str, name: str) -> dict[str, str]:
    """What became of each mutant of a module that was tried."""
    told = PLACE / room / "mutants" / "src" / "redrive" / f"{name.replace('.', '/')}.py.meta"
    codes = json.loads(told.read_text())["exit_code_by_key"] if told.exists() else {}
    return {key: ENDS.get(code, "timed out or broke") for key, code in codes.items() if code is not None}


def _tell(room: str, names: Sequence[str], *, shown: bool) -> None:
    total: Counter[str] = Counter()
    print(f"\n{'module':24} {'tried':>6} {'killed':>7}  share  the rest")
    for name in names:
        ends = _ends(room, name)
        _line(name, Counter(ends.values()))
        total.update(ends.values())
        if shown:
            for one in _survivors(room, ends):
                print(one)
    _line("all of these", total)


def _line(name: str, ends: Counter[str]) -> None:
    tried, killed = ends.total(), ends["killed"]
    rest = ", ".join(f"{amount} {end}" for end, amount in ends.items() if end != "killed")
    print(f"{name:24} {tried:6} {killed:7}  {killed / tried if tried else 0:5.0%}  {rest}")


def _survivors(room: str, ends: dict[str, str]) -> Iterator[str]:
    mutmut = PLACE / "environment" / "bin" / "mutmut"
    for key, end in ends.items():
        if end in ("survived", "without a test"):
            said = subprocess.run([mutmut, "show", key], cwd=PLACE / room, check=False, capture_output=True, text=True)
            changed = [
                line for line in said.stdout.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))
            ]
            yield f"    {key.removeprefix(f'redrive.{room}.')}, {end}:\n" + "\n".join(
                f"        {one}" for one in changed
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
