"""Commands of Django."""
