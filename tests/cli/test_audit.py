"""`redrive audit`: one row for one act, what it changed, and whether all of it is still there."""

import asyncio

from sqlalchemy import text

from redrive.ledgers.open import open_database
from tests.cli.test_tasks import Run, dead_tasks


def in_database(url: str, statement: str) -> None:
    """What somebody does who has the database in hand."""

    async def work() -> None:
        database = open_database(url, durable=False)
        try:
            await database.write(lambda connection: connection.execute(text(statement)))
        finally:
            await database.close()

    asyncio.run(work())


def test_acts_are_listed_and_shown(stored: Run, url: str):
    """With who, from where, why and how many; the act on many opens to its tasks."""
    assert "nobody has acted" in stored("audit", "list").err
    dead_tasks(url, 3)
    assert stored("tasks", "redrive", "--kind", "mail", "--reason", "mended", "--yes").code == 0
    [act] = stored("audit", "list", "--json").json["acts"]
    assert (act["act"], act["amount"], act["reason"]) == ("redrive", 3, "mended")
    assert act["origin"].startswith("command line on ")
    assert "3 in redrive_task" in stored("audit", "list").out
    first = stored("audit", "show", str(act["id"]), "--limit", "2", "--json").json
    rest = stored("audit", "show", str(act["id"]), "--after", first["after"], "--json").json
    assert len({*first["things"], *rest["things"]}) == 3
    assert "changed 3 in redrive_task" in stored("audit", "show", str(act["id"])).out
    assert stored("audit", "show", "999").code == 1


def test_the_chain_is_verified(stored: Run, url: str):
    """Whole, then with a line that was changed, and with an end that was removed, by the head that was kept."""
    for user in ("ada", "bob", "eve"):
        stored("keys", "create", "--user", user, "--scope", "viewer")
    assert stored("audit", "verify", "--json").json["unlinked"] == 3
    head = stored("audit", "head").out.strip()
    whole = stored("audit", "verify", "--head", head)
    assert whole.code == 0
    assert "3 lines are as they were" in whole.err
    in_database(url, "DELETE FROM redrive_audit WHERE number = 3")
    assert stored("audit", "verify").code == 0
    missing = stored("audit", "verify", "--head", head)
    assert missing.code == 1
    assert "line 3 is missing at the end" in missing.err
    in_database(url, "UPDATE redrive_audit SET reason = 'nothing' WHERE number = 1")
    said = stored("audit", "verify", "--json")
    assert (said.code, said.json["findings"][0]["number"]) == (1, 1)
    assert stored("audit", "verify", "--head", "x").code == 2


def test_old_lines_are_pruned(stored: Run):
    """And the audit says by whom."""
    stored("keys", "create", "--user", "ada", "--scope", "viewer")
    assert stored("audit", "prune", "--older-than", "0s", "--reason", "space", "--json").json == {"pruned": 1}
    [act] = stored("audit", "list", "--json").json["acts"]
    assert (act["act"], act["ledger"], act["reason"]) == ("pruned", "redrive_audit", "space")
    assert stored("audit", "verify").code == 0
