"""From settings to clients of AWS, which try nothing again by themselves: `client` has the one rule for that."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from redrive.errors import MissingExtraError, UsageError

CONNECT_SECONDS = 3
READ_SECONDS = 30
"""Longer than the 20 s for which a queue may be waited at."""
CONNECTIONS_MAX = 50


class LateClient:
    """A client that is there while its store is open, for parts that are made before."""

    def __init__(self) -> None:
        self._client: Any = None

    def become(self, client: Any) -> None:
        """Be this client from now on; None lets go of it."""
        self._client = client

    def __getattr__(self, call: str) -> Any:
        if self._client is None:
            raise UsageError("the application is not open: `await app.open()` first")
        return getattr(self._client, call)


class AwsClients(NamedTuple):
    """One client for each service."""

    dynamodb: Any
    sqs: Any


@asynccontextmanager
async def open_clients(*, region: str | None = None, endpoint_url: str | None = None) -> AsyncIterator[AwsClients]:
    """Clients as long as the block lasts. What is not given comes from the surroundings, as everywhere on AWS."""
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
    except ModuleNotFoundError as error:
        raise MissingExtraError("DynamoDB", "aws") from error
    config = AioConfig(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=CONNECTIONS_MAX,
        retries={"total_max_attempts": 1},
        # Our requests are built by functions that are tested; checking each of them again takes longer than sending it.
        parameter_validation=False,
    )
    session = get_session()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                session.create_client(service, region_name=region, endpoint_url=endpoint_url, config=config)
            )
            for service in AwsClients._fields
        ]
        yield AwsClients(*clients)
