"""`redrive secrets`, and what the doctor says of stored secrets."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, make_url, select

from redrive.access.secret_box import SecretBox, is_sealed, new_key
from redrive.ledgers.open import open_database
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.sql import tables as t

from .said import Said

Run = Callable[..., Said]


def secrets_in(url: str, *offered: str) -> list[str]:
    """Put secrets in, as a version that did not encrypt them would; all that are stored."""
    import asyncio

    def work(connection: Connection) -> list[str]:
        if offered:
            now = datetime.now(UTC)
            same = {"user_id": "ada", "url": "http://a", "event_types": ["*"], "policy": {}, "enabled": True}
            same |= {"created_at": now, "updated_at": now}
            rows = [same | {"id": f"n{number}", "secret": value} for number, value in enumerate(offered)]
            connection.execute(insert(t.endpoints), rows)
        return list(connection.execute(select(t.endpoints.c.secret).order_by(t.endpoints.c.id)).scalars())

    async def run() -> list[str]:
        database = open_database(url, durable=False)
        try:
            return await database.write(work)
        finally:
            await database.close()

    return asyncio.run(run())


def doctor_on_secrets(stored: Run) -> list[dict[str, Any]]:
    """What the doctor says of them."""
    return [one for one in json.loads(stored("doctor", "--json").out)["findings"] if one["name"] == "secrets"]


def test_rotate_encrypts_all_and_changes_keys(stored: Run, redrive: Run, url: str, monkeypatch: pytest.MonkeyPatch):
    """Secrets in the clear are encrypted, a new key takes over, the old one can go; the doctor says where it stands."""
    plain = [new_secret(), new_secret()]
    old, new = redrive("secrets", "new-key").out.strip(), new_key()
    secrets_in(url, *plain)
    monkeypatch.setenv("REDRIVE_SECRET_KEY", old)
    [found] = doctor_on_secrets(stored)
    assert (found["status"], "2 of 2 are stored in the clear" in found["said"]) == ("problem", True)
    assert "redrive secrets rotate" in found["remedy"]
    said = stored("secrets", "rotate", "--json")
    assert (said.code, json.loads(said.out)["changed"], json.loads(said.out)["plain"]) == (0, 2, 2)
    assert [SecretBox([old]).open(one) for one in secrets_in(url) if is_sealed(one)] == plain
    assert [one["status"] for one in doctor_on_secrets(stored)] == ["ok"]
    monkeypatch.setenv("REDRIVE_SECRET_KEY", f"{new},{old}")
    assert [one["status"] for one in doctor_on_secrets(stored)] == ["notice"]
    assert "2 were encrypted again" in stored("secrets", "rotate").err
    monkeypatch.setenv("REDRIVE_SECRET_KEY", new)
    assert [one["status"] for one in doctor_on_secrets(stored)] == ["ok"]
    assert [SecretBox([new]).open(one) for one in secrets_in(url)] == plain


def test_what_no_key_opens_is_a_problem(stored: Run, url: str, monkeypatch: pytest.MonkeyPatch):
    """Rotating and the doctor both say so, with the remedy, and exit with 1."""
    secrets_in(url, SecretBox([new_key()]).seal("x"))
    monkeypatch.setenv("REDRIVE_SECRET_KEY", new_key())
    said = stored("secrets", "rotate")
    assert (said.code, "open with none of the keys" in said.err) == (1, True)
    [found] = doctor_on_secrets(stored)
    assert (found["status"], "REDRIVE_SECRET_KEY" in found["remedy"]) == ("problem", True)


def test_without_a_key(stored: Run, store: str, url: str):
    """PostgreSQL needs one from the environment; SQLite gets a file beside it, which must be private."""
    secrets_in(url, new_secret())
    found = doctor_on_secrets(stored)
    assert [one["status"] for one in found] == (["problem", "notice"] if store == "postgres" else ["problem"])
    said = stored("secrets", "rotate")
    if store == "postgres":
        assert (said.code, "REDRIVE_SECRET_KEY" in said.err) == (2, True)
        assert not is_sealed(secrets_in(url)[0])
        return
    assert said.code == 0
    file = Path(f"{make_url(url).database}.key")
    assert [one["status"] for one in doctor_on_secrets(stored)] == ["ok"]
    file.chmod(0o644)
    [open_to_all, _] = doctor_on_secrets(stored)
    assert (open_to_all["status"], "chmod 600" in open_to_all["remedy"]) == ("problem", True)
