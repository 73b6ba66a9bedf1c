"""What is written beside an act: who sent a message out again, and what nobody may say."""

import pytest
from sqlalchemy import Connection, text, update

from redrive import Filter, Redrive, State
from redrive.errors import UsageError
from redrive.events import Act
from redrive.lane import Actor
from redrive.systems.relay import Relay, beside
from redrive.systems.relay.beside import ActsOnMessages
from redrive.systems.relay.tables import retry_queue

from .kit import ADA, arrival, in_review, outcome, row, statuses


async def test_resubmit_is_a_redrive_with_who_and_when(app: Redrive, relay: Relay) -> None:
    """The row is pending, due now, with a count of 0; its headers say who and when, and keep what they had."""
    [id_] = await in_review(app, "m-1")
    assert outcome(await relay.desk.act(Act.REDRIVE, [id_], ADA)) == ([id_], {})
    found = await row(app, "m-1")
    assert (found["status"], found["retry_count"], found["lease_until"]) == ("pending", 0, None)
    assert found["next_retry_at"] <= found["updated_at"]
    assert found["headers"] == {
        "tenant": "ada", "x-resubmitted-by": "ada",
        "x-resubmitted-at": found["updated_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }  # fmt: skip
    [deed] = await relay.lane.deeds(id_)
    assert (deed.act, deed.actor, deed.reason) == ("redrive", "ada", "the bank is back")


async def test_a_redrive_from_anywhere_means_the_same(app: Redrive, relay: Relay) -> None:
    """Who redrives the ledger, as the tasks page and the command line do, resubmits: the same headers, in the same commit."""
    await in_review(app, "m-1")
    await relay.lane.redrive(Filter(), actor="grace", reason="all of them")
    assert (await row(app, "m-1"))["headers"]["x-resubmitted-by"] == "grace"
    assert not any(ActsOnMessages().listens(to) for to in ("claimed", "settled")), (
        "claims and settlements stay one statement each"
    )


async def test_headers_and_row_change_together_or_not_at_all(
    app: Redrive, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the headers cannot be written, nothing is: no message goes out that does not say who sent it."""
    [id_] = await in_review(app, "m-1")
    monkeypatch.setattr(beside, "_MARK", update(retry_queue).values(no_such_column=text("1 / 'x'")))
    with pytest.raises(Exception, match="no_such_column"):
        await relay.desk.act(Act.REDRIVE, [id_], ADA)
    found = await row(app, "m-1")
    assert (found["status"], found["headers"]) == ("failed", {"tenant": "ada"})
    assert await relay.lane.deeds(id_) == []


async def test_headers_that_sql_could_not_change_are_kept(app: Redrive, relay: Relay) -> None:
    """A NUL, a large number and a name of somebody with odd signs: all of it is there afterwards."""
    odd = {"nul": "a\0b", "large": 2**62, "nested": {"$bytes": "AP8="}}
    [id_] = await in_review(app, "m-1", headers=odd)
    await relay.desk.act(Act.REDRIVE, [id_], Actor(name="ada\u202e" + "x" * 500))
    found = (await row(app, "m-1"))["headers"]
    assert {name: found[name] for name in odd} == odd
    assert len(found["x-resubmitted-by"]) == beside.NAME_CHARS_MAX
    assert found["x-resubmitted-by"].startswith("ada\u202ex")


async def test_nobody_can_say_that_a_message_went_out(app: Redrive, relay: Relay) -> None:
    """`retried` is what the broker confirmed: to resolve as done is refused, with the remedy, and changes nothing."""
    [id_] = await in_review(app, "m-1")
    with pytest.raises(UsageError, match="resolve it as cancelled"):
        await relay.lane.resolve([id_], State.DONE, actor="ada")
    assert await statuses(app) == {"m-1": "failed"}
    assert await relay.lane.deeds(id_) == []


async def test_the_mark_is_gone_when_the_message_comes_back(app: Redrive, relay: Relay) -> None:
    """The headers speak of the round that a person began, not of those after it; forged ones never come in."""
    [id_] = await in_review(app, "m-1")
    await relay.desk.act(Act.REDRIVE, [id_], ADA)

    def went_out(connection: Connection) -> None:
        gone = {"status": "retried", "retry_count": 1, "next_retry_at": None}
        connection.execute(update(retry_queue).values(**gone))

    await app.database.write(went_out)
    await relay._intake.store([arrival("m-1", retry_count=1, headers={"tenant": "ada"})])
    assert (await row(app, "m-1"))["headers"] == {"tenant": "ada"}
