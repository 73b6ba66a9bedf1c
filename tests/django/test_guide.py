"""The guide to Django, `docs/guides/django.md`, followed in an empty folder: its settings, its tasks and its transaction."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "guides" / "django.md"
BEFORE = """
import django
from django.conf import settings as given

{settings}
own = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin", "django.contrib.messages"]
given.configure(INSTALLED_APPS=own + INSTALLED_APPS, TASKS=TASKS, REDRIVE_DASHBOARD_URL=REDRIVE_DASHBOARD_URL, USE_TZ=True,
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}}})
django.setup()
from django.core.management import call_command
from django.db import connection, models

class Order(models.Model):
    number = models.IntegerField()
    class Meta:
        app_label = "shop"

call_command("migrate", verbosity=0)
with connection.schema_editor() as editor:
    editor.create_model(Order)
"""
AFTER = """
import asyncio, json
from shop import TASKS, Order, connection

async def work():
    from redrive.django.application import get_app, handle_tasks
    from redrive.testing import drain
    app = get_app()
    handle_tasks(app, TASKS["default"]["OPTIONS"])
    async with app:
        await drain(app)

connection.close()
asyncio.run(work())
from redrive.django.models import RedriveTask
print(json.dumps([Order.objects.count(), [one.state for one in RedriveTask.objects.all()]]))
"""


def test_the_guide_works_as_written(tmp_path: Path) -> None:
    """The order is there, and its invoice is done. Where Django has tasks inside, as its comments say: without the app and by the other import."""
    settings, tasks, order = blocks(PAGE, "python")
    if find_spec("django.tasks") is not None:
        settings = settings.replace('"django_tasks",  # before Django 6', "")
        tasks = tasks.replace("from django_tasks import task", "from django.tasks import task")
    # Django finds a task by its module: this file.
    (tmp_path / "shop.py").write_text(BEFORE.format(settings=settings) + tasks + order)
    (tmp_path / "work.py").write_text(AFTER)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "work.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [1, ["done"]]
