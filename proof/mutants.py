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
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from proof.mutation.drawn import SEED, Told, told_of
from proof.mutation.looked_at import LOOKED_AT

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
WITH = ("mutmut==3.8.0", "pytest==9.0.3", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0")
PAGE = ROOT / "docs" / "proof-mutants.md"
INTRODUCTION = """# Mutants

Code is broken in small ways, one at a time: a number is one more, `and` is `or`, a text is another. A test must notice. Here stands what
`python -m proof.mutants` tried, each mutant by the tests of its module and, where it was run without `--own`, by others that reach it for
up to a second. A mutant that never ended was noticed too. Where fewer were tried than there are, they were drawn with the seed {seed}, but
for some that found no processor in time. A survivor was looked at if somebody says below why no test tells it apart. Modules that have no
line have no figure.

Of {control} runs without a mutant, {failed} failed. Only this program writes here.

| module | mutants | tried | killed | timed out | survived | without a test | noticed | looked at |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
ENDS = ("killed", "timed out", "survived", "without a test")
SAMPLE_MIN = 20
UNSEEN = "not looked at yet"
ROW = re.compile(r"^\| `([\w.]+)` ((?:\| \d+ ){6})\|", re.MULTILINE)
SURVIVOR = re.compile(
    r"^- `(\w+\.\w+)\.([^`]*)`: [^\n]*\n\n  ```diff\n  - ([^\n]*)\n  \+ ([^\n]*)\n  ```", re.MULTILINE
)
CHOSEN = {"core": "not postgres", "engine": "not postgres and not simulation"}
"""By room the tests that are to notice: those of the room, where a database is needed on SQLite."""


class Survivor(NamedTuple):
    """A mutant that no test has noticed: where, and the change."""

    module: str
    function: str
    took: str
    gave: str

    @property
    def why(self) -> str:
        """What is known of it."""
        return LOOKED_AT.get(self.module, {}).get(self.gave or self.took, UNSEEN)

    def told(self) -> str:
        """As it stands on the page."""
        change = f"  ```diff\n  - {self.took}\n  + {self.gave}\n  ```"
        return f"- `{self.module}.{self.function}`: {self.why}\n\n{change}"


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
    _copy(place, {f"src/redrive/{one.replace('.', '/')}.py" for one in names})
    python, tried = environment / "bin" / "python", "mutants/proof/mutation/tried.py"
    run = [str(python), "-W", "ignore", tried, CHOSEN[room], *(f"redrive.{one}" for one in names)]
    run += ["--own"] if "--own" in said else []
    here = {"PYTHONPATH": str(place / "mutants"), "REDRIVE_TEST_EXAMPLES": "5" if "--own" in said else "25"}
    subprocess.run(run, cwd=place, check=True, env=os.environ | here)


def _copy(place: Path, broken: Collection[str]) -> None:
    """Copy the tree: what is to be broken beside the rest, so that its mutants stand there instead."""
    shutil.rmtree(place / "mutants" / "tests", ignore_errors=True)  # a file may have another name now
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if name.startswith(("src/", "tests/", "bench/", "proof/", "pyproject.toml", "README.md")):
            target = (place if name in broken else place / "mutants") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def _told(room: str, name: str) -> Told:
    return told_of(PLACE / room / "mutants" / "src" / "redrive" / f"{name.replace('.', '/')}.py")


def _lines(room: str) -> list[dict[str, str]]:
    ended = PLACE / room / "ended.jsonl"
    return [json.loads(line) for line in ended.read_text().splitlines()] if ended.exists() else []


def _tell(room: str, names: Sequence[str], *, shown: bool) -> None:
    total: Counter[str] = Counter()
    print(f"\n{'module':24} {'tried':>6} {'killed':>7}  share  the rest")
    for name in names:
        ends = _told(room, name).tried(_lines(room))
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
    """Write down what was tried of each module, and every mutant that survived. What was tried before stays where it was more."""
    before = PAGE.read_text()
    figures = {one[1]: [int(figure) for figure in re.findall(r"\d+", one[2])] for one in ROW.finditer(before)}
    survivors = defaultdict[str, list[Survivor]](list)
    for one in SURVIVOR.finditer(before):
        survivors[one[1]].append(Survivor(*one.groups()))
    recorded = {room: _lines(room) for room in CHOSEN}
    for name in [name for room in CHOSEN for name in _modules(room)]:
        room = name.partition(".")[0]
        module = _told(room, name)
        ends, amount = module.tried(recorded[room]), len(module.keys)
        of, earlier, *_ = figures.get(name, [0, 0])
        if not ends or len(ends) < min(amount, max(SAMPLE_MIN, earlier if of == amount else 0)):
            continue
        counted = Counter(one["end"] for one in ends)
        figures[name] = [amount, len(ends), *(counted[end] for end in ENDS)]
        survivors[name] = [_survivor(name, one) for one in ends if one["end"] in ("survived", "without a test")]
    lines, told = list[str](), list[str]()
    for room in CHOSEN:
        names = [name for name in _modules(room) if name in figures]
        lines += [_row(f"`{name}`", figures[name], survivors[name]) for name in names]
        told += [one.told() for name in names for one in survivors[name]]
        if names:
            total = [sum(column) for column in zip(*(figures[name] for name in names), strict=True)]
            lines.append(
                _row(f"**all of these of `{room}`**", total, [one for name in names for one in survivors[name]])
            )
    without = [one["end"] for room in CHOSEN for one in recorded[room] if not one["key"]]
    introduction = INTRODUCTION.format(seed=SEED, control=len(without), failed=len(without) - without.count("survived"))
    PAGE.write_text(introduction + "\n".join([*lines, "", "## Survivors", "", *told]) + "\n")


def _row(name: str, figures: Sequence[int], survivors: Sequence[Survivor]) -> str:
    _, tried, killed, timed_out, *_ = figures
    looked_at = sum(one.why != UNSEEN for one in survivors)
    told = " | ".join(f"{figure}" for figure in figures)
    return f"| {name} | {told} | {(killed + timed_out) / tried:.1%} | {looked_at} of {len(survivors)} |"


def _survivor(name: str, ended: dict[str, str]) -> Survivor:
    function = ended["key"].removeprefix(f"redrive.{name}.").rpartition("__mutmut_")[0]
    changed = ended["change"].splitlines()
    took, gave = (" ".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+")
    return Survivor(name, function.removeprefix("x_").removeprefix("xǁ").replace("ǁ", "."), took, gave)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
