"""From settings to clients of AWS, which try nothing again by themselves: `client` has the one rule for that."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from redrive.errors import MissingExtraError, SettingsError

CONNECT_SECONDS = 3
READ_SECONDS = 8
POLL_SECONDS = 30
"""Longer than the 20 s for which a queue may be waited at."""
CONNECTIONS_MAX = 50


class AwsClients(NamedTuple):
    """One client for each service; none of S3 where there is no bucket."""

    dynamodb: Any
    sqs: Any
    s3: Any = None


@asynccontextmanager
async def open_clients(
    *, region: str | None = None, endpoint_url: str | None = None, with_s3: bool = False
) -> AsyncIterator[AwsClients]:
    """Clients as long as the block lasts. What is not given comes from the surroundings, as everywhere on AWS."""
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore.exceptions import NoRegionError
    except ModuleNotFoundError as error:
        raise MissingExtraError("DynamoDB", "aws") from error
    config = AioConfig(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=CONNECTIONS_MAX,
        retries={"total_max_attempts": 1},
        # Our requests are built by functions that are tested; checking each of them again takes longer than sending it.
        parameter_validation=False,
        # What stands in for AWS is one host, without a name for each bucket.
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    patient = config.merge(AioConfig(read_timeout=POLL_SECONDS))
    session = get_session()
    services = AwsClients._fields if with_s3 else ("dynamodb", "sqs")
    async with AsyncExitStack() as stack:
        try:
            clients = [
                await stack.enter_async_context(
                    session.create_client(
                        service,
                        region_name=region,
                        endpoint_url=endpoint_url,
                        config=patient if service == "sqs" else config,
                    )
                )
                for service in services
            ]
        except NoRegionError as error:
            raise SettingsError("the AWS region of the table is not known: set AWS_REGION") from error
        yield AwsClients(*clients)


class OwnClients:
    """Clients for each event loop and process that asks, opened when they are first asked, for parts that are made before.

    A second loop and a forked child open their own. What they find of others is kept and never touched: closing a copy would be seen
    at the other end.
    """

    def __init__(self, *, region: str | None, endpoint_url: str | None, with_s3: bool = False) -> None:
        self._region = region
        self._with_s3 = with_s3
        self._endpoint_url = endpoint_url
        self._whose: tuple[object, int] | None = None
        self._clients: AwsClients | None = None
        self._opening: asyncio.Task[AwsClients] | None = None
        self._stack = AsyncExitStack()
        self._of_others: list[object] = []
        self.late = AwsClients(*(_LateClient(self, service) for service in AwsClients._fields))
        """What stands for the clients before they are there."""

    async def ready(self) -> AwsClients:
        """The clients of the running loop."""
        here = asyncio.get_running_loop(), os.getpid()
        if self._whose != here:
            self._of_others += [self._clients, self._opening, self._stack]
            self._whose, self._clients, self._opening, self._stack = here, None, None, AsyncExitStack()
        if self._clients is None:
            self._opening = self._opening or asyncio.create_task(self._open())
            self._clients = await asyncio.shield(self._opening)
        return self._clients

    async def _open(self) -> AwsClients:
        try:
            opened = open_clients(region=self._region, endpoint_url=self._endpoint_url, with_s3=self._with_s3)
            return await self._stack.enter_async_context(opened)
        except BaseException:
            self._opening = None  # so that the next one who asks tries again
            raise

    async def close(self) -> None:
        """Let go of the clients of the running loop."""
        if self._whose == (asyncio.get_running_loop(), os.getpid()):
            stack, self._whose = self._stack, None
            self._clients, self._opening, self._stack = None, None, AsyncExitStack()
            await stack.aclose()


class _LateClient:
    def __init__(self, own: OwnClients, service: str) -> None:
        self._own = own
        self._service = service

    def __getattr__(self, call: str) -> Any:
        async def ask(**request: Any) -> Any:
            return await getattr(getattr(await self._own.ready(), self._service), call)(**request)

        return ask
