"""What the systems share, one short idea a file."""
