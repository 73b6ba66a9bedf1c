"""The version of the code that made a try: `redrive_0011`."""

from django.db import migrations

from redrive.django.tables import upgrade


class Migration(migrations.Migration):
    """See above."""

    dependencies = [("redrive", "0001_tables")]
    operations = [migrations.RunPython(upgrade, migrations.RunPython.noop)]
