"""The operator's routes over HTTP: looking at commands, acting on those that wait for a person, and who may."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, event, text

from redrive.errors import TooSlowError
from redrive.ports import Actor
from redrive.systems.commands import BusinessRuleError, CommandStatus, NewCommand, reader
from tests.systems.commands.conftest import ACTS_AT as QUEUE
from tests.systems.commands.conftest import BAD, DOMAIN, TYPE, Desk
from tests.systems.figures import are_counted_soon, take_long_to_count


async def test_pages_of_commands(desk: Desk) -> None:
    """Newest first, by domain, status, type and time, each once over all pages; the cursor ends."""
    for number in range(5):
        await desk.bench.send(f"c-{number}")
    await desk.bench.work()
    desk.bench.advance(seconds=60)
    await desk.troubled("bad")
    await desk.bench.bus.send("shipping", "Pack", "s-1")
    seen: list[str] = []
    cursor = None
    while True:
        page = await desk.get("/api/commands", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [one["command_id"] for one in page["commands"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == ["s-1", "bad", "c-4", "c-3", "c-2", "c-1", "c-0"]
    instant = (await desk.bench.get("bad")).created_at.isoformat()
    for asked, expected in (
        ({"domain": "shipping"}, ["s-1"]),
        ({"type": "Pack"}, ["s-1"]),
        ({"status": "PENDING"}, ["s-1"]),
        ({"status": "IN_TROUBLESHOOTING_QUEUE"}, ["bad"]),
        ({"status": "COMPLETED", "domain": DOMAIN, "limit": 2}, ["c-4", "c-3"]),
        ({"created_after": instant}, ["s-1", "bad"]),
        ({"created_before": instant, "limit": 1}, ["c-4"]),
        ({"domain": "nobody"}, []),
    ):
        page = await desk.get("/api/commands", **asked)
        assert [one["command_id"] for one in page["commands"]] == expected, asked


async def test_one_command(desk: Desk) -> None:
    """Its row, error, data and audit, without what looks like a secret; and the id of its task."""
    await desk.troubled("a/b c", data={"iban": "DE1", "password": "hunter2", "inner": {"api_key": "abcdef123456"}})
    one = await desk.get(f"/api/commands/{DOMAIN}/{quote('a/b c', safe='')}")
    assert (one["command_id"], one["status"], one["attempts"]) == ("a/b c", "IN_TROUBLESHOOTING_QUEUE", 1)
    assert one["data"]["iban"] == "DE1"
    assert (one["last_error"]["type"], one["last_error"]["code"]) == ("PERMANENT", "NO_ACCOUNT")
    events = [line["event_type"] for line in one["audit"]]
    assert events == ["SENT", "RECEIVED", "FAILED", "MOVED_TO_TROUBLESHOOTING_QUEUE"]
    for secret in ("hunter2", "abcdef123456", "s3cr3t-value"):
        assert secret not in str(one)
    task = await desk.get(f"/api/tasks/commands/{one['task_id']}")
    assert task["task"]["payload"]["command_id"] == "a/b c"
    assert task["attempts"][0]["error_class"] == "permanent"
    for path in (f"{DOMAIN}/nobody", "nobody/x", f"{DOMAIN}/{'x' * 200}", f"{DOMAIN}/a%00b", f"{DOMAIN}/%ED%A0%80"):
        refused = await desk.get(f"/api/commands/{path}", gives=404)
        assert refused["error"]["code"] == "command_unknown"


async def test_the_queue_and_its_counts(desk: Desk) -> None:
    """What waits for a person, with how much in each domain on the first page."""
    await desk.troubled("c-1", "c-2", "c-3")
    await desk.troubled("s-1", domain="shipping")
    await desk.bench.send("fine")
    await desk.bench.work()
    first = await desk.get(QUEUE, limit=3)
    assert [one["command_id"] for one in first["commands"]] == ["s-1", "c-3", "c-2"]
    assert first["waiting"] == {DOMAIN: 3, "shipping": 1}
    rest = await desk.get(QUEUE, limit=3, cursor=first["cursor"])
    assert [one["command_id"] for one in rest["commands"]] == ["c-1"]
    assert (rest["waiting"], rest["cursor"]) == (None, None)
    assert [one["command_id"] for one in (await desk.get(QUEUE, domain="shipping"))["commands"]] == ["s-1"]
    assert (await desk.get(QUEUE, type="Pack"))["commands"] == []


async def test_acts(desk: Desk) -> None:
    """Retry, cancel and complete with a result, one or many: the operator's name, the audit log, the reply."""
    await desk.troubled("c-1", "c-2", "c-3", "c-4")
    assert await desk.act("retry", "c-1", "nobody", "c-1") == {
        "changed": 1,
        "refused": {"nobody": "there is no such command"},
    }
    assert (await desk.act("cancel", "c-2", "c-1"))["refused"].keys() == {"c-1"}
    assert await desk.act("complete", "c-3", "c-4", result={"paid": 1}) == {"changed": 2, "refused": {}}
    statuses = [(await desk.bench.get(f"c-{number}")).status for number in range(1, 5)]
    assert statuses == ["PENDING", "CANCELED", "COMPLETED", "COMPLETED"]
    assert await desk.bench.replies() == [
        ("CANCELED", "CANCELED"),
        ("SUCCESS", {"paid": 1}),
        ("SUCCESS", {"paid": 1}),
    ]
    for command_id, act in (("c-1", "RETRY"), ("c-2", "CANCEL"), ("c-3", "COMPLETE")):
        last = (await desk.bench.bus.audit_trail(command_id))[-1]
        assert (last.event_type, last.details) == (f"OPERATOR_{act}", {"operator": "operator", "reason": "mended"})
    logged = (await desk.get("/api/audit", ledger="commands"))["acts"]
    assert sorted((one["act"], one["actor"], one["reason"], one["amount"]) for one in logged) == [
        ("redrive", "operator", "mended", 1), ("resolve", "operator", "mended", 1), ("resolve", "operator", "mended", 2),
    ]  # fmt: skip


