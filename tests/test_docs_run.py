"""Every code block of the docs runs: Python here, page by page, or in a test of its own; commands are parsed as the command line would.

A page takes some things of its reader's for granted, such as a mail server. `GIVEN` has them, and what must be true afterwards.
"""

import ast
import asyncio
import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from redrive import Redrive
from redrive.cli import app as command_line
from tests.test_docs import PAGES, ROOT, blocks


class Given(NamedTuple):
    """Code that runs before and after the blocks of a page, in the same namespace, with pytest's `monkeypatch` in it."""

    before: str = ""
    after: str = ""


MAIL = """
sent = []
async def mail(invoice): sent.append(invoice)
"""
TABLES = """
from sqlalchemy import Column, Integer, MetaData, Table, insert, text
from sqlalchemy.ext.asyncio import create_async_engine
from redrive import Redrive
from redrive.testing import drain
tables = MetaData()
orders = Table("orders", tables, Column("id", Integer, primary_key=True))
bookings = Table("bookings", tables, Column("order", Integer, primary_key=True))
engine = create_async_engine("sqlite+aiosqlite:///work.db")
async with engine.begin() as made:
    await made.run_sync(tables.create_all)
"""
EMAILS = """
import sqlite3
with sqlite3.connect("work.db") as made:
    made.execute(
        "CREATE TABLE emails (id INTEGER PRIMARY KEY, recipient TEXT, body TEXT, status TEXT DEFAULT 'pending', attempts INTEGER DEFAULT 0,"
        " next_attempt_at TEXT, last_error TEXT, lease_until TEXT, claim_id TEXT)"
    )
    made.execute("INSERT INTO emails (recipient, body) VALUES ('ada', 'hello')")
made.close()
delivered = []
async def deliver(*what): delivered.append(what)
"""
MEND = """
from redrive.errors import TableError
try:
    await app.open()
except TableError as error:
    with sqlite3.connect("work.db") as made: made.executescript(";".join(error.migration))
    made.close()
    await app.open()
"""
DELIVERED = "from redrive.testing import drain\nawait drain(app)\nassert delivered == [('ada', 'hello')]"

GIVEN = {
    "README.md": Given(
        TABLES + EMAILS + MAIL + "from redrive import LedgerTable, Words\nfrom redrive.systems import commands\n"
        "from redrive.testing import VirtualClock, assert_done, drain, temporary_url\nclass InvoiceGone(Exception): ...\n"
    ),
    "docs/index.md": Given(MAIL, "from redrive.testing import drain\nawait drain(app)\nassert sent == [7]"),
    "docs/guides/adopt.md": Given(EMAILS.replace("work.db", "shop.db"), MEND.replace("work.db", "shop.db") + DELIVERED),
    "docs/guides/after-an-outage.md": Given(
        "from redrive import Filter, Redrive\napp = Redrive('sqlite:///work.db')\n", "assert operation.id"
    ),
    "docs/guides/dashboard.md": Given("async def user_of(request): ...\n", "assert dashboard.path == '/ops/redrive'"),
    "docs/guides/destinations.md": Given(
        "", "await app.add('transfer', {'country': 'DE'}, key='a')\nassert (await app.tasks.get('a')).gate == 'bank:DE'"
    ),
    "docs/guides/fastapi.md": Given(
        "from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column\nclass Base(DeclarativeBase): ...\n"
        "class Order(Base):\n    __tablename__ = 'orders'\n    number: Mapped[int] = mapped_column(primary_key=True)\n"
        "from redrive import Redrive\nasync with Redrive('sqlite:///shop.db'): ...\nasync def nothing() -> None: ...\nfrom litestar import get\n",
        "assert (await app.tasks.get('invoice-7')).state == 'waiting'\nawait sessions.kw['bind'].dispose()",
    ),
    "docs/guides/flask.md": Given(
        "from redrive import Redrive\nfrom sqlalchemy import create_engine\nfrom sqlalchemy.orm import Session\n"
        "from types import SimpleNamespace\nengine = create_engine('sqlite:///shop.db')\n"
        "db = SimpleNamespace(session=lambda: Session(engine))\ndef send(server, order): ...\n",
        "assert web.extensions['redrive'].tasks is not None\nawait web.extensions['redrive'].close()\nengine.dispose()",
    ),
    "docs/guides/pay-exactly-once.md": Given(
        "from types import SimpleNamespace\nclass Bank:\n"
        "    async def payments(self, account): return []\n"
        "    async def transfer(self, payment, **keys): return SimpleNamespace(id='p-1')\nbank = Bank()\n",
        "from redrive.testing import drain\nawait app.add('pay', {'account': 'a'}, key='7')\nawait drain(app)\n"
        "assert await app.result('7') == {'payment': 'p-1'}",
    ),
    "docs/guides/postgres.md": Given(
        TABLES + "app = Redrive('sqlite:///work.db')\n@app.handler\nasync def send_invoice(task): ...\nawait app.open()\n",
        "await app.add(book_order, {'order': 8})\nawait drain(app)\nasync with engine.begin() as made:\n"
        "    assert (await made.execute(text('SELECT id FROM orders'))).all() == [(7,)]\n"
        "    assert (await made.execute(text('SELECT \"order\" FROM bookings'))).all() == [(8,)]",
    ),
    "docs/guides/results.md": Given(),
    "docs/guides/sentry-and-opentelemetry.md": Given(
        "import sentry_sdk\nmonkeypatch.setattr(sentry_sdk, 'init', lambda dsn: None)  # there is no such server",
        "assert app.observers",
    ),
    "docs/guides/sqlalchemy.md": Given(
        "async def deliver(recipient): ...\n", "assert emails.name == 'email'\nassert LedgerTable.of(Email).due == 'send_after'"
    ),
    "docs/guides/sync.md": Given(
        "import sqlite3\nwith sqlite3.connect('shop.db') as made: made.execute('CREATE TABLE orders (id INTEGER)')\nmade.close()\n",
        "assert shop.execute('SELECT * FROM orders').fetchall() == [(7,)]\nshop.close()",
    ),
    "docs/guides/typed-payloads.md": Given(
        "paid = []\nasync def transfer(*what): paid.append(what)\n",
        "from redrive.testing import drain\nawait drain(app)\nassert paid == [('DE1', 700)] * 2",
    ),
    "docs/reference.md": Given(
        EMAILS + "from redrive import Filter, LedgerTable, Policy, Redrive, Words\nfrom redrive.gates import Breaker\n"
        "from redrive import Fixed\n"
        "app = Redrive('sqlite:///work.db')\nPOLICY = Policy(Fixed(1), retries=1)\n"
        "emails = app.adopt(LedgerTable('emails', due='next_attempt_at', count='attempts',"
        " words=Words(waiting='pending', done='sent', dead='failed')))\n" + MEND + "await app.add('send_invoice', key='invoice-7')\n",
        "assert (await app.tasks.get('invoice-7')).kind == 'send_invoice'",
    ),
}  # fmt: skip

