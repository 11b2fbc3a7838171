"""`python -m statekit.cli` runs the command line."""

from statekit.cli.app import main

main()
