"""The shop's tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """See above."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[("id", models.BigAutoField(primary_key=True)), ("number", models.IntegerField(unique=True))],
        ),
        migrations.CreateModel(
            name="Mail",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("to", models.TextField()),
                ("status", models.CharField(max_length=10, default="new")),
                ("attempts", models.IntegerField(default=0)),
                ("next_attempt_at", models.DateTimeField(null=True)),
                ("last_error", models.TextField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                ("claim_id", models.UUIDField(null=True)),
            ],
        ),
    ]
