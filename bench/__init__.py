"""Benchmarks of redrive, its peers and the raw limits of the stores. Start it with `python -m bench`."""
