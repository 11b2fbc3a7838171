"""Testing process functions without a cluster.

What lives here: `Harness`, which drives the real task, repository and coordinator in this process;
`bind`, which makes state handles for calling a function directly; `check_redistribution`, for
functions that split and merge operator state; a backend that counts what is read and written; and
faults, at which a store or a backend goes wrong.
What does not: any second implementation of state.
"""

from statekit.testing.counting import CountingBackend
from statekit.testing.faults import Fault, Faults, FaultyBackend, FaultyCopies, faulty
from statekit.testing.harness import Harness, bind
from statekit.testing.redistribution import check_redistribution

__all__ = [
    "CountingBackend",
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyCopies",
    "Harness",
    "bind",
    "check_redistribution",
    "faulty",
]
