"""A ledger whose tasks are parts of items in DynamoDB, and whose waiting is done by a queue of SQS.

The item is the truth, a message only says "look at this item". Pure functions read items and build requests (`attributes`,
`expressions`, `heads`, `changes`, `history`); a thin edge sends them (`client`, `queue`, `table`); the verbs of the port stand on
both (`claim`, `settle`, `acts`, `reader`), joined in `ledger`. See ADR 19.
"""
