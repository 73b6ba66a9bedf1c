"""Django's tasks on redrive: its documented contract, in a real project, on both databases."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from redrive.engine.own_loop import run_in_own_loop
from redrive.errors import NoResultError
from redrive.ledgers.sql.migrate import heads
from tests.breadth import WIDE

KIND = "django:"
ROOT = Path(__file__).parent.parent.parent
ROUNDS = int(os.environ.get("REDRIVE_TEST_ROUNDS", "1000" if WIDE else "200"))
"""How many transactions."""


def environment(store: str, url: str) -> dict[str, str]:
    """What a process of the shop is told."""
    database = {"SHOP_POSTGRES": url} if store == "postgres" else {"SHOP_FILE": url.removeprefix("sqlite:///")}
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "DJANGO_SETTINGS_MODULE": "examples.django_shop.settings"}
    return os.environ | database | path


def told(store: str, url: str) -> dict[str, Any]:
    """What was seen in the shop, on a database that nobody else has."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests/django/story.py"), str(ROUNDS)]
    ran = subprocess.run(command, cwd=ROOT, env=environment(store, url), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return seen


@pytest.mark.long_on("sqlite")
def test_a_real_project_works(store: str, empty_url: str) -> None:
    """One story, told once for each database, since a project takes seconds to start. Its parts are claims of their own below."""
    seen = told(store, empty_url)
    _no_task_without_its_row(seen)
    _results_say_what_happened(seen)
    _signals_are_those_of_django(seen)
    _the_contract_is_kept(seen)
    assert seen["admin"] == [200, True, 200, True], "the admin shows tasks and links to the dashboard"
    assert seen["model"] == ["shop_mail", "next_attempt_at", "attempts", "new", "gone", "lost"], (
        "names and words of a model"
    )
    assert (seen["sent"], seen["mail"]) == ("ada", "gone"), "and its rows are worked off"
    if store == "sqlite":
        _a_worker_of_the_project_works(empty_url)


def _a_worker_of_the_project_works(url: str) -> None:
    """`manage.py redrive worker` runs what is due, and stops when it is told to."""
    app, key = Redrive(url), "by hand"
    app.add_sync(
        f"{KIND}examples.django_shop.shop.tasks.refuse", {"args": [1], "kwargs": {}, "queue": "default"}, key=key
    )
    command = [sys.executable, "-W", "ignore", "-m", "examples.django_shop", "redrive", "worker", "--concurrency", "2"]
    worker = subprocess.Popen(command, cwd=ROOT, env=environment("sqlite", url), stderr=subprocess.PIPE, text=True)
    try:
        with pytest.raises(NoResultError, match="is dead: ValueError: order 1 is no order"):
            run_in_own_loop(lambda: app.result(key, wait=120), instead="")
        worker.send_signal(signal.SIGTERM)
        assert worker.communicate(timeout=60)[1] is not None
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.wait()
        run_in_own_loop(app.close, instead="")


def _no_task_without_its_row(seen: dict[str, Any]) -> None:
    """In hundreds of transactions, of which half are rolled back, there is no task without its order and no order without its task."""
    rounds = seen["rounds"]
    assert rounds["same"]
    assert rounds["orders"] == rounds["tasks"]
    assert 0.3 * ROUNDS < rounds["orders"] < 0.7 * ROUNDS
    assert (seen["uncommitted"], seen["rolled back"]) == ("READY", True)


def _results_say_what_happened(seen: dict[str, Any]) -> None:
    """Status, tries, errors, return value and times; a later one waits."""
    done, dead, late = seen["done"], seen["dead"], seen["late"]
    assert (seen["ready"], done["status"], done["attempts"], done["value"]) == (
        "READY",
        "SUCCESSFUL",
        2,
        "invoice of order 7",
    )
    assert done["errors"] == [["builtins.ConnectionError", "ConnectionError: mail server down"]]
    assert (dead["status"], dead["errors"]) == ("FAILED", [["builtins.ValueError", "ValueError: order 13 is no order"]])
    assert (seen["async"]["value"], seen["async"]["status"]) == (41, "SUCCESSFUL")
    assert (late["status"], late["times"], done["times"]) == ("READY", [True, False, False], [True, True, True])


def _the_contract_is_kept(seen: dict[str, Any]) -> None:
    """What the documentation of Django asks of a backend: it says what it supports, refuses what it does not, and stores nothing then."""
    invalid = {
        "a priority",
        "an unknown queue",
        "a time without a zone",
    }  # `InvalidTask`, or `InvalidTaskError` before Django 6
    assert {name for name, error in seen["refused"].items() if error.startswith("InvalidTask")} == invalid
    assert {name: error for name, error in seen["refused"].items() if name not in invalid} == {
        "what is not JSON": "TypeError",
        "an unknown id": "TaskResultDoesNotExist",
        "the result of another task": "TaskResultMismatch",
        "a return value before its time": "ValueError",
    }
    assert seen["supports"] == [True, True, True, False]
    assert (seen["left behind"], seen["awaited"], seen["its own"]) == (0, "SUCCESSFUL", True)


def test_a_project_changes_at_most_five_lines_of_its_settings() -> None:
    """Those that are marked in the settings of the example, which are those of the guide, and `django_tasks` before Django 6."""
    marked = [
        line for line in (ROOT / "examples/django_shop/settings.py").read_text().splitlines() if "# redrive" in line
    ]
    assert 0 < len(marked) + 1 <= 5
    guide = (ROOT / "docs/guides/django.md").read_text()
    assert [line for line in marked if line.partition("#")[0].strip() not in guide] == []


def _signals_are_those_of_django(seen: dict[str, Any]) -> None:
    """Enqueued, started with each try, finished once: when it is done, or when it is dead."""
    said = seen["signals"]
    assert said.count("started send_invoice RUNNING") == 2
    assert said.count("finished send_invoice SUCCESSFUL") == 1
    assert said.count("finished refuse FAILED") == 1
    assert sum(one.startswith("enqueued") for one in said) == 5


def test_the_newest_migration_of_django_names_the_newest_tables() -> None:
    """Whoever changes redrive's tables adds a migration of Django's, or `manage.py migrate` would not bring them."""
    newest = max((ROOT / "src/redrive/django/migrations").glob("0*.py"))
    assert f"`{heads(())['engine']}`" in newest.read_text()


@pytest.mark.parametrize(
    ("said", "expected"), [(["redrive"], "required: command"), (["redrive", "worker", "--backend", "x"], "x")]
)
def test_the_command_says_what_is_wrong(tmp_path: Path, said: list[str], expected: str) -> None:
    """`manage.py redrive` without a command, and with a backend that is not there."""
    command = [sys.executable, "-W", "ignore", "-m", "examples.django_shop", *said]
    told_of = environment("sqlite", str(tmp_path / "shop.db"))
    ran = subprocess.run(command, cwd=ROOT, env=told_of, capture_output=True, text=True)
    assert ran.returncode != 0
    assert expected in ran.stderr
