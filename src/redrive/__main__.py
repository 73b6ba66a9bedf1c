"""`python -m redrive` is the command line."""

from redrive.cli import main

main()
