"""Paying exactly once at a provider with idempotency keys: `python -m examples.payments`.

`provider` is a local fake that behaves as Stripe documents its API (v1), `shop` the application. `docs/guides/pay-exactly-once.md` walks
through both.
"""
