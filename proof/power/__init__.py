"""Power cuts on SQLite: what a process does to its files is recorded, and every disk that a cut could have left behind is built and opened."""
