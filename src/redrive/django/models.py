"""redrive's own table as Django's admin reads it. Nobody writes by it: acts go through redrive, which keeps their history."""

from typing import Any, ClassVar

from redrive.errors import needs_extra

with needs_extra("redrive.django", "django"):
    from django.db import models


class RedriveTask(models.Model):
    """A task, to look at."""

    id = models.BigAutoField(primary_key=True)
    key = models.TextField(unique=True)
    kind = models.TextField()
    state = models.TextField()
    failures = models.IntegerField()
    last_error = models.TextField(null=True)

    class Meta:
        """The table is redrive's own."""

        db_table = "redrive_task"
        managed = False
        ordering: ClassVar[Any] = ["-id"]
        verbose_name = "task"

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"
