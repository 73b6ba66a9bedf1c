"""A server of AWS, and on it what the template makes."""

from collections.abc import Iterator

import pytest

from tests.ledgers.aws.servers import aws_server

from .stack import Stack, deploy


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """What the template makes. The server is moto's, whatever runs the other tests: others make no stacks of all this."""
    with aws_server("moto") as url:
        yield deploy(url, "triggers", PayloadsInS3="true")