async def test_whoever_acts_sees_it_in_the_figures(desk: Desk) -> None:
    """They are counted soon, also where counting takes long; what changes nothing hurries nobody."""
    await desk.troubled("c-1", "c-2")
    lane = desk.bench.bus.lane
    for name, ids, soon in (("retry", ["c-1"], True), ("cancel", ["c-1"], False), ("complete", ["c-2"], True)):
        await take_long_to_count(lane)
        await desk.act(name, *ids)
        assert await are_counted_soon(lane) is soon, name


async def test_acts_are_refused_in_words(desk: Desk) -> None:
    """Whatever is given: a 4xx that says why, never a 500, and nothing changes."""
    await desk.troubled("c-1")
    before = await desk.bench.get()
    for given, status in (
        ({"reason": " "}, 422),
        ({"reason": "a\0b"}, 422),
        ({"reason": "\ud800"}, 422),
        ({"reason": "x" * 501}, 422),
        ({"ids": []}, 422),
        ({"ids": [f"c-{number}" for number in range(1001)]}, 422),
        ({"ids": ["x" * 151]}, 422),
        ({"ids": ["\ud800"]}, 422),
        ({"ids": "c-1"}, 422),
        ({"more": 1}, 422),
        ({"domain": "Not A Domain"}, 400),
    ):
        for name in ("retry", "cancel", "complete"):
            await desk.act(name, "c-1", gives=status, **given)
    await desk.act("retry", "c-1", gives=422, result=1)
    for result in ("a\0b", "\ud800", {"x": "\ud800"}, "x" * 900_000 * 2):
        refused = await desk.act("complete", "c-1", gives=400 if len(str(result)) < 100 else 413, result=result)
        assert refused["error"]["message"]
    assert (await desk.act("retry", "a\0b", ""))["refused"].keys() == {"a\0b", ""}
    assert await desk.bench.get() == before
    assert await desk.bench.replies() == []


