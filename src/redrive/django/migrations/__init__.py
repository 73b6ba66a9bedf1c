"""The migrations of Django: one for each version of redrive's own tables."""
