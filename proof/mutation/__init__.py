"""Mutation testing: what runs beside mutmut (`tried`), and which survivors were looked at (`looked_at`)."""
