"""Objects of a bucket: what is missing, what is refused, and what is asked again."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from redrive.errors import LedgerAwayError
from redrive.ledgers.aws.objects import Objects


def refused(code: str, status: int) -> ClientError:
    told: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "GetObject")


class Answers:
    """A client that answers what it is told to, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __getattr__(self, call: str) -> Any:
        async def asked(**_: Any) -> Any:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return asked


async def test_what_is_not_there_is_nothing() -> None:
    """An object that was deleted is no error."""
    assert await Objects(Answers(refused("NoSuchKey", 404)), "b").get("x") is None


async def test_a_busy_bucket_is_asked_again() -> None:
    """S3 asks to slow down: nobody hears of it."""
    client = Answers(refused("SlowDown", 503), {})
    await Objects(client, "b").put("x", "1")
    assert client.answers == []


@pytest.mark.parametrize("code", ["AccessDenied", "NoSuchBucket"])
async def test_a_bucket_that_refuses_is_away(code: str) -> None:
    """Whoever asks waits, and hears what to do; no event is to blame."""
    with pytest.raises(LedgerAwayError, match=rf"S3 refused the call \({code}.*check the bucket and the rights"):
        await Objects(Answers(refused(code, 403)), "b").put("x", "1")
