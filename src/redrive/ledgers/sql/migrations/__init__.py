"""Alembic migrations of redrive's own tables; `ledgers.migrate` runs them."""
