"""There is no chain over items, and that is said."""

from datetime import timedelta

import pytest

from redrive.errors import UsageError
from redrive.operator.aws.chain import NoChain
from redrive.ports import Actor


async def test_what_needs_a_chain_is_refused_with_a_sentence():
    """The service's own rounds find nothing to do there; whoever asks for it is told why not."""
    chain = NoChain()
    assert await chain.link() == 0
    for ask in (chain.head, chain.unlinked, chain.verify, lambda: chain.prune(timedelta(0), by=Actor(name="ada"))):
        with pytest.raises(UsageError, match="not a chain on DynamoDB"):
            await ask()
