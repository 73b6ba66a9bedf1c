"""Faults as tests: real processes, real signals, real databases. Each test's docstring is the claim that it shows."""