BETWEEN = {
    (
        "README.md",
        "@commands.handler",
    ): "await app.close()\napp = Redrive('sqlite:///work.db')\nbus = commands.Commands(app)\nawait app.open()\nconnection = await engine.connect()",
    (
        "README.md",
        "clock = ",
    ): "await connection.commit()\nawait connection.close()\nawait app.close()\nassert sent == []",
    (
        "docs/guides/flask.md",
        "jobs.add(",
    ): "web = create_app()\nweb.test_cli_runner().invoke(args=['redrive', 'migrate'])\nweb.app_context().push()",
    ("docs/guides/sentry-and-opentelemetry.md", "from redrive.observe.otel"): "await app.close()",
    ("docs/guides/results.md", "print(await"): "from redrive.testing import drain\nawait drain(app)",
    ("docs/guides/fastapi.md", "from litestar"): "order = get('/')(nothing)",
}
"""What happens between two blocks of a page: before the one that begins so."""

BY_A_TEST_OF_ITS_OWN = {
    "docs/guides/testing.md": "tests/test_testing.py",
    "docs/tutorial.md": "tests/test_docs.py",
    "docs/guides/write-a-system.md": "tests/test_docs.py",
    "docs/guides/django.md": "tests/django/test_guide.py",
    "docs/systems/commands.md": "tests/systems/commands/test_docs.py",
    "docs/systems/flags.md": "tests/faults/test_flags_walk.py",
    "docs/systems/relay.md": "tests/systems/relay/test_docs.py",
    "docs/systems/triggers.md": "tests/systems/triggers/test_examples.py",
    "docs/systems/webhooks.md": "tests/systems/webhooks/test_docs.py",
}
"""Pages whose Python runs elsewhere, and where: that test reads the page."""

NOT_RUN = {
    ("README.md", "with Client("): "needs a service; the same lines run in docs/systems/triggers.md",
    ("README.md", "clock = "): "has a gap for the reader's own lines; the whole of it runs in docs/guides/testing.md",
    ("client/README.md", "from redrive_client"): "needs a service; the same lines run in docs/systems/triggers.md",
}
"""Blocks that do not run, by how they begin, and why."""

WITH_PYTHON = [
    (name, page)
    for page in [*PAGES, ROOT / "client" / "README.md"]
    if blocks(page, "python") and (name := page.relative_to(ROOT).as_posix()) not in BY_A_TEST_OF_ITS_OWN
]


