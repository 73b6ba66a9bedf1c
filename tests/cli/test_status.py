"""`redrive status` and `redrive top`: the sentences of the first page on a terminal."""

import asyncio
from datetime import timedelta

import pytest

from redrive.operator import census_pace
from tests.cli.everywhere import dead_everywhere
from tests.cli.test_tasks import Run, dead_tasks


def test_a_store_without_trouble_is_well(stored: Run) -> None:
    """Exit code 0, one sentence, and the same as JSON."""
    said = stored("status")
    assert (said.code, said.out.splitlines()[0]) == (0, "All is well")
    whole = stored("status", "--json")
    assert (whole.code, whole.json["well"], whole.json["troubles"]) == (0, True, [])


def test_what_is_due_while_nobody_works_is_told_at_once(stored: Run) -> None:
    """Nothing is called on time that no worker takes; what is not due yet waits in peace."""
    assert stored("tasks", "add", "mail", "--delay", "1h").code == 0
    assert stored("status").code == 0
    assert stored("tasks", "add", "mail").code == 0
    said = stored("status")
    assert (said.code, said.out.splitlines()[0]) == (1, "One thing needs you")
    assert "No worker is running, and tasks are due" in said.out
    assert "Start a worker: redrive worker MODULE:APP." in said.out


def test_dead_tasks_are_told_with_what_is_safe(stored: Run, url: str) -> None:
    """Exit code 1; without --app the kind, the error and the number are told, and no secret."""
    dead_tasks(url, 3)
    said = stored("status")
    assert said.code == 1
    assert said.out.splitlines()[0] == "3 tasks are dead, not recovered"
    assert "3 tasks of mail died." in said.out
    assert "Dead tasks stay dead" in said.out or "dead tasks stay dead" in said.out
    assert "hunter2" not in said.out
    [trouble] = stored("status", "--json").json["troubles"]
    assert (trouble["rank"], trouble["kind"], trouble["button"]) == ("dead", "mail", None)
    assert trouble["beside"]["warning"].startswith("This will most likely fail.")


def test_what_people_have_dealt_with_is_not_told_any_more(
    stored: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no service runs that counts from time to time: what is dead is counted before it is told."""
    monkeypatch.setattr(census_pace, "REST_MIN", timedelta(0))
    dead_tasks(url, 3)
    assert stored("status").code == 1
    assert stored("tasks", "resolve", "--kind", "mail", "--reason", "sent by hand", "--at-most", "1", "--yes").code == 0
    assert "2 tasks of mail died." in stored("status").out
    assert stored("tasks", "resolve", "--kind", "mail", "--reason", "sent by hand", "--yes").code == 0
    said = stored("status")
    assert (said.code, said.out.splitlines()[0]) == (0, "All is well")


def test_many_deaths_at_once_need_somebody(stored: Run, url: str) -> None:
    """And the command that pauses the kind is printed; `top` shows the same, with the kinds."""
    dead_tasks(url, 12)
    said = stored("status")
    assert said.out.splitlines()[0] == "One thing needs you"
    assert "mail has been failing since " in said.out
    assert "100% of 12 tries, PermanentError: mailbox full" in said.out
    assert "redrive gates pause --kind mail --lane redrive_task --reason WHY" in said.out
    seen = stored("top", "--looks", "1")
    assert seen.code == 0
    assert "One thing needs you" in seen.out
    assert "100%" in seen.out


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_the_ledgers_of_all_systems_are_seen(redrive: Run, url: str) -> None:
    """A command in its PGMQ queue beside tables of others: each dead one is told, and what to type for it."""
    ledgers = asyncio.run(dead_everywhere(url))
    said = redrive("status", "--database", url)
    assert said.code == 1, said.err
    assert said.out.splitlines()[0] == f"{len(ledgers)} tasks are dead, not recovered"
    seen = redrive("top", "--looks", "1", "--database", url)
    assert seen.code == 0, seen.err
    figures = redrive("status", "--json", "--database", url).json["strip"]
    assert next(one["value"] for one in figures if one["name"] == "Dead") == str(len(ledgers))
