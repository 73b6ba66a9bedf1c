"""Triggers on SQLite and PostgreSQL: events, deliveries and endpoints are rows of tables."""
