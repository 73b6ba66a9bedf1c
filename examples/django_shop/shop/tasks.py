"""What the shop does later."""

import django

from redrive.django import retried

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

down = {"mail server"}
"""What does not work at first."""


@task
@retried(retries=3, wait=0)
def send_invoice(number: int) -> str:
    """Fails once, as mail servers do."""
    if down:
        raise ConnectionError(f"{down.pop()} down")
    return f"invoice of order {number}"


@task
@retried(retries=0)
def refuse(number: int) -> None:
    """Fails for good."""
    raise ValueError(f"order {number} is no order")


@task(takes_context=True)
async def count(context: object, number: int) -> int:
    """An async task that knows which try it is."""
    return number + context.attempt  # type: ignore[attr-defined,no-any-return]
