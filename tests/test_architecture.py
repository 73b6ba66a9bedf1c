"""The house: who may know whom, read from the code itself, imports inside functions and under TYPE_CHECKING included."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import redrive

PACKAGE = Path(redrive.__file__).parent
DOORS = {
    "redrive", "redrive.app", "redrive.errors", "redrive.events", "redrive.extend", "redrive.gates", "redrive.items", "redrive.lane", "redrive.policies",
    "redrive.queues", "redrive.settings", "redrive.sql",
}  # fmt: skip
"""Modules whose names a system may use."""
ROOMS = {"access", "http", "observe", "operator"}
"""Rooms of which a system may use any module: they are made for systems as for the service."""
TESTS = Path(__file__).parent
KINDS_OF_TESTS = {"browser", "examples", "faults"}
"""Folders of tests that ask the whole of redrive, from outside."""
OF_NO_SINGLE_MODULE = {
    # the house, the suite, and what is shipped with both
    "test_architecture.py", "test_breadth.py", "test_clock_from_below_zero.py", "test_deploy.py", "test_dist.py", "test_proof.py",
    # pages of the docs, word by word
    "test_docs.py", "test_docs_run.py", "django/test_guide.py", "systems/commands/test_docs.py", "systems/relay/test_docs.py",
    "systems/triggers/test_examples.py", "systems/webhooks/test_docs.py",
    # all commands
    "cli/test_commands.py", "cli/test_demo.py", "cli/test_on_items.py",
    # all routes
    "stores/test_service_on_items.py", "web/test_error_form.py", "web/test_keys_first.py", "web/test_nothing_is_a_fault.py",
    "web/test_open.py", "web/test_reads_need_no_write.py", "web/test_walk.py",
    # all ledgers, and whole ways through one
    "engine/test_simulation.py", "ledgers/test_conformance.py", "ledgers/test_one_bad_row.py", "ledgers/test_one_locked_row.py",
    "ledgers/test_payloads.py", "ledgers/sql/test_plans.py", "ledgers/aws/test_cut_calls.py", "ledgers/aws/test_faults.py",
    "ledgers/aws/test_one_bad_head.py", "ledgers/aws/test_worker.py", "operator/aws/test_calls.py", "operator/aws/test_cuts.py",
    "operator/verdict/test_outages.py",
    # whole systems
    "systems/test_extras.py", "systems/commands/test_fence.py", "systems/commands/test_operator_ledger.py",
    "systems/relay/test_flow.py", "systems/triggers/test_client.py", "systems/triggers/aws/test_cut_calls.py",
    "systems/triggers/aws/test_functions.py", "systems/triggers/aws/test_insights.py", "systems/triggers/aws/test_template.py",
}  # fmt: skip
"""Files of tests whose claims more than one module keeps."""
HEAVY = {
    "aio_pika", "aiobotocore", "alembic", "apprise", "asyncpg", "botocore", "cryptography", "fastapi", "httpx", "jinja2", "pgmq",
    "re2", "starlette", "uvicorn",
}  # fmt: skip
"""What only some commands need, and takes long to import."""
NOT_FOR_A_LIBRARY = {"prometheus_client", "pydantic", "pydantic_settings", "rich", "structlog", "typer"}
"""What an application that says `import redrive` does not need until it uses it."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name; generated code is not ours."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("redrive", *path.relative_to(PACKAGE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.endswith("_pb2"):
            found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The module and the name of each import of ours, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "redrive":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, "") if inner in modules() else (node.module, alias.name)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "redrive")


def test_no_module_imports_itself_by_a_detour():
    """There are no cycles, also not through imports inside functions or for types alone."""
    graph = {name: {module for module, _ in imports(tree)} - {name} for name, tree in modules().items()}
    while leaves := {name for name, known in graph.items() if not known & graph.keys()}:
        for name in leaves:
            del graph[name]
    # What is left imports, at least indirectly, something in a cycle; the core of it imports each other.
    while tops := {name for name in graph if not any(name in known for known in graph.values())}:
        for name in tops:
            del graph[name]
    assert sorted(graph) == []


