"""redrive's own tables, up to `redrive_0010`. The model is there for the admin alone, and no table of Django's."""

from django.db import migrations, models

from redrive.django.tables import upgrade


class Migration(migrations.Migration):
    """See above."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.RunPython(upgrade, migrations.RunPython.noop),
        migrations.CreateModel(
            name="RedriveTask",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("key", models.TextField(unique=True)),
                ("kind", models.TextField()),
                ("state", models.TextField()),
                ("failures", models.IntegerField()),
                ("last_error", models.TextField(null=True)),
            ],
            options={"db_table": "redrive_task", "managed": False, "ordering": ["-id"], "verbose_name": "task"},
        ),
    ]
