"""What `proof.mutants` runs in the environment of mutmut: it breaks modules, and lets the tests that reach a broken function notice it.

    cd build/mutants/core && ../environment/bin/python mutants/proof/mutation/tried.py "not postgres" redrive.core.decide …

mutmut makes the mutants. It would start pytest anew for each; here pytest collects the tests once, runs them once to learn which test
reaches which function, and is then forked for each mutant. The child runs those tests until one fails: those of the module's own test
file, and after them the quickest of the others for a second. So a mutant that survived may still be noticed by a slower test.
Now and then a child has no mutant at all: a test that fails there would tell of no mutant either. A test that fails in a process that has
waited long for a processor must fail a second time; that it has lost its patience there is never believed.
The modules have their turns, some mutants of each in the order of `drawn`. Each end is a line of `ended.jsonl`. A mutant that was killed
stays killed until its function changes; the others are tried again.
"""

import gc
import json
import mmap
import os
import resource
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import chdir, suppress
from functools import _lru_cache_wrapper, lru_cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from mutmut.__main__ import create_mutants_for_file
from mutmut.mutation import trampoline
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

from proof.mutation.drawn import Told, drawn, told_of

ENDED = Path("..", "ended.jsonl")
AWAKE = int(os.environ.get("PROOF_PROCESSES") or 2)
CHILDREN = 12 * AWAKE
"""So many children in all: a mutant that waits for what never comes takes no processor."""
DOZES_SECONDS = 0.3
PATIENCE_SECONDS = 8
OTHERS_SECONDS = 1
CONTROL_EVERY = 40
STARVED_SECONDS = 10
TRIES_MAX = 4
TURN = 20
"""How many mutants of a module are tried before the next module has its turn."""
FAILING_SHARE_MAX = 0.02
"""So few tests may fail as they are, on a machine that is too busy for one: they notice nothing. More, and the copy is wrong."""
TESTED_IN = {
    "column_names": {"models"}, "effect_entry": {"effects"}, "effect_mark": {"effect"}, "gate_order": {"gates"},
    "gate_rules": {"gates"}, "outcome": {"decide"}, "table": {"table", "models"}, "context": {"context", "effects", "progress"},
    "kinds": {"kinds", "pauses"}, "run": {"run", "effects", "stops"}, "asks": {"asks", "worker"}, "held": {"leases", "worker_suspects"}, "leases": {"leases", "worker_suspects"},
    "worker": {"worker", "worker_stops", "worker_suspects", "asks", "reserve", "stops"}, "worker_settings": {"worker_settings"},
}  # fmt: skip
"""Modules whose tests stand in files of other names."""
IMPATIENT = 3
STATED = {0: "survived", 1: "killed", IMPATIENT: "killed", -signal.SIGKILL: "timed out", -signal.SIGXCPU: "timed out"}
"""What the exit code of a child says; any other means that the process itself went down, which is hard to overlook: killed."""


class Caller:
    """Who calls a function is not asked for: mutmut would note it in the context, and lanes look whether somebody has changed that."""

    get = staticmethod(lambda: (None, 0))
    set = reset = staticmethod(lambda _: None)


class Child:
    """A process with one mutant, or with none."""

    def __init__(self, key: str, mutant: str, tries: int, items: list[pytest.Item], waits: Sequence[float]) -> None:
        self.key, self.mutant, self.tries, self.items, self.began = key, mutant, tries, items, time.monotonic()
        self._waits, self._at, self._told = waits, 0, mmap.mmap(-1, 8)
        self._looked_at, self._slept, self._dozed, self._starved = self.began, 0.0, 0.0, 0.0
        self._process = Path()

    def tell(self, at: int) -> None:
        """In the process itself: which test comes now."""
        self._told[:] = at.to_bytes(8, "little")

    def lives_as(self, pid: int) -> None:
        """In the parent."""
        self._process = Path("/proc", str(pid))

    def look(self) -> None:
        """See whether it sleeps, now and then."""
        spent = time.monotonic() - self._looked_at
        if spent < DOZES_SECONDS / 3:
            return
        self._looked_at += spent
        if (at := self.test()) != self._at:
            self._at, self._slept = at, 0.0
        with suppress(OSError):
            self._starved = int((self._process / "schedstat").read_text().split()[1]) / 1e9
            sleeps = all(
                one.read_text().rpartition(")")[2].split()[0] == "S" for one in self._process.glob("task/*/stat")
            )
            self._slept += spent if sleeps else 0
            self._dozed = self._dozed + spent if sleeps else 0

    def waits(self) -> bool:
        """Whether all of it sleeps just now, so that another has room."""
        return self._dozed > DOZES_SECONDS

    def starves(self) -> bool:
        """Whether it has waited so long for a processor that a test may have lost its patience."""
        return self._starved > STARVED_SECONDS

    def test(self) -> int:
        """Which test it runs, or was the last."""
        return int.from_bytes(self._told[:], "little")

    def hangs(self) -> bool:
        """Whether it has slept for much longer than its test takes. One that waits for a processor does not hang; one that never stops has a limit."""
        return self._slept > PATIENCE_SECONDS + 4 * self._waits[self._at]


