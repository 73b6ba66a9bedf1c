"""Alembic's entry: the connection comes from `ledgers.migrate`, never from a configuration file."""

from typing import Any

from alembic import context

from redrive.ledgers.sql.schema import metadata

connection = context.config.attributes.get("connection")
options: dict[str, Any] = {
    "target_metadata": metadata,
    "version_table": "redrive_version",
    "transaction_per_migration": False,
}
if connection is None:
    context.configure(dialect_name=context.config.attributes["dialect"], literal_binds=True, as_sql=True, **options)
else:
    # Said, or a table of that name in another schema of the path would be taken for it.
    context.configure(connection=connection, version_table_schema=context.config.attributes.get("schema"), **options)
with context.begin_transaction():
    context.run_migrations()
