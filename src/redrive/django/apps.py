"""The app that stands in `INSTALLED_APPS`."""

from redrive.errors import needs_extra

with needs_extra("redrive.django", "django"):
    from django.apps import AppConfig


class RedriveConfig(AppConfig):
    """redrive's tables, commands and pages of the admin."""

    name = "redrive.django"
    label = "redrive"
    verbose_name = "redrive"
    default_auto_field = "django.db.models.BigAutoField"