def run(code: str, name: str, names: dict[str, Any], runner: asyncio.Runner) -> None:
    """A piece of code with `await` at its top level, as in a REPL of asyncio; without one no loop runs."""
    ran = eval(compile(code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(ran):
        runner.run(ran)


@pytest.mark.parametrize(("name", "page"), WITH_PYTHON, ids=[name for name, _ in WITH_PYTHON])
def test_python_runs(name: str, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, one after the other in an empty folder, do what the page says."""
    monkeypatch.chdir(tmp_path)
    given = GIVEN.get(name, Given())
    module = ModuleType("docs")  # where frameworks look annotations up
    monkeypatch.setitem(sys.modules, "docs", module)
    names = module.__dict__
    names["monkeypatch"] = monkeypatch
    with asyncio.Runner() as runner:
        run(given.before, f"before {name}", names, runner)
        for code in blocks(page, "python"):
            for (there, beginning), between in BETWEEN.items():
                if there == name and code.startswith(beginning):
                    run(between, f"between {name}", names, runner)
            if not any(there == name and code.startswith(beginning) for there, beginning in NOT_RUN):
                run(code, name, names, runner)
        run(given.after, f"after {name}", names, runner)
        for one in list(names.values()):
            if isinstance(one, Redrive):
                runner.run(one.close())
            elif isinstance(one, AsyncEngine):
                runner.run(one.dispose())


def test_each_exception_is_needed() -> None:
    """A block that is not run is there; a page with a test of its own is named in that test."""
    for (name, beginning), reason in {**NOT_RUN, **BETWEEN}.items():
        assert any(code.startswith(beginning) for code in blocks(ROOT / name, "python")), (name, beginning, reason)
    for name, test in BY_A_TEST_OF_ITS_OWN.items():
        assert Path(name).name in (ROOT / test).read_text(), f"{test} does not read {name}"


def test_what_a_page_takes_for_granted_ends_with_it() -> None:
    """Code around a page sets no attribute by hand, which would stay for the tests after it: `monkeypatch` takes it back."""
    around = {name: "\n".join(given) for name, given in GIVEN.items()} | {
        " ".join(at): code for at, code in BETWEEN.items()
    }
    kept = {
        (name, ast.unparse(target))
        for name, code in around.items()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    assert kept == set()


# --- commands -----------------------------------------------------------------------------------------------------------

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
MADE = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ +)*(?:\S*/)?(redrive|make|pip install) +(.*)$")


def commands(page: Path) -> list[tuple[str, str, bool]]:
    """The commands of ours on a page: program, arguments, and whether it stands in a block, to be typed as it is."""
    text = page.read_text()
    blocked = re.findall(r"^```(?:sh|bash)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [(line, True) for block in blocked for line in block.replace("\\\n", " ").splitlines()]
    lines += [(line, False) for line in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", rest)]
    return [(found[1], found[2], whole) for line, whole in lines if (found := COMMAND.match(line.strip()))]


def parse(arguments: list[str]) -> None:
    """As the command line would, without doing anything."""
    command: Any = typer.main.get_command(command_line)
    parent = None
    while True:
        context = command.make_context(command.name, list(arguments), parent=parent)
        if not hasattr(command, "resolve_command") or not (arguments := [*context._protected_args, *context.args]):
            return
        parent = context
        _, command, arguments = command.resolve_command(context, arguments)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_commands_are_there(page: Path) -> None:
    """Each command of ours that a page names exists, with these arguments and options; each extra and each target too."""
    wrong = []
    for program, said, whole in commands(page):
        if program == "make":
            assert set(re.findall(r"^[a-z-]+", said)) <= MADE, said
        elif program == "pip install":
            assert {one for found in re.findall(r"redrive\[(.*?)\]", said) for one in found.split(",")} <= EXTRAS, said
        elif whole or not re.search(r"[…|]", said):  # which are said in the text to leave something out
            try:
                parse(list(takewhile(lambda word: word != "|", shlex.split(said, comments=True))))
            except (typer.Exit, SystemExit):  # it was asked for help
                pass
            except Exception as error:
                problem = str(getattr(error, "message", "") or error)
                if whole or "No such" in problem:
                    wrong.append(f"redrive {said}: {problem}")
    assert wrong == []


def sentences() -> Iterator[tuple[str, str]]:
    """All that the package says, and what its pages say: where it stands, and the text."""
    for path in sorted((ROOT / "src" / "redrive").rglob("*")):
        place = path.relative_to(ROOT).as_posix()
        if path.suffix == ".html":
            yield place, re.sub(r"<[^>]*>", " ", path.read_text())
        elif path.suffix == ".py" and "_pb2" not in path.name:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):  # what is filled in is a word of its own
                    yield (
                        place,
                        "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values),
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield place, node.value


def test_commands_in_sentences_are_there() -> None:
    """A remedy that is a command can be typed: no sentence of ours names one, or an option, that does not exist."""
    names = "|".join(typer.main.get_command(command_line).commands)  # type: ignore[attr-defined]
    typed = re.compile(
        rf"\bredrive ((?:{names})(?: +(?:--?[a-z][a-z-]*|[A-Za-z0-9_:.*@/-]*[A-Za-z0-9*])(?![^\s`'\"\])<,;:.…]))*)"
    )
    wrong, seen = set(), 0
    for place, text in sentences():
        for said in typed.findall(text):
            seen += 1
            try:
                parse(said.split())
            except (typer.Exit, SystemExit):  # it was asked for help
                pass
            except Exception as error:  # what is missing is said in the text to leave something out
                problem = str(getattr(error, "message", "") or error)
                if "No such option" in problem:
                    wrong.add(f"{place}: redrive {said}: {problem}")
    assert seen > 100
    assert wrong == set()
