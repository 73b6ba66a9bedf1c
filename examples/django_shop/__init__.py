"""A shop in Django whose invoices are tasks: `python -m examples.django_shop migrate`, `… redrive worker`, `… order 7`.

`docs/guides/django.md` walks through it.
"""
