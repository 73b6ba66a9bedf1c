"""Adopting a table that is not ours: guess its mapping, check it, advise."""
