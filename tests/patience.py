"""A busy machine is not a wrong answer: here no limit of time ends what only takes long.

Properties have no deadline, and what protects an operator from waiting (two seconds for a page, eight for an act, two until the
database counts as away) is a minute or more. A test of such a limit sets one of its own, below a second. Each run draws twenty-five
new examples for a property; `REDRIVE_TEST_EXAMPLES=1000` looks further, also among the constants of our own code, which to sift took
longer than most properties do.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from redrive.ledgers.open import open_database

LONG_SECONDS = 120
LIMITS = ("LOOK_WITHIN", "COUNT_WITHIN", "ANSWER_WITHIN", "ACT_WITHIN_SECONDS", "CHECKED_WITHIN_SECONDS")


# At once: a property takes its settings when it is defined.
settings.register_profile(
    "patient",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("REDRIVE_TEST_EXAMPLES") or 25),
)
settings.load_profile("patient")
if "REDRIVE_TEST_EXAMPLES" not in os.environ:
    providers._get_local_constants = lambda: providers._local_constants


def have_patience() -> None:
    """Lift the limits of all that was imported by now."""
    for module in [module for name, module in sys.modules.items() if name.startswith("redrive.")]:
        for name in LIMITS:
            limit = getattr(module, name, None)
            if limit is not None:
                is_span = isinstance(limit, timedelta)
                setattr(module, name, timedelta(seconds=LONG_SECONDS) if is_span else float(LONG_SECONDS))
    for url in ("sqlite:////tmp/any.db", "postgresql://any@127.0.0.1/any"):
        kind: Any = type(open_database(url))
        kind.look = _patient(kind.look)


def _patient(look: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """For limits that a function took as its default before they were lifted."""

    def longer(self: Any, within: timedelta, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        patient = within if within < timedelta(seconds=1) else max(within, timedelta(seconds=LONG_SECONDS))
        return look(self, patient, *args, **kwargs)

    return longer
