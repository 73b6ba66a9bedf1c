"""The systems, one folder each."""