class Trial:
    """A plugin of pytest that runs the tests once as they are, and then those that reach a mutant, for each mutant."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.modules = modules
        self.failed: set[str] = set()
        self.impatient = False
        self.reached: dict[str, list[pytest.Item]] = defaultdict(list)
        self.took: dict[pytest.Item, float] = {}
        self.lasted: dict[pytest.Item, float] = {}
        self.kills: Counter[pytest.Item] = Counter()
        self.running: dict[int, Child] = {}
        self.left: deque[tuple[str, int]] = deque()
        self.ended = ENDED.open("a")

    def pytest_sessionstart(self) -> None:
        """A property that fails is enough: the smallest example of it need not be found."""
        settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate], database=None)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> None:
        """A test says that it has waited for too long."""
        self.impatient = self.impatient or (call.excinfo is not None and call.excinfo.errisinstance(TimeoutError))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._learn(session.items)
        for name in sorted(self.failed):
            sys.__stderr__.write(f"fails without a mutant, and is left out: {name}\n")
        if len(self.failed) > len(session.items) * FAILING_SHARE_MAX:
            raise session.Failed
        self.failed.clear()
        self.impatient = False
        self.left.extend((key, 1) for key in _keys(self.modules))
        forked = 0
        while self.left or self.running:
            if not self.left or not self._has_room():
                self._reap()
                continue
            key, tries = self.left.popleft()
            self._fork(key, mutant=key, tries=tries)
            if not forked % CONTROL_EVERY:
                self._fork(key, mutant="", tries=TRIES_MAX)
            forked += 1
        return True

    def _learn(self, items: Sequence[pytest.Item]) -> None:
        ours = [vars(module) for name, module in sys.modules.items() if name.startswith("redrive.")]
        trampoline.MutmutCallStack = Caller
        memories = [one for names in ours for one in names.values() if type(one) is dict and not one]
        set_mutant_under_test("stats")
        for item, after in zip(items, [*items[1:], None], strict=True):
            state()._stats.clear()  # noqa: SLF001 - where mutmut notes them
            start, began = time.process_time(), time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            self.took[item], self.lasted[item] = time.process_time() - start, time.monotonic() - began
            for function in () if item.nodeid in self.failed else state()._stats:  # noqa: SLF001
                self.reached[function].append(item)
        for reaching in self.reached.values():
            reaching.sort(key=self.took.__getitem__)
        set_mutant_under_test("")
        # What is remembered was right: no mutant is to find it.
        for one in gc.get_objects():
            if type(one) is _lru_cache_wrapper:  # to ask a hostile object for its class would raise
                one.cache_clear()
        for one in memories:
            one.clear()
        gc.collect()
        gc.freeze()
        sys.__stderr__.write(f"{len(items)} tests took {sum(self.took.values()):.1f} s\n")

    def _fork(self, key: str, *, mutant: str, tries: int) -> None:
        items = self._chosen(key)
        if not items:
            if mutant:
                self._write(key, mutant, "without a test", 0)
            return
        child = Child(key, mutant, tries, items, [self.lasted[item] for item in items])
        if pid := os.fork():
            child.lives_as(pid)
            self.running[pid] = child
            return
        items[0].config.pluginmanager.unregister(name="terminalreporter")
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(silent, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(3 + 5 * sum(self.took[item] for item in items)),) * 2)
        set_mutant_under_test(mutant)
        try:
            for at, (item, after) in enumerate(zip(items, [*items[1:], None], strict=True)):
                child.tell(at)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if self.failed:
                    break
        except BaseException:
            os._exit(1)
        os._exit(IMPATIENT if self.failed and self.impatient else bool(self.failed))

    def _chosen(self, key: str) -> list[pytest.Item]:
        module = _module(key)
        reaching = self.reached.get(mangled_name_from_mutant_name(key), [])
        mine = [item for item in reaching if _is_own(item.path, module)]
        mine.sort(key=lambda item: self.took[item] / (1 + self.kills[item]))
        others = [item for item in reaching if not _is_own(item.path, module)]
        spent = accumulate(self.took[item] for item in others)
        return mine + [item for item, so_far in zip(others, spent, strict=True) if so_far < OTHERS_SECONDS]

    def _has_room(self) -> bool:
        return len(self.running) < CHILDREN and sum(not one.waits() for one in self.running.values()) < AWAKE

    def _reap(self) -> None:
        for pid, child in list(self.running.items()):
            child.look()
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.running[pid]
                self._conclude(child, os.waitstatus_to_exitcode(status))
            elif child.hangs():
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)

    def _conclude(self, child: Child, code: int) -> None:
        end = STATED.get(code, "killed")
        doubtful = end == "killed" and child.starves()
        if doubtful and child.tries < (TRIES_MAX if code == IMPATIENT else 2):
            self.left.append((child.key, child.tries + 1))
            return
        if doubtful and code == IMPATIENT:
            end = "starved"
        if end == "killed" and not child.mutant:
            sys.__stderr__.write(f"fails without a mutant: {child.items[child.test()].nodeid}\n")
        if end == "killed":
            self.kills[child.items[child.test()]] += 1
        self._write(child.key, child.mutant, end, time.monotonic() - child.began)

    def _write(self, key: str, mutant: str, end: str, seconds: float) -> None:
        line = {"key": mutant, "of": _told(_module(key)).of(key), "end": end, "seconds": round(seconds, 2)}
        if mutant and end != "killed":
            line["change"] = _change(key)
        self.ended.write(json.dumps(line) + "\n")
        self.ended.flush()


def _module(key: str) -> str:
    return mangled_name_from_mutant_name(key).rpartition(".")[0]


def _is_own(test: Path, module: str) -> bool:
    """Whether a file holds tests of a module: its name begins as the module's."""
    name = module.rpartition(".")[2]
    return any(f"{test.stem}_".startswith(f"test_{one}_") for one in TESTED_IN.get(name, {name}))


