"""How often and how long a task of Django's is retried: said on its function, or for all of them in the backend's OPTIONS."""

from collections.abc import Callable
from typing import Any, TypeVar

from redrive.core.policy import Policy, read_policy

F = TypeVar("F", bound=Callable[..., Any])

_POLICIES: dict[str, Policy] = {}


def retried(**words: Any) -> Callable[[F], F]:
    """Say how the tasks of a function are retried, with the words of `Redrive.handler`.

    @task
    @retried(retries=5, wait=[1, 5, 15], permanent=ValueError)
    def send_invoice(number): ...
    """
    policy = read_policy(words.pop("policy", None), **words)

    def note(function: F) -> F:
        _POLICIES[path_of(function)] = policy
        return function

    return note


def path_of(function: Callable[..., Any]) -> str:
    """What Django calls the task of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def policies() -> dict[str, Policy]:
    """The policies of the tasks that were imported so far, by their paths."""
    return dict(_POLICIES)
