"""Mutation testing of `core` and `engine`: the code is broken in thousands of small ways, one at a time, and a test must notice each.

    python -m proof.mutants core.decide core.policy     some modules; without names all of `core`, which takes hours
    python -m proof.mutants --own core.decide           by the tests of their own files alone, which takes seconds
    python -m proof.mutants --survivors core.decide     what was found the last time, with each change that nobody noticed
    python -m proof.mutants --publish                   the same of all that was tried, into `docs/proof-mutants.md`

mutmut breaks a copy of the tree below `build/mutants`, in an environment of its own, and `mutation/tried.py` tries there. What was
killed is kept: a second run tries the others again, until their module changes or `--anew` is said.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from proof.mutation.looked_at import LOOKED_AT

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
WITH = ("mutmut==3.8.0", "pytest==9.0.3", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0")
PAGE = ROOT / "docs" / "proof-mutants.md"
INTRODUCTION = """# Mutants

Code is broken in small ways, one at a time: a number is one more, `and` is `or`, a text is another. A test must notice. These modules were
tried whole by `python -m proof.mutants`, each mutant by the tests of its module and, where it was run without `--own`, by others that
reach it for up to a second. A mutant that never ended was noticed too. Only this program writes here.

| module | mutants | killed | timed out | survived | without a test | noticed |
| --- | --- | --- | --- | --- | --- | --- |
"""
CHOSEN = {"core": "not postgres", "engine": "not postgres and not simulation"}
"""By room the tests that are to notice: those of the room, where a database is needed on SQLite."""


def main(given: Sequence[str]) -> int:
    """Try mutants of modules, and print by module how many were noticed."""
    names = [one for one in given if not one.startswith("-")] or _modules("core")
    if "--publish" in given:
        _publish()
        return 0
    rooms = sorted({name.partition(".")[0] for name in names})
    for room in rooms:
        mine = [name for name in names if name.startswith(f"{room}.")]
        if "--survivors" not in given:
            _run(room, mine, [one for one in given if one in ("--anew", "--own")])
        _tell(room, mine, shown="--survivors" in given)
    return 0


def _modules(room: str) -> list[str]:
    return sorted(f"{room}.{one.stem}" for one in (ROOT / "src" / "redrive" / room).glob("[!_]*.py"))


def _run(room: str, names: Sequence[str], said: Sequence[str]) -> None:
    """Let mutmut try them, each by the tests that reach it."""
    environment, place = PLACE / "environment", PLACE / room
    if not environment.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([environment / "bin" / "pip", "install", "--quiet", *WITH], check=True)
        [packages] = environment.glob("lib/python*/site-packages")
        (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")  # behind its own: its pytest wins
    if "--anew" in said:
        shutil.rmtree(place, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    shutil.rmtree(place / "mutants" / "tests", ignore_errors=True)  # a file may have another name now
    broken = {f"src/redrive/{one.replace('.', '/')}.py" for one in names}
    for name in listed.splitlines():
        if name.startswith(("src/", "tests/", "bench/", "proof/", "pyproject.toml", "README.md")):
            target = (place if name in broken else place / "mutants") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    python, tried = environment / "bin" / "python", "mutants/proof/mutation/tried.py"
    run = [str(python), "-W", "ignore", tried, CHOSEN[room], *(f"redrive.{one}" for one in names)]
    run += ["--own"] if "--own" in said else []
    here = {"PYTHONPATH": str(place / "mutants"), "REDRIVE_TEST_EXAMPLES": "5" if "--own" in said else "25"}
    subprocess.run(run, cwd=place, check=True, env=os.environ | here)


def _ends(room: str, name: str) -> list[dict[str, str]]:
    """What became of each mutant of a module as it was broken last, by the last time that it was tried."""
    module = f"redrive.{name}"
    broken = PLACE / room / "mutants" / "src" / f"{module.replace('.', '/')}.py"
    if not broken.exists():
        return []
    digest = sha256(broken.read_bytes()).hexdigest()[:12]
    with (PLACE / room / "ended.jsonl").open() as lines:
        ended = {one["key"]: one for one in map(json.loads, lines) if one["of"] == digest}
    return [one for key, one in ended.items() if key.startswith(f"{module}.")]


def _tell(room: str, names: Sequence[str], *, shown: bool) -> None:
    total: Counter[str] = Counter()
    print(f"\n{'module':24} {'tried':>6} {'killed':>7}  share  the rest")
    for name in names:
        ends = _ends(room, name)
        _line(name, Counter(one["end"] for one in ends))
        total.update(one["end"] for one in ends)
        for one in ends if shown else ():
            if one["end"] != "killed":
                change = one["change"].replace("\n", "\n        ")
                print(f"    {one['key'].removeprefix(f'redrive.{name}.')}, {one['end']}:\n        {change}")
    _line("all of these", total)


def _line(name: str, ends: Counter[str]) -> None:
    tried, killed = ends.total(), ends["killed"]
    rest = ", ".join(f"{amount} {end}" for end, amount in ends.items() if end != "killed")
    print(f"{name:24} {tried:6} {killed:7}  {killed / tried if tried else 0:5.0%}  {rest}")


def _publish() -> None:
    """Write down what was tried of modules that were tried whole, and every mutant of them that survived."""
    lines, survivors, totals = list[str](), list[str](), defaultdict[str, Counter[str]](Counter)
    for room in CHOSEN:
        for name in _modules(room):
            ends = _ends(room, name)
            if not ends or len(ends) < _amount(room, name):
                continue
            counted = Counter(one["end"] for one in ends)
            totals[room].update(counted)
            lines.append(_row(f"`{name}`", counted))
            survivors += _looked_at(name, ends)
    lines += [_row(f"**all of these of `{room}`**", counted) for room, counted in totals.items()]
    PAGE.write_text(INTRODUCTION + "\n".join([*lines, "", "## Survivors", "", *survivors]) + "\n")


def _amount(room: str, name: str) -> int:
    """How many mutants a module has."""
    told = PLACE / room / "mutants" / "src" / "redrive" / f"{name.replace('.', '/')}.py.meta"
    return len(json.loads(told.read_text())["exit_code_by_key"])


def _row(name: str, ends: Counter[str]) -> str:
    noticed = ends["killed"] + ends["timed out"]
    told = (ends.total(), ends["killed"], ends["timed out"], ends["survived"], ends["without a test"])
    return f"| {name} | {' | '.join(f'{amount:,}' for amount in told)} | {noticed / ends.total():.1%} |"


def _looked_at(name: str, ends: Sequence[dict[str, str]]) -> Iterator[str]:
    """Each survivor of a module: where, the change, and what is known of it."""
    for one in ends:
        if one["end"] in ("survived", "without a test"):
            function = one["key"].removeprefix(f"redrive.{name}.").rpartition("__mutmut_")[0]
            changed = one["change"].splitlines()
            took, gave = (" ".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+")
            why = LOOKED_AT.get(name, {}).get(gave or took, "not looked at yet")
            shown = function.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
            yield f"- `{name}.{shown}`: {why}\n\n  ```diff\n  - {took}\n  + {gave}\n  ```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