def _path(module: str) -> Path:
    return Path("src", *module.split(".")).with_suffix(".py")


@lru_cache
def _told(module: str) -> Told:
    return told_of(_path(module))


def _keys(modules: Sequence[str]) -> Iterator[str]:
    """All mutants of these modules that were not killed before, some of each module in turn: first those that were tried."""
    with ENDED.open() as lines:
        ended = {(one["key"], one["of"]): one["end"] for one in map(json.loads, lines)}
    left = []
    for module in modules:
        told = _told(module)
        keys = [key for key in drawn(told.keys) if ended.get((key, told.of(key))) != "killed"]
        left.append(sorted(keys, key=lambda key, told=told: (key, told.of(key)) not in ended))
    for start in range(0, max(map(len, left), default=0), TURN):
        for keys in left:
            yield from keys[start : start + TURN]


def _change(key: str) -> str:
    with chdir(".."):
        lines = get_diff_for_mutant(key, path=_path(_module(key))).splitlines()
    return "\n".join(one for one in lines if one[:1] in "+-" and not one.startswith(("+++", "---")))


def _make(path: Path, broken: Path) -> None:
    """Make the mutants of a module. mutmut takes whatever is younger than its source for made, also half a file of a run that was cut off."""
    made_of, digest = broken.with_suffix(".py.made"), sha256(path.read_bytes()).hexdigest()
    if not made_of.exists() or made_of.read_text() != digest:
        broken.unlink(missing_ok=True)
        made = create_mutants_for_file(path, broken)
        if made.error:
            raise made.error
        made_of.write_text(digest)


def main(chosen: str, modules: Sequence[str], *, own: bool) -> int:
    """Make the mutants of these modules of one room, and try them: by the tests of the room, or by their own ones alone."""
    for path in map(_path, modules):
        _make(path, "mutants" / path)
    os.chdir("mutants")
    sys.path[:0] = [os.path.realpath("src"), os.path.realpath(".")]
    os.environ["MUTANT_UNDER_TEST"] = ""
    room = Path("tests", modules[0].split(".")[1])
    mine = [one for one in sorted(room.glob("test_*.py")) if any(_is_own(one, module) for module in modules)]
    tests = mine if own else [room]
    options = [
        "-q",
        "--tb=no",
        "--no-summary",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=",
        "-k",
        chosen,
    ]
    return pytest.main([*map(str, tests), *options], plugins=[Trial(modules)])


if __name__ == "__main__":
    said = [one for one in sys.argv[1:] if one != "--own"]
    sys.exit(main(said[0], said[1:], own="--own" in sys.argv))
