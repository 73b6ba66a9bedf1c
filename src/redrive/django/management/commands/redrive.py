"""`manage.py redrive worker`: run the tasks of Django until told to stop."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from redrive.django.application import get_app, handle_tasks
from redrive.django.backend import RedriveBackend
from redrive.django.compat import task_backends
from redrive.errors import RedriveError


class RedriveCommand(BaseCommand):
    """See above."""

    help = "Durable retries: `redrive worker` runs tasks until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """What can be said."""
        commands = parser.add_subparsers(dest="command", required=True)
        worker = commands.add_parser("worker", help="Run tasks until SIGTERM or Ctrl-C.")
        worker.add_argument("--backend", default="default", help="Which of TASKS, by its alias.")
        worker.add_argument("--concurrency", type=int, help="How many tasks run at once.")

    def handle(self, *_: Any, **options: Any) -> None:
        """Do it."""
        from redrive.cli.worker import run_worker

        backend = task_backends[options["backend"]]
        if not isinstance(backend, RedriveBackend):
            raise CommandError(
                f"TASKS[{options['backend']!r}] is {type(backend).__name__}: name one of redrive with --backend"
            )
        try:
            run_worker(handle_tasks(get_app(backend.database), backend.options), concurrency=options["concurrency"])
        except RedriveError as error:
            raise CommandError(str(error)) from error


Command = RedriveCommand
"""The name that Django looks for."""
