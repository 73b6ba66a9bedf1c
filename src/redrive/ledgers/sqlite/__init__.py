"""SQLite: what differs from other databases."""
