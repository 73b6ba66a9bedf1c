"""Programs that fork, and programs with more than one event loop: each in a process of its own, on both databases."""

import secrets
import tempfile
import textwrap
from pathlib import Path

import pytest
from sqlalchemy import text

from redrive.ledgers.open import open_database
from tests import forks

pytestmark = pytest.mark.timeout(120)

HEAD = """
import asyncio, os, sys, threading
from redrive import Redrive

app = Redrive(sys.argv[1], durable=False)

async def add(key):
    return (await app.add("mail", key=key)).new

def child(work):
    '''Run it in a fork; how that ended.'''
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(url: str, program: str) -> str:
    """What the program printed; it must come to its end."""
    with tempfile.TemporaryDirectory() as place:
        folder, name = Path(place), f"program_{secrets.token_hex(6)}"
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(program))
        done = forks.run(url, module=name, folder=folder, log=folder / "log")
        code, said = done.wait(100), (folder / "log").read_text()
    assert code == 0, said
    return said


async def keys(url: str) -> list[str]:
    database = open_database(url)
    try:
        return await database.read(
            lambda connection: list(connection.execute(text("SELECT key FROM redrive_task ORDER BY key")).scalars())
        )
    finally:
        await database.close()


async def test_a_second_loop(url: str) -> None:
    """What was opened in one loop works in the next one too: adding, transactions and work."""
    program = """
    async def work(key):
        await add(key)
        async with app.database.transaction() as transaction:
            await app.add("mail", key=key + "-within", within=transaction.connection)
        await app.work_off(app.tasks)
        return (await app.tasks.get(key)).state

    @app.handler("mail")
    async def mail(task): ...

    for key in "abc":
        print(asyncio.run(work(key)))
    asyncio.run(app.close())
    """
    assert run(url, program).split() == ["done"] * 3
    assert await keys(url) == ["a", "a-within", "b", "b-within", "c", "c-within"]


async def test_a_loop_that_was_cut_off(url: str) -> None:
    """A loop that ended in mid-flight, its transaction open and its batch half gathered, leaves no lock to the next one."""
    program = """
    held = None

    async def cut_off():
        global held
        held = [asyncio.create_task(add(key)) for key in "abc"]
        for _ in range(3):
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.open())
    loop.run_until_complete(cut_off())
    loop.stop()
    print(asyncio.run(add("z")))
    os._exit(0)  # nobody asks what became of the others
    """
    assert run(url, program).split() == ["True"]
    assert "z" in await keys(url)


async def test_two_loops_at_once(url: str) -> None:
    """Two threads with a loop each share an application."""
    program = """
    async def many(name):
        for number in range(20):
            await add(f"{name}-{number:02}")

    asyncio.run(app.open())
    threads = [threading.Thread(target=lambda name=name: asyncio.run(many(name))) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """
    run(url, program)
    assert await keys(url) == [f"{name}-{number:02}" for name in "ab" for number in range(20)]


async def test_a_worker_in_a_second_loop_is_woken(url: str) -> None:
    """A worker of a later loop hears of work of another process, and does not wait for its poll."""
    program = """
    from redrive.app import WorkerSettings
    other = Redrive(sys.argv[1], durable=False)

    async def work(key):
        ran = asyncio.Event()
        handlers[0] = ran.set
        workers = app.workers(WorkerSettings(poll=3600))
        running = asyncio.create_task(workers.run())
        await workers.ready.wait()
        await asyncio.sleep(0.3)
        await other.add("mail", key=key)
        await ran.wait()
        workers.stop()
        await running

    handlers = [None]

    @app.handler("mail")
    async def mail(task):
        handlers[0]()

    for key in "ab":
        asyncio.run(work(key))
        print("woken")
    """
    assert run(url, program).split() == ["woken"] * 2


async def test_a_fork_between_two_loops(url: str) -> None:
    """The child adds, the parent adds again, and neither takes the other's connections."""
    program = """
    print(asyncio.run(add("a")))
    print(child(lambda: asyncio.run(add("b"))))
    print(asyncio.run(add("c")))
    asyncio.run(app.close())
    """
    assert run(url, program).split() == ["True", "0", "True"]
    assert await keys(url) == ["a", "b", "c"]


async def test_a_fork_in_a_running_loop(url: str) -> None:
    """The parent's loop, its listener and its pool go on as if nothing had happened, also once the child has closed its own."""
    program = """
    async def use(key):
        await add(key)
        await app.work_off(app.tasks)
        await app.close()

    async def main():
        await add("a")
        with app.database.waiter("redrive_task"):
            await asyncio.sleep(0.1)
            print(child(lambda: asyncio.run(use("b"))))
            for key in "cd":
                await asyncio.gather(add(key), app.tasks.get("a"), app.tasks.counts())
        print((await app.tasks.get("b")).state)

    @app.handler("mail")
    async def mail(task): ...

    asyncio.run(main())
    """
    assert run(url, program).split() == ["0", "done"]
    assert await keys(url) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_fork_in_mid_transaction_is_told_so(url: str) -> None:
    """SQLite's locks are not carried over: where its file was in use, the child hears it in one line, and the parent goes on."""
    program = """
    async def main():
        await app.open()
        async with app.database.transaction() as transaction:
            await app.add("mail", key="a", within=transaction.connection)
            print(child(lambda: asyncio.run(other())))
        await add("b")

    async def other():
        try:
            await asyncio.create_task(app.tasks.counts())
        except Exception as error:
            print(type(error).__name__, str(error).partition(",")[0], flush=True)

    asyncio.run(main())
    """
    assert run(url, program).splitlines() == ["UsageError this process was forked while test.db was in use", "0"]
    assert await keys(url) == ["a", "b"]
