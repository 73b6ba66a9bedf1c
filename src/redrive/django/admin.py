"""The admin: tasks to look at, each with a link to its page on the dashboard, where they are acted on."""

from typing import Any

from redrive.django.models import RedriveTask
from redrive.errors import needs_extra

with needs_extra("redrive.django", "django"):
    from django.conf import settings
    from django.contrib import admin
    from django.utils.html import format_html


@admin.register(RedriveTask)
class RedriveTaskAdmin(admin.ModelAdmin):
    """Read only. `REDRIVE_DASHBOARD_URL` says where `redrive serve` is."""

    list_display = ("kind", "key", "state", "failures", "dashboard")
    list_filter = ("state",)
    search_fields = ("=key", "kind")
    fields = readonly_fields = ("kind", "key", "state", "failures", "last_error", "dashboard")
    show_full_result_count = False  # counting all of a large table takes long, and the dashboard knows

    @admin.display(description="dashboard")
    def dashboard(self, task: RedriveTask) -> str:
        """The task's page there."""
        base = getattr(settings, "REDRIVE_DASHBOARD_URL", None)
        if base is None:
            return "-"
        return str(format_html('<a href="{}/tasks/redrive_task/{}">open</a>', base.rstrip("/"), task.pk))

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002
        """Tasks are enqueued."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """Tasks are redriven and cancelled on the dashboard, which keeps who did it and why."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ARG002
        """They go when their time is over."""
        return False
