"""A deterministic simulator: the real engine in virtual time, with everything that can go wrong, and a model that looks after every commit."""
