"""What is done in the shop of `examples/django_shop`, once on each database; prints what was seen as JSON."""

import asyncio
import json
import random
import sys
from datetime import datetime, timedelta
from typing import Any

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import Client  # noqa: E402
from django.utils import timezone  # noqa: E402

from examples.django_shop.shop.models import Mail, Order  # noqa: E402
from examples.django_shop.shop.tasks import count, refuse, send_invoice  # noqa: E402
from redrive import LedgerTable  # noqa: E402
from redrive.django.application import get_app, handle_tasks  # noqa: E402
from redrive.django.compat import TaskResultDoesNotExist, task_backends, task_enqueued, task_finished, task_started  # noqa: E402
from redrive.django.models import RedriveTask  # noqa: E402
from redrive.errors import TableError  # noqa: E402
from redrive.testing import drain  # noqa: E402

seen: dict[str, Any] = {}
signals: list[str] = []
rounds = int(sys.argv[1])


def note(name: str) -> Any:
    """A receiver that writes down what it was told."""

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        signals.append(f"{name} {task_result.task.name} {task_result.status}")

    return receive


receivers = [note("enqueued"), note("started"), note("finished")]
for signal, receiver in zip((task_enqueued, task_started, task_finished), receivers, strict=True):
    signal.connect(receiver)


def shown(result: Any) -> dict[str, Any]:
    """A result as Django's users see it."""
    result.refresh()
    return {
        "status": str(result.status),
        "attempts": result.attempts,
        "errors": [[one.exception_class_path, one.traceback.splitlines()[0]] for one in result.errors],
        "value": result.return_value if result.status == "SUCCESSFUL" else None,
        "times": [one is not None for one in (result.enqueued_at, result.started_at, result.finished_at)],
    }


async def work() -> None:
    """All that is due, done."""
    app = get_app()
    async with app:
        await drain(app)


call_command("migrate", verbosity=0)
call_command("migrate", verbosity=0)
handle_tasks(get_app(), {"retries": 3})

# Both or neither, a thousand times, in whatever way a transaction ends.
draw = random.Random(7)
for number in range(rounds):
    try:
        with transaction.atomic():
            Order.objects.create(number=number)
            with transaction.atomic():
                send_invoice.enqueue(number=number)
                if draw.random() < 0.3:
                    raise KeyError(number)
            if draw.random() < 0.3:
                raise KeyError(number)
    except KeyError:
        pass
orders = set(Order.objects.values_list("number", flat=True))
with connection.cursor() as cursor:
    cursor.execute("SELECT payload FROM redrive_task")
    tasks = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in cursor.fetchall()]
invoiced = {task["kwargs"]["number"] for task in tasks}
seen["rounds"] = {"orders": len(orders), "tasks": len(tasks), "same": orders == invoiced}
RedriveTask.objects.all().delete()
signals.clear()

# Results.
outside = send_invoice.enqueue(7)
refused = refuse.enqueue(13)
counted = asyncio.run(count.aenqueue(40))
late = send_invoice.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(8)
with transaction.atomic():
    inner = send_invoice.enqueue(9)
    seen["uncommitted"] = shown(inner)["status"]
    transaction.set_rollback(True)
try:
    inner.refresh()
except TaskResultDoesNotExist:
    seen["rolled back"] = True
seen["ready"] = shown(outside)["status"]
asyncio.run(work())
seen["done"], seen["dead"], seen["async"], seen["late"] = map(shown, (outside, refused, counted, late))
seen["signals"] = signals

# What Django's contract of a backend promises and refuses.
backend = task_backends["default"]


def refusal(call: Any) -> str:
    """The name of the error."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


there = RedriveTask.objects.count()
seen["refused"] = {
    "a priority": refusal(lambda: send_invoice.using(priority=10).enqueue(1)),
    "an unknown queue": refusal(lambda: send_invoice.using(queue_name="elsewhere").enqueue(1)),
    "a time without a zone": refusal(lambda: send_invoice.using(run_after=datetime(2030, 1, 1)).enqueue(1)),
    "what is not JSON": refusal(lambda: send_invoice.enqueue(object())),
    "an unknown id": refusal(lambda: backend.get_result("nobody")),
    "the result of another task": refusal(lambda: send_invoice.get_result(refused.id)),
    "a return value before its time": refusal(lambda: late.return_value),
}
seen["supports"] = [
    backend.supports_defer,
    backend.supports_async_task,
    backend.supports_get_result,
    backend.supports_priority,
]
seen["left behind"] = RedriveTask.objects.count() - there
seen["awaited"] = str(asyncio.run(backend.aget_result(outside.id)).status)
seen["its own"] = send_invoice.get_result(outside.id) == backend.get_result(outside.id)

# The admin.
User.objects.create_superuser("ada", password="ada")
client = Client()
client.login(username="ada", password="ada")
page = client.get("/admin/redrive/redrivetask/")
task = RedriveTask.objects.get(key=outside.id)
one = client.get(f"/admin/redrive/redrivetask/{task.pk}/change/")
link = f"http://127.0.0.1:8086/tasks/redrive_task/{task.pk}"
seen["admin"] = [page.status_code, link in page.content.decode(), one.status_code, link in one.content.decode()]

# A model as a ledger.
table = LedgerTable.of(Mail)
seen["model"] = [table.name, table.due, table.count, table.words.waiting, table.words.done, table.words.dead]
mails = get_app().adopt(table)


@mails.handler
def send(task: Any) -> None:
    """Sends."""
    seen["sent"] = task.payload["to"]


async def adopt() -> None:
    """As the error says."""
    try:
        await get_app().open()
    except TableError as error:
        seen["migration"] = error.migration
    await get_app().close()


asyncio.run(adopt())
with connection.cursor() as cursor:
    for statement in seen.pop("migration", []):
        cursor.execute(statement)
Mail.objects.create(to="ada")
asyncio.run(work())
seen["mail"] = Mail.objects.get().status
connection.close()
print(json.dumps(seen))
