"""Who may come in: keys, and sessions of people."""
