"""An application, and what its observers hear."""

import pytest

from redrive import Redrive
from tests.heard import Heard


@pytest.fixture
async def heard():
    return Heard()


@pytest.fixture
async def app(url, heard):
    async with Redrive(url, observers=[heard], durable=False) as app:
        yield app
