"""Orders, and mails that are retried as they are: a model may be a ledger itself."""

from django.db import models


class Order(models.Model):
    """An order."""

    number = models.IntegerField(unique=True)


class Mail(models.Model):
    """A mail, with the columns that many have for retries, and the two that redrive needs."""

    class Status(models.TextChoices):
        """Where it stands."""

        NEW = "new", "New"
        GONE = "gone", "Sent"
        LOST = "lost", "Failed"

    to = models.TextField()
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.NEW)
    attempts = models.IntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    last_error = models.TextField(null=True)
    lease_until = models.DateTimeField(null=True)
    claim_id = models.UUIDField(null=True)
