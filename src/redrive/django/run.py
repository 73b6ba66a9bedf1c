"""Running a task of Django's: its function is called as Django would call it, and told by the same signals."""

import inspect
import traceback
from typing import Any

from redrive.core.decide import failures_max_of
from redrive.core.failure import RETRIED
from redrive.core.policy import Policy
from redrive.core.task import Task
from redrive.django.compat import TaskContext, TaskError, TaskResult, TaskResultStatus, task_finished, task_started
from redrive.django.policies import path_of
from redrive.engine.context import Context
from redrive.errors import PermanentError, needs_extra

with needs_extra("redrive.django", "django"):
    from django.db import close_old_connections
    from django.utils import timezone
    from django.utils.module_loading import import_string

KIND = "django:"
"""What the kinds of Django's tasks begin with; the path of the task follows."""


class DjangoRunner:
    """Calls the functions of tasks, under the policy that decides whether a failure is the last."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, task: Task, context: Context) -> Any:
        """Run a task in a thread; what a coroutine function gives is awaited by the worker."""
        called = _Call(task, context, self._policy)
        if inspect.iscoroutinefunction(called.found.func):
            return called.in_loop()
        return called.in_thread()


class _Call:
    """One try."""

    def __init__(self, task: Task, context: Context, policy: Policy) -> None:
        path = task.kind.removeprefix(KIND)
        try:
            self.found = import_string(path)
        except ImportError as error:
            raise PermanentError(f"there is no task {path!r} in this code: {error}") from error
        self._last = context.attempt >= failures_max_of(context.claim, policy)
        self._policy = policy
        self._backend = self.found.get_backend()
        now = timezone.now()
        self.result = TaskResult(
            task=self.found, id=task.key, status=TaskResultStatus.RUNNING, enqueued_at=task.created_at, started_at=now,
            finished_at=None, last_attempted_at=now, args=task.payload["args"], kwargs=task.payload["kwargs"],
            backend=self._backend.alias, errors=[], worker_ids=[""] * context.attempt,
        )  # fmt: skip
        given: list[Any] = [TaskContext(task_result=self.result)] if self.found.takes_context else []
        self._arguments = [*given, *self.result.args]

    def in_thread(self) -> Any:
        """Call a plain function. Connections of Django belong to threads, and this one has seen other tasks."""
        close_old_connections()
        try:
            self._tell(task_started)
            try:
                value = self.found.func(*self._arguments, **self.result.kwargs)
            except BaseException as error:
                self._failed(error)
                raise
            self._ended(TaskResultStatus.SUCCESSFUL)
            return value
        finally:
            close_old_connections()

    async def in_loop(self) -> Any:
        """Call a coroutine function; signals may ask the database, so they are sent as Django does in async code."""
        await task_started.asend(type(self._backend), task_result=self.result)
        try:
            value = await self.found.func(*self._arguments, **self.result.kwargs)
        except Exception as error:
            if self._note(error):
                await task_finished.asend(type(self._backend), task_result=self.result)
            raise
        self._set(TaskResultStatus.SUCCESSFUL)
        await task_finished.asend(type(self._backend), task_result=self.result)
        return value

    def _failed(self, error: BaseException) -> None:
        if self._note(error):
            self._tell(task_finished)

    def _note(self, error: BaseException) -> bool:
        """Whether this failure ends the task; the result then says so."""
        if not self._last and self._policy.classify(error)[0] in RETRIED:
            return False
        told = "".join(traceback.format_exception(error))
        self.result.errors.append(TaskError(exception_class_path=path_of(type(error)), traceback=told))
        self._set(TaskResultStatus.FAILED)
        return True

    def _ended(self, status: Any) -> None:
        self._set(status)
        self._tell(task_finished)

    def _set(self, status: Any) -> None:
        object.__setattr__(self.result, "finished_at", timezone.now())
        object.__setattr__(self.result, "status", status)

    def _tell(self, signal: Any) -> None:
        signal.send(type(self._backend), task_result=self.result)
