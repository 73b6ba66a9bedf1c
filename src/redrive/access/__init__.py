"""Who may come in: keys and shared secrets."""
