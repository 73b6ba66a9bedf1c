"""The plugin for pytest: `pytest_plugins = ["redrive.conformance.plugin"]`. It runs the promises in an event loop and leaves out what a table cannot do."""

from collections.abc import Generator
from typing import Any

import pytest

pytest.register_assert_rewrite("redrive.conformance.promises")

PROMISES = "redrive.conformance.promises"


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marks mean."""
    config.addinivalue_line(
        "markers", "homes(fits): run the test only over tables for which `fits(ledger_table)` is true"
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """The promises are asynchronous, whatever the mode of your other tests is; pytest-asyncio looks for the mark when a test is made."""
    made = yield
    for item in made if isinstance(made, list) else ():
        if isinstance(item, pytest.Function) and item.function.__module__ == PROMISES:
            item.add_marker(pytest.mark.asyncio, append=True)
    return made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Leave out what the table of this home cannot do, and say so."""
    home: Any = pyfuncitem.funcargs.get("home")
    if home is not None and not all(mark.args[0](home.table) for mark in pyfuncitem.iter_markers("homes")):
        pytest.skip("this table has no column or word for that")
