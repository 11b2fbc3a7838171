"""Test process functions without a cluster.

`harness` runs one operator with real epochs, `faults` fails on purpose. May import `runtime` and
whatever that may import.
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
