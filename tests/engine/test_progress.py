"""What a running handler tells of itself, and leaves for the next try."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive import Context, Redrive, Snoozed, State, Task, seconds
from redrive.core.decide import decide
from redrive.core.outcome import Released
from redrive.core.policy import Policy
from redrive.engine import progress as engine_progress
from redrive.engine.progress import RunProgress
from redrive.errors import PayloadError, UsageError
from redrive.testing import VirtualClock, drain
from tests.core.test_decide import claim_of


@pytest.fixture
async def app(url: str, clock: VirtualClock) -> AsyncIterator[Redrive]:
    async with Redrive(url, clock=clock, durable=False) as made:
        yield made


async def test_the_next_try_reads_what_this_one_left(app: Redrive, clock: VirtualClock) -> None:
    """Page by page: a try that fails goes on where it was, and what it told is to be seen."""
    began = list[Any]()

    @app.handler("import", retries=3)
    async def read_pages(_task: Task, context: Context) -> None:
        page = await context.checkpoint or 0
        began.append(page)
        await context.progress(page / 4, f"page {page} of 4")
        context.checkpoint = page + 2
        assert await context.checkpoint == page + 2
        if page < 4:
            raise ConnectionError("cut")

    added = await app.add("import", key="a")
    await drain(app, clock=clock)
    assert began == [0, 2, 4]
    progress = await app.tasks.progress(added.id)
    assert progress is not None
    assert (progress.share, progress.words, progress.checkpoint) == (1.0, "page 4 of 4", 6)
    ledger = await app.tasks.ledger()
    assert await ledger.prune([State.DONE], seconds(0)) == 1
    assert await app.tasks.progress(added.id) is None


async def test_a_plain_handler_tells_from_its_thread(app: Redrive) -> None:
    """It calls instead of awaiting."""

    @app.handler("import")
    def read_pages(_task: Task, context: Context) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        if context.checkpoint.get() == {"page": 3}:
            return "the rest"
        context.progress(0.5, "half")
        context.checkpoint = {"page": 3}
        return Snoozed(0)

    await app.add("import", key="a")
    await drain(app)
    assert await app.result("a") == "the rest"


async def test_a_late_worker_changes_nothing(app: Redrive) -> None:
    """Its fence is gone: the checkpoint is that of whoever holds the task now."""
    ledger = await app.tasks.ledger()
    notes = ledger.progress
    assert notes is not None
    await app.add("import", key="a")
    [late] = await ledger.claim(1, seconds(30))
    assert await notes.write(late, 0.5, "half", "1")
    await ledger.settle([decide(late, Released(), Policy())], worker="keeper")
    assert not await notes.write(late, 0.9, "nearly", "2")
    progress = await notes.read(late.task.id)
    assert progress is not None
    assert (progress.share, progress.checkpoint) == (0.5, 1)


class Notes:
    """Progress that is counted, and written when the test says so."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []
        self.away = False

    async def write(self, _claim: Any, *told: Any) -> bool:
        self.written.append(told)
        if self.away:
            raise ConnectionError("away")
        return True

    async def read(self, _id: Any) -> None:
        return None


