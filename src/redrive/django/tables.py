"""redrive's tables in the migrations of Django: each of those brings them to the version of the code that runs it."""

from typing import Any

from redrive.django.application import django_connection, get_app
from redrive.ledgers.sql.migrate import upgrade_on


def upgrade(_apps: Any, schema_editor: Any) -> None:
    """For `RunPython`: make what is missing, in the transaction of Django's migration."""
    alias = schema_editor.connection.alias
    if schema_editor.connection.vendor not in ("sqlite", "postgresql"):
        return
    with django_connection(alias) as connection:
        upgrade_on(connection, get_app(alias).database)
