"""The backend for Django's tasks: what is enqueued is a task of redrive, in the transaction that Django has open."""

import builtins
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, select

from redrive.core.stack import stack_lines
from redrive.core.task import Attempt
from redrive.django.application import django_connection, get_app, own_ledger, plain_connection
from redrive.django.compat import (
    BaseTaskBackend,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from redrive.django.run import KIND
from redrive.errors import needs_extra
from redrive.ledgers.sql import schema
from redrive.ledgers.sql.ledger import SqlLedger

with needs_extra("redrive.django", "django"):
    from django.utils import timezone
    from django.utils.module_loading import import_string

_STATUSES = {
    "waiting": TaskResultStatus.READY,
    "claimed": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
}
"""Dead and cancelled are FAILED: Django has no other word for what will not be tried again."""


class RedriveBackend(BaseTaskBackend):
    """Durable retries for Django's tasks, on a database that Django has already.

    OPTIONS: `database`, the alias of the database (`default`), and the words of `Redrive.handler` for tasks that do not say
    themselves how they are retried: `retries`, `wait`, `permanent` and so on.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", "default")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Store a task. Inside `atomic()` it is there if and only if that commits; without, when this returns."""
        self.validate_task(task)
        now = timezone.now()
        result = TaskResult(
            task=task, id=str(uuid4()), status=TaskResultStatus.READY, enqueued_at=now, started_at=None, finished_at=None,
            last_attempted_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        get_app(self.database).add_sync(
            f"{KIND}{task.module_path}",
            {"args": result.args, "kwargs": result.kwargs, "queue": task.queue_name},
            key=result.id,
            delay=timedelta(0) if task.run_after is None else max(task.run_after - now, timedelta(0)),
            within=plain_connection(self.database),
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """What is known of a task, as Django's own connection sees it: also what its transaction has not committed yet."""
        ledger = own_ledger(self.database)
        with django_connection(self.database) as connection:
            found = (
                connection.execute(select(schema.task).where(schema.task.c.key == str(result_id))).mappings().first()
            )
            if found is None or not found["kind"].startswith(KIND):
                raise TaskResultDoesNotExist(result_id)
            return self._read(connection, ledger, dict(found))

    def _read(self, connection: Connection, ledger: SqlLedger, row: dict[str, Any]) -> Any:
        tries = ledger.attempts_on(connection, row["id"])
        began = [one.started_at for one in tries if one.started_at is not None]
        claimed = [row["claimed_at"]] if row["state"] == "claimed" else []
        starts = began + claimed
        result = TaskResult(
            task=import_string(row["kind"].removeprefix(KIND)),
            id=row["key"],
            status=_STATUSES.get(row["state"], TaskResultStatus.FAILED),
            enqueued_at=row["created_at"],
            started_at=starts[0] if starts else None,
            finished_at=row["ended_at"],
            last_attempted_at=starts[-1] if starts else None,
            args=row["payload"]["args"],
            kwargs=row["payload"]["kwargs"],
            backend=self.alias,
            errors=[_error(one) for one in tries if one.outcome in ("failed", "lease_expired")],
            worker_ids=[one.worker for one in tries],
        )
        if result.status == TaskResultStatus.SUCCESSFUL:
            object.__setattr__(result, "_return_value", ledger.results.read(connection, row["id"]))
        return result


def _error(attempt: Attempt) -> Any:
    """The failure of a try. The history knows the name of an exception's class but not its module: one that is not Python's own is an
    `Exception`, and its name stands in the traceback."""
    name = (attempt.error or "").partition(":")[0]
    known = name if isinstance(getattr(builtins, name, None), type) else "Exception"
    told = [attempt.error or "", *stack_lines(attempt.stack)[1:]]
    return TaskError(exception_class_path=f"builtins.{known}", traceback="\n".join(told))
