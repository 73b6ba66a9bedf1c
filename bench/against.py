"""What a task costs here, beside what it cost at another commit. `python -m bench.against COMMIT`.

Three processes take turns in rounds: the code of this folder, that of the commit, and that of the commit once more as a control. Tasks have
no gates and do nothing; with `--work fail_once` the first try of each raises. What counts is processor time, not time on the wall: that of the process, and on PostgreSQL that of its sessions in
the server as well. So a machine that others use does not matter much. A round there takes long, though, and what a process does once a second
is not the tasks' doing: a second without work is measured, too, and taken off. Others only ever make a round slower, by what they leave in
caches: so there are many rounds, and the quickest quarter of them counts. A round begins a worker, which costs some milliseconds: it has to
be long enough for that not to matter.
"""

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from bench.frame import Limit, conclude, fresh, parser
from bench.servers import servers
from bench.venv import ROOT

COST_BOUND = 1 / 0.97
"""97 % of the speed: so much more processor time a task may cost."""
CONTROL_BOUND = 1.01
SIDES = ("before", "now", "control")


@contextmanager
def code_of(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit, in a folder of their own."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory(dir=folder, prefix="code-") as unpacked:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(unpacked, filter="data")
        yield Path(unpacked)


class Side:
    """One of those who take turns: a process with code and a database of its own."""

    def __init__(self, code: Path, url: str, tasks: int, work: str) -> None:
        path = os.pathsep.join(str(each) for each in (code / "src", code / "client" / "src", ROOT))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "bench.ticks", url, str(tasks), work],
            env=os.environ | {"PYTHONPATH": path},
            cwd=code.parent,  # a folder without packages of its own
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self, number: int) -> dict[str, float]:
        """One round of tasks: what they cost, in µs each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"round-{number}\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(sides: dict[str, Side], tasks: int, rounds: int, console: Console) -> tuple[float, float, float]:
    """How many tasks a processor carried before in a second; and how many times as long one takes now, and in the control."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        shift = number % len(SIDES)
        for name in (*SIDES[shift:], *SIDES[:shift]):
            found[name].append(sides[name].round(number))
    took = {}
    for name, each in found.items():
        each.pop(0)  # it warms up
        idle = quickest(_spent(one, "idle") / one["idle wall"] for one in each)
        add = quickest(_spent(one, "add") for one in each) / tasks  # no worker runs then
        run = quickest(_spent(one, "run") - idle * one["run wall"] for one in each) / tasks
        took[name] = (add + run) / (1 - idle)  # what is left of a second is for tasks
        said = f"add {add * 1e6:.1f} µs, run {run * 1e6:.1f} µs; {idle * 1000:.1f} ms in a second without work"
        console.print(f"  {name}: {said}", highlight=False)
    return 1 / took["before"], took["now"] / took["before"], took["control"] / took["before"]


def quickest(seconds: Iterable[float]) -> float:
    """The mean of the quickest quarter."""
    found = sorted(seconds)
    return statistics.fmean(found[: max(1, len(found) // 4)])


def _spent(one: dict[str, float], what: str) -> float:
    return one[f"{what} here"] + one[f"{what} in the server"]


def main(argv: Sequence[str]) -> int:
    arguments = parser("against", __doc__)
    arguments.add_argument("commit", help="what to compare with")
    arguments.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    arguments.add_argument("--work", choices=["run", "fail_once"], default="run")
    arguments.add_argument("--tasks", type=int, default=20_000, help="in a round")
    arguments.add_argument("--rounds", type=int, default=20)
    options = arguments.parse_args(argv)
    console, limits = Console(), list[Limit]()
    for store in options.stores:
        with ExitStack() as stack:
            running = stack.enter_context(
                servers(options.folder, postgres=store == "postgres", rabbitmq=False, timed=False)
            )
            before = stack.enter_context(code_of(options.commit, running.folder))
            sides = {}
            for name in SIDES:
                url = fresh(running, store, name, ready=False)  # each makes the tables that its own code knows
                sides[name] = Side(ROOT if name == "now" else before, url, options.tasks, options.work)
                stack.callback(sides[name].end)
            console.print(
                f"{store}, a task, the quickest of {options.rounds} rounds of {options.tasks:,}:", highlight=False
            )
            carried, now, control = compare(sides, options.tasks, options.rounds, console)
        limits += [
            Limit(f"processor time of a task / at {options.commit} ({carried:,.0f} a second)", store, round(now, 3), "×", round(COST_BOUND, 3)),
            Limit("the control: the same code twice", store, round(max(control, 1 / control), 3), "×", CONTROL_BOUND),
        ]  # fmt: skip
    return conclude(limits, options.output, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