async def test_it_is_written_at_most_once_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pages are two writes, and the last word is kept; a store that is away costs nobody the run."""
    assert engine_progress.EVERY_SECONDS == 1
    monkeypatch.setattr(engine_progress, "EVERY_SECONDS", 3600)  # however slow the machine is
    for away in (False, True):
        notes = Notes()
        notes.away = away
        progress = RunProgress(notes, None, asyncio.get_running_loop())  # type: ignore[arg-type]
        for page in range(1000):
            await progress.tell(page / 1000, f"page {page}")
            progress.save(page)
        await progress.end()
        assert len(notes.written) == 2
        assert notes.written[-1] == (0.999, "page 999", "999")


@pytest.mark.parametrize("store", ["sqlite"])
async def test_what_cannot_be_kept_is_said(app: Redrive) -> None:
    """No share, too large, not JSON, or in a transaction: the handler hears it, and the task has failed of it."""

    @app.handler("wrong", attempts=1)
    async def wrong(task: Task, context: Context) -> None:
        match task.key:
            case "share":
                await context.progress(40)
            case "large":
                context.checkpoint = "x" * 70_000
            case _:
                context.checkpoint = object()

    @app.handler("within", attempts=1, transactional=True)
    async def within(_task: Task, context: Context) -> None:
        await context.progress(0.5)

    said = {"share": "from 0 to 1", "large": "more than 65,536", "object": "not JSON", "within": "no progress to keep"}
    for key in said:
        await app.add("within" if key == "within" else "wrong", key=key)
    await drain(app)
    for key, part in said.items():
        task = await app.tasks.get(key)
        assert task is not None
        assert part in str(task.last_error)


async def test_what_is_told_is_checked_and_the_rest_left_alone() -> None:
    """A share is a number from 0 to 1; what a run has not told is not written over what is there."""
    written: list[Any] = []

    class Notes:
        async def write(self, _claim: Any, *told: Any) -> None:
            written.append(told)

    notes: Any = Notes()
    progress = RunProgress(notes, claim_of(), asyncio.get_running_loop())
    for wrong in (True, "1", 1.01, -0.01, 2):
        with pytest.raises(UsageError) as refused:
            progress.tell(wrong, "")  # type: ignore[arg-type]
        assert str(refused.value) == f"progress is a share from 0 to 1, not {wrong!r}"
    with pytest.raises(PayloadError, match=r"^the checkpoint is 65,538 bytes, more than 65,536"):
        progress.save("x" * 65_536)
    progress.save({"page": 3})
    await progress.end()
    progress = RunProgress(notes, claim_of(), asyncio.get_running_loop())
    progress.tell(1, "")
    await progress.end()
    assert written == [(None, None, '{"page":3}'), (1.0, None, None)]


async def test_it_is_written_again_and_again_while_the_handler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after a while is written after a while, though nothing was told in between and the run goes on."""
    monkeypatch.setattr(engine_progress, "EVERY_SECONDS", 0.01)
    notes: Any = Notes()
    progress = RunProgress(notes, claim_of(), asyncio.get_running_loop())
    async with asyncio.timeout(60):
        for page in range(3):
            await progress.tell(page / 4, "")
            while len(notes.written) <= page:
                await asyncio.sleep(0.005)
            while progress._writer is not None:
                await asyncio.sleep(0.005)
    assert [share for share, *_ in notes.written] == [0.0, 0.25, 0.5]
    await progress.end()
    assert len(notes.written) == 3, "there is nothing left to write"


async def test_a_run_that_has_told_nothing_writes_nothing() -> None:
    """Also where it has asked what the tries before have left."""
    notes: Any = Notes()
    progress = RunProgress(notes, claim_of(), asyncio.get_running_loop())
    assert await progress.saved() is None
    await progress.end()
    assert notes.written == []


async def test_whoever_ends_writes_the_rest_though_the_writer_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a loop, which cancels all that is left in it."""
    monkeypatch.setattr(engine_progress, "EVERY_SECONDS", 3600)
    notes: Any = Notes()
    progress = RunProgress(notes, claim_of(), asyncio.get_running_loop())
    await progress.tell(0.25, "")
    async with asyncio.timeout(60):
        while not notes.written:
            await asyncio.sleep(0.005)
    await progress.tell(0.5, "")
    assert progress._writer is not None
    progress._writer.cancel()
    await progress.end()
    assert [share for share, *_ in notes.written] == [0.25, 0.5]


def test_what_a_thread_tells_after_the_end_of_the_loop_is_forgotten() -> None:
    """The run has ended with it, and the thread is not told of it."""
    loop = asyncio.new_event_loop()
    notes: Any = Notes()
    progress = RunProgress(notes, claim_of(), loop)
    loop.close()
    progress.tell(0.5, "")
    assert notes.written == []
