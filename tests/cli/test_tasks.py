"""`redrive tasks`: looking and acting, on both databases."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Exponential, Filter, PermanentError, Policy, Redrive, State, Task, jitter, seconds
from redrive.app import WorkerSettings
from redrive.lane import NewTask
from redrive.operator.sql.census import SqlCensus
from redrive.operator.sql.figures import SqlFigures

from .everywhere import dead_everywhere
from .said import Said, execute

Run = Callable[..., Said]
WHY = ("--reason", "mended")

APPLICATION = """
from redrive import *
app = Redrive({url!r})
@app.handler("mail", policy=Policy(Schedule([minutes(1), minutes(5)]), retries=2, jitter=jitter.none, name="mail"))
def mail(task): ...
"""


def dead_tasks(url: str, amount: int = 3, kind: str = "mail") -> list[int]:
    """Tasks that have failed for good, with their history."""

    async def make() -> list[int]:
        app = Redrive(url)

        @app.handler(kind, policy=Policy(Exponential(seconds(1), seconds(1)), retries=1, jitter=jitter.none))
        async def fail(task: Task) -> None:
            raise PermanentError(f"mailbox full, password=hunter2 ({task.key})")

        async with app:
            added = await app.add_many([NewTask(kind=kind, key=f"{kind}-{n}", payload={"n": n}) for n in range(amount)])
            workers = app.workers(WorkerSettings())
            working = asyncio.create_task(workers.run())
            while len((await app.tasks.find(Filter(state=State.DEAD, kind=kind))).items) < amount:
                await asyncio.sleep(0.01)
            workers.stop()
            await working
            return [int(str(one.id)) for one in added]

    return asyncio.run(make())


def test_add_list_show(stored: Run):
    """A task that was added can be listed and shown, by id and by key."""
    added = stored(
        "tasks", "add", "mail", '{"to": "x", "api_key": "s3cret-value"}', "--key", "m-1", "--delay", "1h", "--json"
    )
    assert added.code == 0
    assert added.json["new"] is True
    listed = stored("tasks", "list", "--json").json
    assert [(task["key"], task["state"]) for task in listed["tasks"]] == [("m-1", "waiting")]
    assert listed["after"] is None
    by_key, by_id = (stored("tasks", "show", name, "--json").json for name in ("m-1", str(added.json["id"])))
    assert by_key == by_id
    assert by_key["payload"] == {"to": "x", "api_key": "[redacted]"}
    assert by_key["to_come"] is None
    shown = stored("tasks", "show", "m-1")
    assert "no attempts" in shown.out
    assert "s3cret-value" not in shown.out
    assert re.search(r"\bin (59m|1h)\b", stored("tasks", "list").out)


def test_add_again_adds_nothing(stored: Run):
    """Adding is idempotent on the key, and says so."""
    first = stored("tasks", "add", "mail", "--key", "m-1", "--json").json
    again = stored("tasks", "add", "mail", "--key", "m-1", "--json").json
    assert (again["id"], again["new"], again["same_payload"]) == (first["id"], False, True)
    assert "has this key already; nothing was added" in stored("tasks", "add", "mail", "--key", "m-1").err
    other = stored("tasks", "add", "mail", '{"to": "x"}', "--key", "m-1")
    assert (other.code, "has this key already, with another payload; nothing was added" in other.err) == (0, True)
    taken = stored("tasks", "add", "fax", "--key", "m-1")
    assert taken.code == 2
    assert "belongs to a task of kind 'mail'" in taken.err


def test_payload_comes_from_stdin(stored: Run):
    """`-` reads the payload, which must be JSON."""
    assert stored("tasks", "add", "mail", "-", "--key", "a", input='{"big": 1}').code == 0
    assert stored("tasks", "show", "a", "--json").json["payload"] == {"big": 1}
    wrong = stored("tasks", "add", "mail", "{to: x}")
    assert wrong.code == 2
    assert "the payload is not JSON" in wrong.err


def test_list_filters_and_pages(stored: Run, url: str):
    """Filters narrow, pages go on where the last one ended."""
    ids = dead_tasks(url)
    stored("tasks", "add", "other")
    assert [task["id"] for task in stored("tasks", "list", "--state", "dead", "--json").json["tasks"]] == ids
    assert stored("tasks", "list", "--kind", "other", "--json").json["tasks"][0]["kind"] == "other"
    assert len(stored("tasks", "list", "--error", "mailbox full", "--json").json["tasks"]) == 3
    assert stored("tasks", "list", "--error", "100%", "--json").json["tasks"] == []
    assert stored("tasks", "list", "--older-than", "1h", "--json").json["tasks"] == []
    page = stored("tasks", "list", "--state", "dead", "--limit", "2", "--json").json
    rest = stored("tasks", "list", "--state", "dead", "--limit", "2", "--after", str(page["after"]), "--json").json
    assert [task["id"] for task in page["tasks"] + rest["tasks"]] == ids
    assert rest["after"] is None


def test_show_explains_every_try(stored: Run, url: str):
    """Each attempt comes with its error, redacted, and the sentence that explains the decision."""
    [id_] = dead_tasks(url, 1)
    [attempt] = stored("tasks", "show", str(id_), "--json").json["attempts"]
    assert attempt["sentence"] == "permanent by rule PermanentError; failure 1 of 2: dead (permanent)"
    said = stored("tasks", "show", str(id_)).out
    assert attempt["sentence"] in said
    assert "mailbox full" in said
    assert "hunter2" not in said
    [raised] = attempt["stack"]
    where = f"{raised['frames'][-1]['file']}:{raised['frames'][-1]['line']} in fail"
    assert where.startswith("tests/cli/test_tasks.py:")
    assert where in said


def test_errors_of_strangers_are_redacted(stored: Run, url: str):
    """An error that another program wrote into the row is shown without its secrets, in the list too."""
    [id_] = dead_tasks(url, 1)
    told = "refused: token=tok-hunter3"
    asyncio.run(
        execute(url, f"UPDATE redrive_task SET last_error = '{told}'", f"UPDATE redrive_attempt SET error = '{told}'")
    )
    for said in (stored("tasks", "list").out, stored("tasks", "show", str(id_)).out):
        assert "refused" in said
        assert "hunter3" not in said


def test_show_what_is_not_there(stored: Run):
    """An id or key that nobody has is a problem, not an empty page."""
    for name in ("77", "nobody", "9" * 30):
        missing = stored("tasks", "show", name, "--json")
        assert (missing.code, missing.out) == (1, "")
        assert "there is no task" in missing.err


def test_retries_to_come_need_the_policy(redrive: Run, url: str, application: Callable[[str], str]):
    """With the application the exact times of the retries are shown."""
    path = application(APPLICATION.format(url=url))
    redrive("tasks", "add", "mail", "--key", "m-1", "--app", path)
    shown = redrive("tasks", "show", "m-1", "--app", path, "--json").json
    assert [(one["number"], one["delay_seconds"]) for one in shown["to_come"]] == [(1, 0), (2, 60), (3, 300)]
    assert "to come, if every try fails" in redrive("tasks", "show", "m-1", "--app", path).out


def test_redrive_by_id(stored: Run, url: str):
    """One task needs no confirmation; who and why are kept."""
    first, second = dead_tasks(url, 2)
    done = stored("tasks", "redrive", str(first), "--reason", "mail is back", "--by", "ada", "--json")
    assert done.code == 0
    assert done.json == {
        "act": "redrive", "matched": 1, "changed": [{"ledger": "redrive_task", "id": first}], "refused": [], "until": None,
        "dry_run": False, "unseen": {},
    }  # fmt: skip
    shown = stored("tasks", "show", str(first), "--json").json
    assert (shown["state"], shown["failures"], shown["redrives"]) == ("waiting", 0, 1)
    assert [(deed["act"], deed["actor"], deed["reason"]) for deed in shown["deeds"]] == [
        ("redrive", "ada", "mail is back")
    ]
    assert stored("tasks", "show", str(second), "--json").json["state"] == "dead"
    again = stored("tasks", "redrive", str(first), "--reason", "once more", "--json")
    assert (again.code, again.json["changed"]) == (1, [])
    reason = "it is waiting: only dead tasks can be redriven"
    assert again.json["refused"] == [{"ledger": "redrive_task", "id": first, "reason": reason}]


def test_redrive_by_filter_asks_first(stored: Run, url: str):
    """More than one task is changed only after a yes, and a dry run only counts."""
    dead_tasks(url)
    counted = stored("tasks", "redrive", "--kind", "mail", "--dry-run", "--json")
    assert (counted.code, counted.json["matched"], counted.json["changed"]) == (0, 3, [])
    refused = stored("tasks", "redrive", "--error", "mailbox", *WHY, input="n\n")
    assert refused.code == 1
    assert "redrive 3 tasks?" in refused.err
    nobody = stored("tasks", "redrive", "--all", *WHY, input="")
    assert nobody.code == 1
    assert len(stored("tasks", "list", "--state", "dead", "--json").json["tasks"]) == 3
    agreed = stored("tasks", "redrive", "--all", *WHY, input="y\n")
    assert agreed.code == 0
    assert "3 of 3 changed" in agreed.err
    assert stored("tasks", "redrive", "--all", *WHY).code == 1


def test_ids_and_keys_are_mixed(stored: Run, url: str):
    """A task is named by either; one wrong name stops it all, and a name of two tasks is refused."""
    first, second = dead_tasks(url, 2)
    wrong = stored("tasks", "redrive", "mail-1", "typo", *WHY, "--yes")
    assert (wrong.code, "no task with the id or key 'typo'" in wrong.err) == (2, True)
    assert stored("tasks", "show", "mail-1", "--json").json["state"] == "dead"
    done = stored("tasks", "redrive", str(first), "mail-1", *WHY, "--yes", "--json")
    assert [one["id"] for one in done.json["changed"]] == [first, second]
    stored("tasks", "add", "mail", "--key", str(first))
    for command in (["cancel", str(first), *WHY], ["show", str(first)]):
        two = stored("tasks", *command)
        assert (two.code, "is the id of one task and the key of another" in two.err) == (2, True)
    assert stored("tasks", "cancel", "--key", str(first), *WHY, "--json").json["matched"] == 1
    gone = stored("tasks", "redrive", "99999", *WHY)
    assert (gone.code, "task 99999 was left alone: there is no such task" in gone.err) == (1, True)


def test_an_act_takes_what_was_counted(stored: Run, url: str):
    """`--until` takes only what was dead then, `--at-most` no more than so many."""
    dead_tasks(url)
    seen = stored("tasks", "redrive", "--all", "--dry-run", "--json").json
    assert (seen["matched"], bool(seen["until"])) == (3, True)
    early = stored("tasks", "redrive", "--all", "--until", "2020-01-01T00:00:00Z", *WHY)
    assert (early.code, "no task matches" in early.err) == (1, True)
    listed = stored("tasks", "list", "--state", "dead", "--until", seen["until"], "--json").json
    assert len(listed["tasks"]) == 3
    some = stored("tasks", "redrive", "--all", "--until", seen["until"], "--at-most", "2", *WHY, "--yes", "--json").json
    assert (some["matched"], len(some["changed"])) == (2, 2)
    wrong = stored("tasks", "list", "--until", "yesterday")
    assert (wrong.code, "until is an instant such as" in wrong.err) == (2, True)
    assert stored("tasks", "redrive", "--until", seen["until"], *WHY).code == 2


def test_a_cause_is_a_filter(stored: Run, url: str):
    """What the dashboard groups can be listed and redriven by its cause."""
    dead_tasks(url, 2)

    async def counted() -> str:
        app = Redrive(url)
        async with app:
            await SqlCensus(await app.tasks.ledger()).take()
            return (await SqlFigures(app.database).groups(["redrive_task"]))[0].id

    cause = asyncio.run(counted())
    page = stored("tasks", "list", "--cause", cause, "--limit", "1", "--json").json
    rest = stored("tasks", "list", "--cause", cause, "--after", page["after"], "--json").json
    assert [task["key"] for task in page["tasks"] + rest["tasks"]] == ["mail-0", "mail-1"]
    assert stored("tasks", "redrive", "--cause", "another", *WHY).code == 1
    assert len(stored("tasks", "redrive", "--cause", cause, *WHY, "--yes", "--json").json["changed"]) == 2
    wrong = stored("tasks", "list", "--cause", cause, "--state", "done")
    assert (wrong.code, "only dead tasks are grouped by cause" in wrong.err) == (2, True)


def test_cancel(stored: Run):
    """Waiting tasks end as cancelled; `--yes` does not ask."""
    for _ in range(2):
        stored("tasks", "add", "mail")
    done = stored("tasks", "cancel", "--kind", "mail", *WHY, "--yes", "--json").json
    assert len(done["changed"]) == 2
    assert {task["state"] for task in stored("tasks", "list", "--json").json["tasks"]} == {"cancelled"}


def test_resolve(stored: Run, url: str):
    """Dead tasks end as done, or with `--as` as cancelled, by name or by filter, with who and why on record."""
    first, *others = dead_tasks(url)
    counted = stored("tasks", "resolve", "--kind", "mail", "--dry-run")
    assert (counted.code, "would resolve 3 tasks" in counted.err) == (0, True)
    done = stored("tasks", "resolve", "mail-0", "--reason", "paid by hand", "--by", "ada", "--json")
    assert (done.code, [one["id"] for one in done.json["changed"]]) == (0, [first])
    deed = stored("tasks", "show", "mail-0", "--json").json["deeds"][0]
    assert (deed["act"], deed["actor"], deed["reason"]) == ("resolve", "ada", "paid by hand")
    assert stored("tasks", "resolve", "--kind", "mail", "--as", "cancelled", *WHY, "--yes").code == 0
    listed = stored("tasks", "list", "--json").json["tasks"]
    assert [task["state"] for task in listed] == ["done", *["cancelled"] * len(others)]
    nothing = stored("tasks", "resolve", "--all", *WHY, "--yes")
    assert (nothing.code, "only dead tasks can be resolved" in nothing.err) == (1, True)


def test_acting_on_nothing_in_particular_is_refused(stored: Run):
    """Forgetting the filter must not mean everything."""
    for act in ("redrive", "cancel", "resolve"):
        refused = stored("tasks", act, "--yes")
        assert refused.code == 2
        assert "say which tasks" in refused.err
        wrong = stored("tasks", act, "seven", *WHY, "--yes")
        assert wrong.code == 2
        assert "no task with the id or key 'seven'" in wrong.err


def test_acting_without_a_reason_is_refused(stored: Run):
    """Whoever acts says why, here as in the dashboard; who only counts need not."""
    stored("tasks", "add", "mail", "--key", "m-1")
    for act in ("redrive", "cancel"):
        for reason in ([], ["--reason", "  "]):
            refused = stored("tasks", act, "m-1", *reason)
            assert (refused.code, refused.out) == (2, "")
            assert "say why: --reason is kept with each task" in refused.err
    assert stored("tasks", "cancel", "m-1", "--dry-run", "--json").json["matched"] == 1
    assert stored("tasks", "show", "m-1", "--json").json["state"] == "waiting"


# --- all ledgers of a database --------------------------------------------------------------------------------------


def test_dead_tasks_of_all_ledgers_are_listed(stored: Run, url: str):
    """Without an application too: whoever looks for dead tasks hears of those of every system that has tables here."""
    keys = asyncio.run(dead_everywhere(url))
    assert len(keys) == 6
    listed = stored("tasks", "list", "--state", "dead", "--json").json
    assert {task["ledger"]: task["key"] for task in listed["tasks"]} == keys
    assert (listed["after"], listed["unseen"]) == (None, {})
    assert all(ledger in stored("tasks", "list", "--state", "dead").out for ledger in keys)


def test_pages_go_on_from_ledger_to_ledger(stored: Run, url: str):
    """One task after the other, none twice, until there is no more."""
    keys = asyncio.run(dead_everywhere(url))
    seen, after = [], ()
    for _ in keys:
        page = stored("tasks", "list", "--state", "dead", "--limit", "1", "--json", *after).json
        seen += [(task["ledger"], task["key"]) for task in page["tasks"]]
        after = ("--after", page["after"]) if page["after"] else ()
    assert (seen, after) == (list(keys.items()), ())
    assert stored("tasks", "list", "--after", "nowhere:1").code == 2


def test_keys_work_wherever_ids_do(stored: Run, url: str):
    """In every ledger, whatever its ids are: shown, counted and redriven by key, without saying where."""
    for ledger, key in asyncio.run(dead_everywhere(url)).items():
        where = ("--lane", ledger) if key.isdigit() else ()  # schedules of flags have numbers alone, as others have
        shown = stored("tasks", "show", key, *where, "--json").json
        assert (shown["ledger"], shown["key"]) == (ledger, key)
        by_id = stored("tasks", "show", str(shown["id"]), "--lane", ledger, "--json").json
        assert by_id["key"] == key
        done = stored("tasks", "redrive", key, *where, *WHY, "--json").json
        assert done["changed"] == [{"ledger": ledger, "id": shown["id"]}]


def test_a_name_of_two_ledgers_is_not_guessed_at(stored: Run, url: str):
    """Two tasks with one name are told apart by their ledger alone."""
    number = asyncio.run(dead_everywhere(url))["feature_flag_schedules"]
    for command in (["show", number], ["redrive", number, *WHY]):
        said = stored("tasks", *command)
        assert (said.code, "choose one with --lane" in said.err) == (2, True)
    assert stored("tasks", "show", number, "--lane", "redrive_task").code == 0


def test_an_act_by_a_filter_reaches_all_ledgers(stored: Run, url: str):
    """What was listed is what is acted on; how many are where is said before."""
    keys = asyncio.run(dead_everywhere(url))
    said = stored("tasks", "redrive", "--all", "--dry-run")
    assert "would redrive 6 tasks (1 of redrive_task, " in said.err
    some = stored("tasks", "redrive", "--all", "--at-most", "2", *WHY, "--yes", "--json").json
    assert [one["ledger"] for one in some["changed"]] == list(keys)[:2]
    rest = stored("tasks", "redrive", "--all", *WHY, "--yes", "--json").json
    assert [one["ledger"] for one in rest["changed"]] == list(keys)[2:]
    asked = stored("tasks", "cancel", "--kind", "mail", "--dry-run", "--json").json
    assert asked["matched"] == 1
    assert "feature_flag_schedules" in asked["unseen"]


@pytest.mark.parametrize("group", ["tasks", "gates", "effects", "operations"])
def test_what_cannot_be_looked_at_is_said(group: str, stored: Run, url: str):
    """An adopted table is known to its application alone: no list lets one believe that all is well there."""
    columns = "(minute, ledger, worker, done) VALUES ('2030-01-01 00:00:00', 'shop_event', 'w', 1)"
    asyncio.run(execute(url, f"INSERT INTO redrive_minute {columns}"))
    said = stored(group, "list")
    assert "not looked at: shop_event: only the application knows how to read it" in said.err
    assert "shop_event" in stored("tasks", "list", "--json").json["unseen"]


def test_adopted_tables_are_lanes(redrive: Run, url: str, application: Callable[[str], str]):
    """Lanes of an application are reached by name, and an unknown one says what there is."""
    path = application(
        APPLICATION.format(url=url) + 'events = app.adopt(LedgerTable("shop_event", kind="kind", payload="payload"))\n'
    )
    missing = redrive("tasks", "list", "--app", path)
    assert missing.code == 1
    assert "there is no such table" in missing.err
    wrong = redrive("tasks", "list", "--database", url, "--lane", "shop_event")
    assert wrong.code == 2
    assert "there is no lane 'shop_event': the application has redrive_task" in wrong.err


def test_a_missing_file_is_not_made_by_looking(redrive: Run, folder: Path):
    """Looking in the wrong folder is an error, and leaves no empty database behind."""
    for command in (["tasks", "list"], ["tasks", "show", "1"], ["tasks", "redrive", "1", *WHY], ["keys", "list"]):
        missing = redrive(*command)
        assert missing.code == 2
        assert "there is no database file" in missing.err
    assert list(folder.iterdir()) == []


def test_unmigrated_store_says_what_to_do(redrive: Run, postgres):
    """PostgreSQL is migrated on purpose only; the error names the command."""
    said = redrive("tasks", "list", "--database", asyncio.run(postgres.create()))
    assert said.code == 1
    assert "run `redrive migrate`" in said.err


def test_a_store_that_is_away_is_one_line(redrive: Run):
    """No traceback, whatever the driver raised, and no password."""
    said = redrive("tasks", "list", "--database", "postgresql://ada:hunter2@127.0.0.1:1/none")
    assert said.code == 1
    assert said.err.startswith("redrive: PostgreSQL cannot be reached now")
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.err


def test_a_database_that_is_not_there_is_one_line(redrive: Run, postgres):
    """What the server refuses is said in its words."""
    said = redrive("tasks", "list", "--database", postgres.url_of("no_such_database"))
    assert said.code in (1, 2)
    assert "no_such_database" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://", "sqlite:////no/such/folder/x.db"])
def test_a_wrong_url_is_one_line(redrive: Run, url: str):
    """A URL that cannot be used is a usage error that says what can."""
    said = redrive("tasks", "add", "x", "--database", url)
    assert said.code == 2
    assert said.err.startswith("redrive: ")


def test_list_is_readable_in_a_narrow_terminal(stored: Run, monkeypatch: pytest.MonkeyPatch):
    """Ids and states are whole at 80 columns, however long keys and errors are."""
    stored("tasks", "add", "mail", "--key", "k" * 400)
    monkeypatch.setenv("COLUMNS", "80")
    lines = stored("tasks", "list").out.splitlines()
    assert lines[1].split()[:3] == ["1", "waiting", "mail"]
    assert max(map(len, lines)) <= 80


def test_markup_in_data_stays_text(stored: Run):
    """What strangers wrote is printed as it is."""
    stored("tasks", "add", "[red]kind[/]", json.dumps({"a": "[bold]x[/]"}), "--key", "[/]")
    assert "[red]kind[/]" in stored("tasks", "list").out
    shown = stored("tasks", "show", "[/]").out
    assert "[bold]x[/]" in shown


def test_terminal_escapes_in_data_stay_text(stored: Run, url: str):
    """Keys, kinds, errors and payloads of strangers reach no clipboard, move no cursor and turn no line around, in any output."""
    hostile = "\x1b]52;c;ZXZpbA==\x07\x9b31m\u202e"
    stored("tasks", "add", f"kind{hostile}", json.dumps({"text": hostile}), "--key", f"key{hostile}")
    [task] = stored("tasks", "list", "--json").json["tasks"]
    assert task["key"] == f"key{hostile}"
    shown = [
        stored("tasks", "list"),
        stored("tasks", "list", "--json"),
        stored("tasks", "show", str(task["id"])),
        stored("tasks", "show", str(task["id"]), "--json"),
        stored("tasks", "show", f"missing{hostile}"),
    ]
    for said in shown:
        assert not set(said.out + said.err) & set("\x1b\x07\x9b\u202e"), said
