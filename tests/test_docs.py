"""The docs say only what is true: every public name is in the reference, every example is Python, the tutorial works."""

import ast
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import redrive
import redrive.app
import redrive.effects
import redrive.gates
import redrive.lane
import redrive.policies
from bench.site import broken
from redrive import extend, items, queues, sql
from redrive.core.states import TRANSITIONS
from tests import forks

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 150
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language; the empty one is the shell's."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


@pytest.mark.parametrize(
    "door",
    [redrive, redrive.app, redrive.effects, redrive.gates, redrive.lane, redrive.policies],
    ids=lambda door: door.__name__,
)
def test_the_reference_names_everything_public(door: ModuleType) -> None:
    """Each name of the public doors stands in the reference, and so does its module."""
    text = (ROOT / "docs" / "reference.md").read_text()
    assert [name for name in door.__all__ if not re.search(rf"\b{name}\b", text)] == []
    assert f"`{door.__name__}`" in text


GUIDE = ROOT / "docs" / "guides" / "write-a-system.md"


def test_the_guide_names_all_that_a_system_may_use() -> None:
    """Each name of the second door stands in the guide, and the guide names nothing else there."""
    text = GUIDE.read_text()
    table = text[text.index("## What `redrive.extend` has") :]
    named = set(re.findall(r"`(\w+)`", table)) - {"redrive"}
    assert named == set(extend.__all__)


@pytest.mark.parametrize("door", [extend, items, queues, sql], ids=lambda door: door.__name__)
def test_nothing_stands_in_a_door_for_systems_without_need(door: ModuleType) -> None:
    """Each name there is used by one of our systems or by the guide; the door shrinks with its users."""
    code = [path.read_text() for path in (ROOT / "src" / "redrive" / "systems").rglob("*.py")] + blocks(GUIDE, "python")
    used = {
        alias.name
        for one in code
        for node in ast.walk(ast.parse(one))
        if isinstance(node, ast.ImportFrom) and node.module == door.__name__
        for alias in node.names
    }
    assert set(door.__all__) - used == set()


async def test_the_guide_to_a_system_works_as_written(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Its blocks, one after the other, are a system whose own test passes, on both databases."""
    written: dict[str, Any] = {}
    for code in blocks(GUIDE, "python"):
        exec(compile(code, GUIDE.name, "exec"), written)
    written["temporary_url"] = lambda: url
    await written["test_a_letter_arrives_at_the_second_try"]()
    assert issubclass(written["Letters"], extend.System)


def test_the_drawn_state_machine_is_the_real_one() -> None:
    """The diagram in the concepts shows exactly the transitions that the code allows."""
    [diagram] = blocks(ROOT / "docs" / "concepts.md", "mermaid")
    drawn = {(before, after, act) for before, after, act in re.findall(r"(\w+) --> (\w+): (\w+)", diagram)}
    real = {(before.value, after.value, act.value) for act, pairs in TRANSITIONS.items() for before, after in pairs}
    assert drawn == real


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_python(page: Path) -> None:
    """Every Python example of the docs can be parsed."""
    for code in blocks(page, "python"):
        compile(code, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_import_what_is_there(page: Path) -> None:
    """What an example imports from redrive can be imported from there, and is public there."""
    for code in blocks(page, "python"):
        tree = compile(code, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("redrive", "redrive_client"):
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    assert name == "*" or hasattr(module, name) or importlib.import_module(f"{node.module}.{name}"), (
                        name
                    )
                if node.module == "redrive":
                    assert {alias.name for alias in node.names} <= set(redrive.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture of the docs is there."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    """Its file, its commands in their order, and what it says that they do."""
    page = ROOT / "docs" / "tutorial.md"
    [code] = blocks(page, "python")
    (tmp_path / "invoices.py").write_text(code)
    install, add, work, look, redrive_it, foresee = blocks(page, "")
    assert "pip install redrive" in install
    environment = os.environ | {"COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "said.log"

    def begin(command: str) -> forks.Process:
        """The installed command is the same module; `make dist` follows this page with the wheel."""
        program, *given = shlex.split(command)
        assert program == "redrive"
        log.write_text("")
        return forks.run(*given, folder=tmp_path, log=log, environment=environment)

    def run(command: str) -> str:
        if command == "python invoices.py":
            ran = subprocess.run([sys.executable, "invoices.py"], cwd=tmp_path, env=environment, capture_output=True,
                                 text=True, timeout=PATIENCE_SECONDS)  # fmt: skip
            assert ran.returncode == 0, ran.stderr
            return ran.stdout
        assert begin(command).wait(PATIENCE_SECONDS) == 0, log.read_text()
        return log.read_text()

    def run_worker_until(command: str, text: str) -> str:
        worker = begin(command)
        ends = time.monotonic() + PATIENCE_SECONDS
        while text not in log.read_text() and time.monotonic() < ends:
            time.sleep(0.02)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(PATIENCE_SECONDS) == 0
        assert text in log.read_text()
        return log.read_text()

    added, listed = (run(line) for line in add.strip().splitlines())
    assert added == ""
    assert listed.count("waiting") == 2
    said = run_worker_until(work.strip(), "sent invoice 7 at try 3")
    assert "invoice 13 does not exist" in said
    listed, shown = (run(line) for line in look.strip().splitlines())
    assert "done" in listed and "dead" in listed
    assert "the mail server does not answer" in shown
    code = code.replace('    if invoice == 13:\n        raise PermanentError("invoice 13 does not exist")\n', "")
    assert "PermanentError(" not in code
    (tmp_path / "invoices.py").write_text(code)
    bring_back, work_again = redrive_it.strip().splitlines()
    run(bring_back)
    run_worker_until(work_again, "sent invoice 13 at try 3")
    assert "6" in run(foresee.strip())


def test_every_page_is_on_the_site() -> None:
    """The table of contents names each page once; the site is built by `make docs`."""
    text = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", text, re.MULTILINE)
    assert sorted(named) == sorted(
        page.relative_to(ROOT / "docs").as_posix() for page in PAGES if page.name != "README.md"
    )


def test_broken_links_of_the_site_are_found(tmp_path: Path) -> None:
    """A page or a heading that is not there, and a part that somebody else's server would have to give."""
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "index.html").write_text('<h1 id="top">x</h1><a href="../">back</a>')
    (tmp_path / "index.html").write_text(
        '<a href="guides/#top">a</a><a href="guides/#down">b</a><a href="gone/">c</a><a href="https://elsewhere.example/">d</a>'
        '<script src="https://elsewhere.example/x.js"></script>'
    )
    assert list(broken(tmp_path)) == [
        "index.html loads https://elsewhere.example/x.js from somebody else",
        "index.html links to guides/#down, but nothing there has that name",
        "index.html links to gone/, which is not there",
    ]