async def test_looks_are_refused_in_words(desk: Desk) -> None:
    """A parameter that cannot be used is named."""
    for asked, status in (
        ({"cursor": "abc"}, 400),
        ({"cursor": "1" * 19}, 422),
        ({"limit": 0}, 422),
        ({"limit": 501}, 422),
        ({"status": "DEAD"}, 422),
        ({"domain": "a\0b"}, 400),
        ({"type": "x" * 151}, 422),
        ({"created_after": "yesterday"}, 422),
    ):
        assert (await desk.get("/api/commands", gives=status, **asked))["error"]["message"], asked
        if not asked.keys() & {"status", "created_after"}:
            await desk.get(QUEUE, gives=status, **asked)


async def test_who_may(desk: Desk) -> None:
    """Looking is open on this machine and to viewers elsewhere; acting takes an operator, and never a GET."""
    await desk.troubled("c-1")
    looks = ("/api/commands", QUEUE, f"/api/commands/{DOMAIN}/c-1", f"/api/commands/batches/{DOMAIN}/b")
    elsewhere = {"Host": "redrive.example"}
    for path in looks:
        assert (await desk.local.get(path, headers=elsewhere)).status_code == 401
        machine = {**elsewhere, "X-API-Key": desk.keys["events:write"]}
        assert (await desk.local.get(path, headers=machine)).status_code == 403
        viewer = {**elsewhere, "X-API-Key": desk.keys["viewer"]}
        assert (await desk.local.get(path, headers=viewer)).status_code in (200, 404)
    for name in ("retry", "cancel", "complete"):
        body = {"domain": DOMAIN, "ids": ["c-1"], "reason": "why"}
        assert (await desk.local.post(f"{QUEUE}/{name}", json=body)).status_code == 401
        await desk.act(name, "c-1", gives=403, role="viewer")
        assert (
            await desk.local.get(f"{QUEUE}/{name}")
        ).status_code == 404  # a command of that name, which is not there
    assert (await desk.bench.get()).status == "IN_TROUBLESHOOTING_QUEUE"


@pytest.mark.every_store
async def test_two_at_once_act_once(desk: Desk) -> None:
    """Of two requests one changes the command, the other is told where it stands now; one reply."""
    await desk.troubled("c-1")
    answers = await asyncio.gather(desk.act("complete", "c-1", result=1), desk.act("cancel", "c-1"))
    assert sorted(answer["changed"] for answer in answers) == [0, 1]
    [why] = [why for answer in answers for why in answer["refused"].values()]
    assert "not in the troubleshooting queue" in why
    assert len(await desk.bench.replies()) == 1


async def test_a_batch(desk: Desk) -> None:
    """Counted by state, and told when it is complete; acts count in it."""
    commands = [NewCommand(domain=DOMAIN, command_type=TYPE, command_id=f"b-{number}") for number in range(3)]
    desk.bench.raises = [BAD, BusinessRuleError("NO", "no")]
    await desk.bench.bus.create_batch(
        DOMAIN, commands, batch_id="night/1", name="night", custom_data={"token": "t0ps3cret"}
    )
    await desk.bench.work()
    batch = await desk.get(f"/api/commands/batches/{DOMAIN}/night%2F1")
    assert (batch["status"], batch["total"], batch["completed"]) == ("OPEN", 3, 1)
    assert (batch["failed"], batch["in_troubleshooting"]) == (1, 1)
    assert "t0ps3cret" not in str(batch)
    [troubled] = (await desk.get(QUEUE))["commands"]
    await desk.act("complete", troubled["command_id"])
    batch = await desk.get(f"/api/commands/batches/{DOMAIN}/night%2F1")
    assert (batch["status"], batch["in_troubleshooting"]) == ("COMPLETED_WITH_FAILURES", 0)
    await desk.get(f"/api/commands/batches/{DOMAIN}/nobody", gives=404)