def test_systems_come_in_by_the_doors():
    """A system uses the public doors, the rooms made for it, the kit and itself, and nothing else, whatever way it imports."""
    strange = []
    for name, tree in modules().items():
        if not name.startswith("redrive.systems."):
            continue
        own = ".".join(name.split(".")[:3])
        for module, _ in imports(tree):
            inside = module == own or module.startswith((f"{own}.", "redrive.systems.kit."))
            room = module.split(".")[1] if module.count(".") else ""
            if not (inside or module in DOORS or room in ROOMS):
                strange.append(f"{name} -> {module}")
    assert strange == []


def test_a_door_lists_what_it_hands_on():
    """What a system takes from a door is defined there or in its `__all__`: nothing of an inner room slips through unnamed."""
    slipped = []
    for name, tree in modules().items():
        if not name.startswith("redrive.systems."):
            continue
        for module, taken in imports(tree):
            if module not in DOORS or not taken:
                continue
            door = modules()[module]
            listed = {
                element.value
                for node in door.body
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__"
                for element in node.value.elts
            }
            defined = {getattr(node, "name", None) for node in door.body} | {
                target.id
                for node in door.body
                if isinstance(node, ast.Assign | ast.AnnAssign)
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name)
            }
            if taken not in listed | defined:
                slipped.append(f"{name} takes {taken} from {module}")
    assert slipped == []


def test_a_class_name_has_one_owner():
    """No two modules define a class of the same name: a word means one thing. Django asks for `Migration` in each of its files."""
    owners = defaultdict(list)
    for name, tree in modules().items():
        if name.startswith("redrive.django.migrations."):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners[node.name].append(name)
    assert {name: where for name, where in owners.items() if len(where) > 1} == {}


def test_every_module_says_what_it_is():
    """The first line of a file tells a reader whether to read on."""
    silent = [name for name, tree in modules().items() if tree.body and not ast.get_docstring(tree)]
    assert Counter(silent) == Counter({"redrive._version": 1})


def test_no_clock_starts_at_zero():
    """What never happened was at minus infinity, or None: on a machine that has just come up, zero of its clock is a moment ago."""
    at_zero = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value in (0, 0.0)
        for target in node.targets
        if re.search(r"(_at|_since)$", getattr(target, "attr", getattr(target, "id", "")))
    ]
    assert at_zero == []


def test_tests_stand_where_their_code_does():
    """Each folder of tests is a room of the package, or a kind of test that is listed here: one knows where to look."""
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    strange = [
        str(folder)
        for folder in sorted(folders)
        if folder.parts[0] not in KINDS_OF_TESTS and not (PACKAGE / folder / "__init__.py").exists()
    ]
    assert strange == []


def test_a_behaviour_is_found_by_the_name_of_its_file():
    """A file of tests is called after the module whose claims it holds, or says more behind that name; a claim that no single module keeps is listed here."""
    strange = set()
    for path in TESTS.rglob("test_*.py"):
        place = path.relative_to(TESTS)
        if place.parts[0] in KINDS_OF_TESTS:
            continue
        # A claim of all stores stands in the room above theirs.
        below = (PACKAGE / place.parent).rglob("*.py") if len(place.parts) > 1 else PACKAGE.glob("*")
        names = {name for one in below for name in (one.stem, one.parent.name)}
        stem = place.stem.removeprefix("test_")
        if not any(stem == name or stem.startswith(f"{name}_") for name in names):
            strange.add(place.as_posix())
    assert strange == OF_NO_SINGLE_MODULE


@pytest.mark.parametrize(
    ("started", "unwanted"),
    [("import redrive", HEAVY | NOT_FOR_A_LIBRARY), ("from redrive.cli import app; app(['--help'], standalone_mode=False)", HEAVY)],
    ids=["import redrive", "redrive --help"],
)  # fmt: skip
def test_starting_imports_only_what_is_used(started: str, unwanted: set[str]):
    """A program does not wait for the modules of what it may never do: they are imported when they are used."""
    look = f"import sys; {started}; print('imported:', *{{name.split('.')[0] for name in sys.modules}})"
    said = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout
    imported = said.rpartition("imported:")[2].split()
    assert "redrive" in imported
    assert unwanted.intersection(imported) == set()
