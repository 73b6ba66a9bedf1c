"""Asking AWS, and asking again: the one place that does so, for the table and for the queue.

What is too busy is asked again after a wait that grows and is drawn (full jitter): conflicts of transactions and throttling, also where
they are a reason inside a cancelled transaction, which no SDK tries again by itself. A call whose answer is not known is asked again with
the same content; whoever asked then looks whether it was made the first time. After `PATIENCE` the ledger is away.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from aiohttp import ClientError as HttpError
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from redrive.errors import LedgerAwayError, LedgerError

T = TypeVar("T")

PATIENCE = timedelta(seconds=20)
"""Less than the 29 s that a function of the API has, with the last call's own limit: its caller gets our answer, not that of AWS."""
FIRST_WAIT_SECONDS = 0.025
WAIT_SECONDS_MAX = 1.0
BUSY = frozenset(
    {
        "TransactionConflict", "TransactionConflictException", "TransactionInProgressException",
        "ProvisionedThroughputExceeded", "ProvisionedThroughputExceededException", "ThrottlingError", "ThrottlingException",
        "Throttling", "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "LimitExceededException",
        "OverLimit", "KmsThrottled",
    }
)  # fmt: skip
"""What passes by itself. Nothing was written."""
UNKNOWN = frozenset(
    {"InternalServerError", "InternalFailure", "InternalError", "ServiceUnavailable", "ServiceUnavailableException"}
)
"""What may or may not have been written."""


class Judge(Protocol):
    """From an error that was answered, and whether the call may have been made before: may it have been made now?

    Raises if asking again is of no use.
    """

    def __call__(self, response: Mapping[str, Any], *, uncertain: bool) -> bool:
        """Judge an answer."""
        ...


class BusyError(Exception):
    """An answer that came, and of which a part must be asked for again."""


async def ask_again(call: Callable[[], Awaitable[T]], judge: Judge, service: str, patience_seconds: float) -> T:
    """The answer of a call, asked for until there is one."""
    loop = asyncio.get_running_loop()
    until, wait, uncertain = loop.time() + patience_seconds, FIRST_WAIT_SECONDS, False
    while True:
        try:
            return await call()
        except ClientError as error:
            said: Exception = error
            uncertain = judge(error.response, uncertain=uncertain)
        except BusyError as error:
            said = error
        except ParamValidationError:
            raise
        except (BotoCoreError, HttpError, OSError, TimeoutError) as error:
            said, uncertain = error, True
        if loop.time() + wait > until:
            raise LedgerAwayError(f"{service} does not answer: {said}") from said
        await asyncio.sleep(wait * random.random())
        wait = min(2 * wait, WAIT_SECONDS_MAX)


def judge_code(response: Mapping[str, Any], *, uncertain: bool) -> bool | None:
    """What every service means by its codes; None where it means something else. Pure."""
    code = response["Error"]["Code"]
    if code in BUSY:
        return uncertain
    if code in UNKNOWN or response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400) >= 500:
        return True
    return None


def refused_call(service: str, response: Mapping[str, Any], remedy: str) -> LedgerError:
    """The error of a call that is of no use to make again."""
    told = response["Error"]
    return LedgerError(f"{service} refused the call ({told.get('Code')}: {told.get('Message', '')}): {remedy}")
