"""Testing process functions without a cluster.

What lives here: `Harness`, which drives the real task, repository and coordinator in this process;
`bind`, which makes state handles for calling a function directly; `check_redistribution`, for
functions that split and merge operator state; and a backend that counts what is read and written.
What does not: any second implementation of state.
"""

from statekit.testing.counting import CountingBackend
from statekit.testing.harness import Harness, bind
from statekit.testing.redistribution import check_redistribution

__all__ = ["CountingBackend", "Harness", "bind", "check_redistribution"]
