"""Asking AWS again."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from redrive.errors import LedgerAwayError, LedgerError
from redrive.ledgers.aws import asking
from redrive.ledgers.aws.asking import BusyError, ask_again, judge_code, refused_call


def judge(response: Any, *, uncertain: bool) -> bool:
    judged = judge_code(response, uncertain=uncertain)
    if judged is None:
        raise refused_call("SQS", response, "look")
    return judged


def told(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "call"
    )


def failing(*errors: Exception) -> tuple[Callable[[], Any], list[Exception]]:
    left = list(errors)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return call, left


CUT = ConnectionClosedError(endpoint_url="http://cut")


@pytest.mark.parametrize("error", [told("RequestThrottled"), told("Any", 503), CUT, TimeoutError(), BusyError("some")])
async def test_what_passes_is_asked_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often, with waits that are drawn from nothing up to a ceiling that doubles and has an end."""
    waits: list[float] = []

    async def sleep(span: float) -> None:
        waits.append(span)

    monkeypatch.setattr(asking.asyncio, "sleep", sleep)
    monkeypatch.setattr(asking.random, "random", lambda: 0.5)
    call, left = failing(*[error] * 9)
    assert await ask_again(call, judge, "SQS", 30) == "answer"
    assert left == []
    assert waits == [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


async def test_patience_ends() -> None:
    """Then the ledger is away, which a worker waits out; and what is of no use is said at once."""
    call, _ = failing(*[CUT] * 99)
    with pytest.raises(LedgerAwayError, match=r"SQS does not answer: .*cut"):
        await ask_again(call, judge, "SQS", 0.06)
    call, left = failing(told("AccessDenied"), CUT)
    with pytest.raises(LedgerError, match=r"SQS refused the call \(AccessDenied: m\): look"):
        await ask_again(call, judge, "SQS", 30)
    assert left == [CUT]
