"""The loop: claim, run, decide, settle. Asyncio, no driver, no SQL.

`handlers` knows what to call, `run` calls it, `worker` keeps the slots full, `keeper` keeps house.
"""