async def test_a_rare_status_is_looked_for_in_parts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page looks at so many commands and no more; its cursor goes on behind them, and nothing is missed."""
    monkeypatch.setattr(reader, "LOOKED_AT_MAX", 4)
    await desk.bench.send("rare")
    await desk.bench.bus.ledger.cancel([(await desk.bench.get("rare")).id], Actor(name="ada"))
    for number in range(9):
        await desk.bench.send(f"c-{number}")
    found, looks, cursor = [], 0, None
    while True:
        page = await desk.get("/api/commands", status="CANCELED", **({"cursor": cursor} if cursor else {}))
        found += [one["command_id"] for one in page["commands"]]
        looks, cursor = looks + 1, page["cursor"]
        if cursor is None:
            break
    assert (found, looks) == (["rare"], 3)
    page = await desk.get("/api/commands", status="PENDING", limit=3)
    assert [one["command_id"] for one in page["commands"]] == ["c-8", "c-7", "c-6"]


async def test_a_database_that_is_too_busy_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes too long is a refusal with what to do, not an error of ours."""

    async def slow(*_: Any, **__: Any) -> Any:
        raise TooSlowError("too long")

    monkeypatch.setattr(desk.bench.app.database, "look", slow)
    for path in ("/api/commands", QUEUE):
        refused = await desk.get(path, gives=503)
        assert refused["error"]["code"] == "store_busy"
        assert "try again" in refused["error"]["message"]


async def test_the_routes_are_described(desk: Desk) -> None:
    """Every route has a summary, what it answers, and what it may refuse."""
    paths = (await desk.get("/openapi.json"))["paths"]
    ours = {path: one for path, one in paths.items() if path.startswith("/api/commands")}
    assert len(ours) == 7
    for path, operations in ours.items():
        for operation in operations.values():
            assert operation["summary"] and operation["description"], path
            assert "$ref" in operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert {"400", "401", "403", "503"} <= operation["responses"].keys(), path


@pytest.mark.every_store
async def test_the_queue_is_read_by_its_index(desk: Desk) -> None:
    """However many commands there are: the page, the page behind it and the counts read what waits for a person, and no more."""
    await desk.troubled("c-1", "c-2", "c-3")
    bench, reader, queue = desk.bench, desk.bench.bus._reader, desk.bench.bus.troubleshooting
    await bench.app.database.write(_crowd, bench.store)
    first = await reader.browse_commands(status=CommandStatus.IN_TROUBLESHOOTING_QUEUE, limit=1)
    troubled = reader._conditions(DOMAIN, CommandStatus.IN_TROUBLESHOOTING_QUEUE, TYPE, None, None)
    for run, *args in (
        (reader._query, troubled, None, 50),
        (reader._query, troubled, int(first.cursor or 0), 50),
        (reader._lowest_looked_at, troubled, None),
        (queue._count_by_domain,),
        (queue._count, None),
    ):
        plan = await bench.app.database.write(_explained, bench.store, run, *args)
        assert "command_troubled_idx" in plan, plan
        assert "Seq Scan" not in plan, plan


def _crowd(connection: Connection, store: str) -> None:
    """Twenty thousand commands that are done."""
    table = "commandbus.command" if store == "postgres" else "commandbus_command"
    series = "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 20000) SELECT n FROM s) AS s"
    now = "now()" if store == "postgres" else "0"
    connection.execute(
        text(
            f"INSERT INTO {table} (domain, command_id, command_type, queue_name, status, created_at, updated_at) "
            f"SELECT 'payments', 'done-' || n, 'DebitAccount', 'payments__commands', 'COMPLETED', {now}, {now} FROM {series}"
        )
    )
    connection.execute(text("ANALYZE"))


def _explained(connection: Connection, store: str, run: Any, *args: Any) -> str:
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    try:
        run(connection, *args)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    prefix = "EXPLAIN QUERY PLAN " if store == "sqlite" else "EXPLAIN (COSTS OFF) "
    rows = [row for statement, parameters in seen for row in connection.exec_driver_sql(prefix + statement, parameters)]
    return "\n".join(str(row[-1]) for row in rows)
