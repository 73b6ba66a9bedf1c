"""What has ended is found by its kind and state: `redrive_0014`."""

from django.db import migrations

from redrive.django.tables import upgrade


class Migration(migrations.Migration):
    """See above."""

    dependencies = [("redrive", "0004_signs")]
    operations = [migrations.RunPython(upgrade, migrations.RunPython.noop)]
