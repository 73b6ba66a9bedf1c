"""Where an application keeps what it knows: all parts of one store in one hand, chosen by a URL."""
