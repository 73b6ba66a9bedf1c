"""PostgreSQL: what differs from other databases."""
