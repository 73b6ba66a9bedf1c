"""Signs of life of a process that works."""

import asyncio
from pathlib import Path

import pytest

from redrive import Redrive, Task
from redrive.core.durations import seconds
from redrive.ledgers import build as module
from redrive.ledgers.build import VERSION, _commit, build, built_of
from redrive.operator.roster import WorkerSeen
from redrive.signs import LastMinute


@pytest.fixture(autouse=True)
def _ask_anew():
    build.cache_clear()
    yield
    build.cache_clear()


async def test_workers_say_that_they_are_there_and_what_they_hold_and_goodbye(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    """While a handler runs its kind is held; after a stop the worker has said so."""
    monkeypatch.setenv(VERSION, "4f2a")
    monkeypatch.setattr("redrive.signs.SIGN_EVERY", seconds(0.01))
    app = Redrive(url)
    runs, ends = asyncio.Event(), asyncio.Event()

    @app.handler("mail")
    async def mail(task: Task) -> None:
        runs.set()
        await ends.wait()

    async with app:
        await app.add("mail", {})
        workers = app.workers()
        working = asyncio.create_task(workers.run())
        await runs.wait()
        seen = await _until(app, lambda one: bool(one.held))
        assert (seen.name, seen.version, seen.slots) == (workers.name, "4f2a", 100)
        assert seen.holds == {"redrive_task": {"mail": 1}}
        assert seen.stopped_at is None
        assert seen.held_for is not None
        assert (seen.drift_ms is None) == url.startswith("sqlite")
        assert abs(seen.drift_ms or 0) < 3_600_000, "the two clocks are of one machine"
        ends.set()
        workers.stop()
        await working
        [seen] = await app.store.roster.seen()
        assert seen.stopped_at is not None
        assert seen.holds == {}
        assert (seen.held_for, seen.tries_a_minute) == (None, 1)


def test_what_is_counted_of_a_minute_is_what_it_grew_in_it():
    """From nothing at first; then against what it was a minute ago, however often it was asked."""
    last = LastMinute()
    counts = {0: 0, 2: 10, 30: 50, 59: 80, 61: 90, 90: 100, 200: 100}
    assert [last.grown(count, at) for at, count in counts.items()] == [0, 10, 50, 80, 90, 50, 0]


async def _until(app: Redrive, is_so) -> WorkerSeen:
    while True:
        for one in await app.store.roster.seen():
            if is_so(one):
                return one
        await asyncio.sleep(0.01)


def test_a_build_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch):
    """`REDRIVE_VERSION` goes before all else, and is bounded."""
    monkeypatch.setenv(VERSION, "x" * 1000)
    assert build() == "x" * 80


def test_a_build_is_the_commit_of_the_working_folder(tmp_path: Path):
    """As git writes it down: in a file of its own, packed, bare of a branch, or in a worktree; elsewhere there is none."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    git = tmp_path / "a" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert _commit(tmp_path / "a") is None
    (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    assert _commit(tmp_path / "a" / "deep" / "folder") == commit[:12]
    (git / "refs" / "heads" / "main").write_text("f" * 40 + "\n")
    assert _commit(tmp_path / "a") == "f" * 12
    (git / "HEAD").write_text(commit + "\n")
    assert _commit(tmp_path / "a") == commit[:12]
    tree = git / "worktrees" / "b"
    tree.mkdir(parents=True)
    (tree / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / "commondir").write_text("../..\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".git").write_text(f"gitdir: {tree}\n")
    assert _commit(tmp_path / "b") == "f" * 12
    (git / "HEAD").write_bytes(b"\xff\xfe")
    assert _commit(tmp_path / "a") is None


def test_a_build_is_the_version_of_the_package_where_nobody_says_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Outside of a working copy: that of the distribution which the first handler was installed with, whoever else has handlers."""
    monkeypatch.delenv(VERSION, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_package", [])
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    info = tmp_path / "the_shop-4.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: the-shop\nVersion: 4.2\n")
    (info / "RECORD").write_text("shop/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert build() is None
    for one in ("redrive.systems.flags.work", "__main__", "shop.mail", "pip.main"):
        built_of(one)
    assert build() == "4.2"
