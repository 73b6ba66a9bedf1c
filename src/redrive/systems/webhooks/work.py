"""Where there are no handlers: each webhook is POSTed to one URL, which the operator has chosen.

The answer decides: 2xx is done; 408, 425, 429, 5xx and broken connections are tried again, not before a `Retry-After`; all
else, redirects included, will not get better by trying. The URL may be a private address: it comes from whoever runs the
service, never from a sender.
"""

import asyncio
from urllib.parse import quote

import httpx

from redrive import Context, Policy, Task, __version__
from redrive.policies import ErrorClass

FORWARD_SECONDS_MAX = 30.0
"""How long a forwarded webhook may take, from connecting to the end of the answer."""
CONNECT_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 64 * 1024
"""So much of an answer is read to keep its connection; one that is longer is cut."""
KEPT_CONNECTIONS_MAX = 100
AGAIN = frozenset({408, 425, 429})


class Forward:
    """A handler for every event type."""

    def __init__(self, url: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url
        self._transport = transport
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, task: Task, context: Context) -> None:
        """POST one webhook; raises what the policy of `forward_policy` understands."""
        headers = {
            "Idempotency-Key": _sendable(task.key),
            "X-Event-Type": _sendable(task.kind),
            "X-Event-Id": str(task.id),
            "X-Attempt": str(context.attempt),
        }
        async with (
            asyncio.timeout(FORWARD_SECONDS_MAX),
            self._connected().stream("POST", self._url, json=task.payload, headers=headers) as answer,
        ):
            await _read_some(answer)
        if not answer.is_success:
            raise httpx.HTTPStatusError(
                f"the receiver answered {answer.status_code} {answer.reason_phrase[:100]}",
                request=answer.request, response=answer,
            )  # fmt: skip

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport,
                follow_redirects=False,
                trust_env=False,
                # WORKER_COUNT is the limit: a webhook that waits here for a connection would only lose its time.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS_MAX),
                timeout=httpx.Timeout(FORWARD_SECONDS_MAX, connect=CONNECT_SECONDS_MAX),
                # Unpacked, a small answer could be a large one.
                headers={"User-Agent": f"redrive/{__version__}", "Accept-Encoding": "identity"},
            )
        return self._client

    async def close(self) -> None:
        """Let go of all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _read_some(answer: httpx.Response) -> None:
    size = 0
    async for piece in answer.aiter_raw():
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            return


def _sendable(text: str) -> str:
    """Text as a header can carry it: what is not plain is written as in a URL."""
    return quote(text, safe="".join(map(chr, range(0x21, 0x7F))).replace("%", ""))


def is_final(error: BaseException) -> bool:
    """Whether an answer says that trying again is of no use."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    status = error.response.status_code
    return status < 500 and status not in AGAIN


def is_rate_limit(error: BaseException) -> bool:
    """Whether the receiver asked for patience."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 429


def forward_policy(policy: Policy) -> Policy:
    """The same waits and the same number of tries, with the answers of a receiver understood."""
    return Policy(
        policy.backoff,
        attempts=policy.failures_max,
        jitter=policy.jitter,
        permanent=[is_final],
        rate_limited=[is_rate_limit],
        otherwise=ErrorClass.TRANSIENT,
        name=policy.name,
    )
