"""`python -m miles_cli` is `miles`."""

from miles_cli.app import main

main()
