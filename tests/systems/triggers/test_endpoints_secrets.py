"""Endpoint secrets are encrypted in the store, and sign all the same; without a key it is said what to do, and nothing is lost."""

from pathlib import Path

import pytest
import standardwebhooks
from sqlalchemy import Connection, select, update

from redrive import Redrive, minutes
from redrive.access.secret_box import is_sealed, new_key
from redrive.errors import SettingsError
from redrive.systems.triggers import Triggers
from redrive.systems.triggers.endpoints import new_secret
from redrive.systems.triggers.sql import tables as t

from .conftest import House, settings
from .receiver import Receiver

BODY = {"url": "http://127.0.0.1:1/", "event_types": ["*"]}


async def stored(house: House) -> list[str]:
    """Every secret of triggers, as it stands in the store."""
    if not house.app.store.keeps_tasks:
        found = await house.triggers.endpoints.of_user("ada")
        return [secret for one in found for secret in (one.secret, one.old_secret) if secret]

    def look(connection: Connection) -> list[str]:
        return [value for column in t.SECRETS for value in connection.execute(select(column)).scalars() if value]

    return await house.app.database.read(look)


async def test_no_secret_lies_in_the_clear(house: House):
    """Whether it was made, given or changed, over HTTP."""
    key = await house.key()
    given = new_secret()
    async with house.client(key) as client:
        made = (await client.post("/v1/endpoints", json=BODY | {"secret": given})).json()
        assert made["secret"] == given
        changed = await client.patch(f"/v1/endpoints/{made['endpoint_id']}", json={"rotate_secret": True})
        assert changed.status_code == 200
    found = await stored(house)
    assert len(found) == 2
    assert all(is_sealed(one) for one in found)
    assert not any(secret in "".join(found) for secret in (given, changed.json()["secret"]))


@pytest.mark.on_sql
async def test_secrets_of_before_there_was_a_key_go_on_signing(house: House, receiver: Receiver):
    """They stand in the clear until somebody rotates."""
    endpoint = await house.endpoint(receiver.url)
    plain = new_secret()
    await house.app.database.write(
        lambda connection: connection.execute(
            update(t.endpoints).where(t.endpoints.c.id == endpoint.id).values(secret=plain)
        )
    )
    await house.post()
    await house.run()
    [got] = receiver.received
    standardwebhooks.Webhook(plain).verify(got.body, got.headers)


async def test_without_a_key_nothing_is_kept_in_the_clear(house: House, store: str, monkeypatch: pytest.MonkeyPatch):
    """SQLite makes one in a private file beside the database; elsewhere it is refused, with the remedy, and nothing is stored."""
    monkeypatch.delenv("REDRIVE_SECRET_KEY")
    key = await house.key()
    file = house.triggers.keeper.file
    async with house.client(key) as client:
        answer = await client.post("/v1/endpoints", json=BODY)
    if store == "sqlite":
        assert answer.status_code == 201
        assert file is not None
        assert file.stat().st_mode & 0o777 == 0o600
        assert all(is_sealed(one) for one in await stored(house))
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "NOT_CONFIGURED")
        assert "REDRIVE_SECRET_KEY" in error["message"]
        assert (file, await stored(house)) == (None, [])


async def test_a_lost_key_costs_no_delivery(house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    """Nothing is sent and nothing is charged while it is away; with the key back the event is delivered."""
    endpoint = await house.endpoint(receiver.url)
    event = await house.post()
    good = house.triggers.keeper.box()
    monkeypatch.setenv("REDRIVE_SECRET_KEY", new_key())
    house.triggers.keeper._box = None
    await house.run()
    assert receiver.received == []
    [delivery] = await house.deliveries(event)
    assert (delivery.state, delivery.failures) == ("waiting", 0)
    house.triggers.keeper._box = good
    await house.run(after=minutes(2))
    [got] = receiver.received
    standardwebhooks.Webhook(endpoint.secret).verify(got.body, got.headers)


async def test_a_service_whose_secrets_do_not_open_does_not_start(
    house: House, url: str, monkeypatch: pytest.MonkeyPatch
):
    """It ends with the remedy; one without secrets starts without a key."""
    await house.triggers._check_secrets()  # there are none
    await house.endpoint("http://127.0.0.1:1/")
    monkeypatch.delenv("REDRIVE_SECRET_KEY")
    app = Redrive(url, durable=False)
    Triggers(app, settings())
    with pytest.raises(SettingsError, match="REDRIVE_SECRET_KEY"):
        await app.work()
    await app.close()


async def test_a_key_that_is_put_into_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that runs reads the file again when a secret does not open: keys can be changed without a restart."""
    from redrive.systems.kit.secret_keeper import SecretKeeper

    monkeypatch.delenv("REDRIVE_SECRET_KEY")
    running, other = SecretKeeper(tmp_path / "a.db"), SecretKeeper(tmp_path / "a.db")
    assert running.open(running.seal("first")) == "first"
    assert other.file is not None
    other.file.write_text(f"{new_key()}\n{other.file.read_text()}")
    sealed = other.seal("second")
    assert running.open(sealed) == "second"
    assert other.open(running.seal("third")) == "third"
