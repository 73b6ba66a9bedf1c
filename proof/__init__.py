"""The campaign: each promise, how it was tried, how often, and what was found. `python -m proof`, or `make proof`."""
