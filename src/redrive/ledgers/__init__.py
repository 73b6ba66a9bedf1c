"""Adapters behind the ledger port.

`schema` holds our own tables, `adopt` fits a foreign one, `statements` builds the SQL of both once, `sql` is the one
implementation of the port, `sqlite` and `postgres` hold what differs: engines, clocks, wake-ups, batches.
"""
