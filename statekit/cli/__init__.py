"""The command line `statekit`: a module for each command or a few related ones; `app` registers
them.

May import everything. `demo` is imported only when `statekit demo` runs.
"""

from statekit.cli.app import main

__all__ = ["main"]
