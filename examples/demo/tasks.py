"""Traffic for redrive's own tasks: six destinations, each bad in its own way, and people who change their minds."""

import secrets
from typing import Any

from examples.demo.traffic import (
    BRIEFLY,
    PATIENTLY,
    Traffic,
    chance,
    is_out,
    span,
    work,
)
from redrive import Context, Filter, PermanentError, RateLimitedError, Redrive, State, Task, TransientError
from redrive.lane import NewTask, make_task

PAUSE_BEATS = 10
"""So long after the outage has healed somebody brings back what died of it."""
FORGOTTEN = "video.transcode"
"""A kind that nobody handles: a deploy that forgot its handler looks like this."""


class Tasks(Traffic):
    """Six kinds that are handled, and one that is not."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._run = secrets.token_hex(3)
        self._healthy_beats = PAUSE_BEATS  # nothing has died yet
        app.handler("mail.send", policy=PATIENTLY)(send_mail)
        app.handler("payment.capture", policy=PATIENTLY)(capture)
        app.handler("search.index", policy=PATIENTLY)(index)
        app.handler("customer.sync", policy=BRIEFLY)(sync)
        app.handler("report.render", policy=BRIEFLY)(render)
        app.handler("import.parse", policy=BRIEFLY)(parse)

    async def beat(self, number: int) -> None:
        """A few tasks, and now and then something that a person does."""
        tasks = [self._task("mail.send", number * 10 + one, {"message": number}) for one in range(chance.randint(1, 2))]
        tasks.append(self._task("search.index", number, {"document": number}))
        tasks.append(self._task("customer.sync", number, {"customer": number}))
        if number % 2:
            order = {"order": number, "currency": "EUR", "token": "tok_demo_4242"}
            tasks.append(self._task("payment.capture", number, order))
        if number % 6 == 1:
            tasks.append(self._task("report.render", number, {"month": "2026-01", "pages": chance.randint(3, 90)}))
        if number % 10 == 2:
            tasks.append(self._task("import.parse", number, {"file": number // 60, "row": number}))
        if number % 15 == 5:
            later = {"message": number, "newsletter": True}
            tasks.append(make_task("mail.send", later, key=self._newsletter(number), delay=span(60)))
        if number % 60 == 8:
            tasks.append(self._task(FORGOTTEN, number, {"video": number}))
        await self._app.add_many(tasks)
        await self._people(number)

    async def _people(self, number: int) -> None:
        if number % 30 == 10:
            reader = Filter(key=self._newsletter(number - 5))
            await self._app.tasks.cancel(reader, actor="demo: ada", reason="the reader has unsubscribed")
        if number % 60 == 48:
            nobody = Filter(kind=FORGOTTEN, state=State.WAITING)
            await self._app.tasks.cancel(nobody, actor="demo: grace", reason="the player does it itself now")
        self._healthy_beats = 0 if is_out() else self._healthy_beats + 1
        if self._healthy_beats == PAUSE_BEATS:
            lost = Filter(kind="customer.sync", state=State.DEAD)
            await self._app.tasks.redrive(lost, actor="demo: grace", reason="crm.example is back")

    def _task(self, kind: str, number: int, payload: dict[str, Any]) -> NewTask:
        return make_task(kind, payload, key=f"{kind}-{self._run}-{number}")

    def _newsletter(self, number: int) -> str:
        return f"newsletter-{self._run}-{number}"


async def send_mail(task: Task) -> None:
    """Nearly always works."""
    await work(0.02, 0.2)
    if chance.random() < 0.05:
        raise TransientError(f"421 mail.example did not answer for message {task.payload['message']}")


async def capture(task: Task, context: Context) -> None:
    """A flaky destination: a third of the tries fail, and now and then a card is refused for good."""
    await work(0.05, 0.4)
    drawn = chance.random()
    if drawn < 0.04:
        raise PermanentError(f"card of order {task.payload['order']} was declined")
    if drawn < 0.35:
        raise TransientError(f"503 from https://pay.example/capture/{task.payload['order']} at try {context.attempt}")


async def index(task: Task) -> None:
    """Limits its callers."""
    await work(0.01, 0.05)
    if chance.random() < 0.2:
        raise RateLimitedError(f"429 for document {task.payload['document']}", retry_after=span(3))


async def sync(task: Task) -> None:
    """Fails while the register is out, and heals with it; what died meanwhile has to be brought back."""
    await work(0.02, 0.1)
    if is_out():
        raise ConnectionError(f"crm.example:443 refused the connection for customer {task.payload['customer']}")


async def render(_task: Task) -> None:
    """Takes its time."""
    await work(1, 4)


async def parse(task: Task) -> None:
    """Poison: no try will ever work."""
    await work(0.02, 0.02)
    raise ValueError(f"row {task.payload['row']} of 'orders-{task.payload['file']}.csv' has no amount")
