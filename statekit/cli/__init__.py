"""The command line `statekit`: one module per command, `app` registers them.

Imports everything but `demo`, which `statekit demo` starts by its name.
"""

from statekit.cli.app import main

__all__ = ["main"]
