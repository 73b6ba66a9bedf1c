"""Keys, sessions and secrets in tables of SQL."""
