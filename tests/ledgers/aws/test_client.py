"""Asking DynamoDB, and asking again."""

from datetime import timedelta
from typing import Any

import pytest

from redrive.core.durations import ZERO
from redrive.errors import LedgerAwayError, LedgerError
from redrive.ledgers.aws.asking import BUSY, UNKNOWN
from redrive.ledgers.aws.client import Dynamo, RefusedError, judge
from redrive.ledgers.aws.expressions import Update, put_new, query
from tests.ledgers.aws.cutting import CuttingClient
from tests.ledgers.aws.homes import ItemHome

STORES = ("aws",)


def told(code: str, status: int = 400, **more: Any) -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}


@pytest.mark.parametrize("uncertain", [False, True])
def test_what_is_asked_again(uncertain: bool) -> None:
    """Being busy tells nothing new about whether the call had an effect before; an error of the server may hide one."""
    for code in BUSY:
        assert judge(told(code), uncertain=uncertain) is uncertain
        cancelled = told("TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": code}])
        assert judge(cancelled, uncertain=uncertain) is uncertain
    for code in (*UNKNOWN, "Whatever"):
        assert judge(told(code, 500), uncertain=uncertain) is True


@pytest.mark.parametrize("uncertain", [False, True])
def test_a_refusal_is_told_with_the_items(uncertain: bool) -> None:
    """A condition that fails is not asked again, though the rest of the transaction was busy: the item comes with it."""
    item = {"pk": {"S": "a"}}
    reasons = [{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed", "Item": item}, {"Code": "None"}]
    with pytest.raises(RefusedError) as refused:
        judge(told("TransactionCanceledException", CancellationReasons=reasons), uncertain=uncertain)
    assert [reason.refused for reason in refused.value.reasons] == [False, True, False]
    assert refused.value.reasons[1].item == item
    assert refused.value.uncertain is uncertain
    with pytest.raises(RefusedError) as single:
        judge(told("ConditionalCheckFailedException", Item=item), uncertain=uncertain)
    assert single.value.reasons[0].item == item


def test_what_cannot_work_is_an_error_at_once() -> None:
    """A call that DynamoDB does not understand, or that this process may not make, is not made again."""
    for code in ("ValidationException", "AccessDeniedException", "ResourceNotFoundException"):
        with pytest.raises(LedgerError, match=code):
            judge(told(code), uncertain=False)


async def test_a_cut_write_is_made_once(home: ItemHome) -> None:
    """Asked again after a cut, a conditional write that was made is refused and says that it may be our own."""
    for where, uncertain in (("before", False), ("after", True)):
        client = CuttingClient(
            home.ledger.dynamo._client, lambda number, _, where=where: where if number == 0 else None
        )
        dynamo = Dynamo(client, home.ledger.dynamo.table)
        actions = [put_new((where, "x"), {"n": 1}), Update((where, "y")).add("n", 1).action()]
        if uncertain:
            with pytest.raises(RefusedError) as refused:
                await dynamo.write(actions)
            assert refused.value.uncertain
        else:
            await dynamo.write(actions)
        item = await dynamo.get((where, "y"))
        assert item is not None
        assert item["n"] == {"N": "1"}


async def test_without_an_answer_the_ledger_is_away(home: ItemHome) -> None:
    """Patience has an end."""
    client = CuttingClient(home.ledger.dynamo._client, lambda *_: "before")
    dynamo = Dynamo(client, home.ledger.dynamo.table, patience=timedelta(milliseconds=60))
    with pytest.raises(LedgerAwayError, match="DynamoDB does not answer"):
        await dynamo.get(("a", "b"))
    assert client.cuts > 1
    with pytest.raises(LedgerAwayError):
        await Dynamo(client, home.ledger.dynamo.table, patience=ZERO).query(query(("pk", "a")))


async def test_many_items_and_many_pages(home: ItemHome) -> None:
    """More keys than one call takes, and more items than one page holds, are found all the same."""
    dynamo = home.ledger.dynamo
    for start in range(0, 150, 50):
        await dynamo.write([put_new(("many", f"{n:03}"), {"n": n}) for n in range(start, start + 50)])
    found = await dynamo.get_many([("many", f"{n:03}") for n in range(200)])
    assert sorted(found) == [("many", f"{n:03}") for n in range(150)]
    paged = await dynamo.query(query(("pk", "many"), limit=40))
    assert [item["n"]["N"] for item in paged] == [str(n) for n in range(150)]
    assert len(await dynamo.query(query(("pk", "many"), limit=40), items_max=70)) == 70
