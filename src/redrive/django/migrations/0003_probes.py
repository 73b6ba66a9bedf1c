"""Probes of gates, and what gates keep back in each minute: `redrive_0012`."""

from django.db import migrations

from redrive.django.tables import upgrade


class Migration(migrations.Migration):
    """See above."""

    dependencies = [("redrive", "0002_versions")]
    operations = [migrations.RunPython(upgrade, migrations.RunPython.noop)]
