"""The pure core: values and functions without I/O, clock or randomness.

Read `states` and `task` for the words, `backoff`, `jitter` and `policy` for the maths, `decide` for the one
place that decides, `table` for how a foreign table becomes a ledger.
"""
