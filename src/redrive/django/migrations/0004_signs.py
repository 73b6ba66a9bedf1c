"""What a worker says of itself besides: `redrive_0013`."""

from django.db import migrations

from redrive.django.tables import upgrade


class Migration(migrations.Migration):
    """See above."""

    dependencies = [("redrive", "0003_probes")]
    operations = [migrations.RunPython(upgrade, migrations.RunPython.noop)]
