"""For Django: a backend for its tasks. `enqueue` joins `transaction.atomic()`, and what fails is retried.

    INSTALLED_APPS = [..., "redrive.django"]
    TASKS = {"default": {"BACKEND": "redrive.django.backend.RedriveBackend"}}

Tables come with `manage.py migrate`, and `manage.py redrive worker` works. `docs/guides/django.md` has the rest.
"""

from redrive.django.policies import retried

__all__ = ["retried"]
