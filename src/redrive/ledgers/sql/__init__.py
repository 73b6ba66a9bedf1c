"""The one SQL implementation of the ledger port. What differs between databases lives in `sqlite` and `postgres` beside it."""
