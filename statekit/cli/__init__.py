"""The command line `statekit`: one module per command, and `app`, which registers them.

May import everything. `demo` is imported only when `statekit demo` runs.
"""

from statekit.cli.app import main

__all__ = ["main"]
