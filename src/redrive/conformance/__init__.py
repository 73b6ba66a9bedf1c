"""Test a table or a ledger of your own: the promises of every ledger (`redrive.ports`), as tests for pytest.

In `conftest.py`:

    pytest_plugins = ["redrive.conformance.plugin"]

and in a module of tests, with a fixture `home` of yours:

    from redrive.conformance import table_home
    from redrive.conformance.promises import *

    @pytest.fixture
    async def home(tmp_path):
        async with table_home(f"sqlite:///{tmp_path}/shop.db", EMAILS, insert=insert_email) as home:
            yield home

It needs pytest and pytest-asyncio: `pip install redrive[testing]`.
"""

from redrive.conformance.home import BACKOFF, LEASE, POLICY, START, Home, settlement, table_home

__all__ = ["BACKOFF", "LEASE", "POLICY", "START", "Home", "settlement", "table_home"]
