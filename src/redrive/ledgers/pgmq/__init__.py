"""A queue of PGMQ as a ledger."""
