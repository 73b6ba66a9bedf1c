"""`manage.py redrive`."""
