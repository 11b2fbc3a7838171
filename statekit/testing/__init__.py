"""Test process functions and jobs without a cluster.

`Harness` runs one operator with real epochs, `JobHarness` a whole job. `check` searches for
histories with wrong results, `check_…` for values that break a law, and `check_sink` for kills
after which a sink has an epoch twice. `models` are states in plain Python. `strategies`,
`histories` and `machines` are for Hypothesis, and `processors` for processors of Spark. `faults`
fails on purpose.

May import `testing/drivers`, `spark/tws` and whatever those may import. `machines` and this file
also name what is in the folders above.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from statekit.testing.drivers.harness import Harness, states
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.faults import Fault, Faults, FaultyBackend, FaultyCopies, faulty
from statekit.testing.replay import Replay, replay

if TYPE_CHECKING:
    from statekit.testing.checks.check import check
    from statekit.testing.checks.laws import check_aggregate, check_migration, check_reducer
    from statekit.testing.checks.redistribution import check_redistribution
    from statekit.testing.sinks.check_sink import check_sink

__all__ = [
    "Fault",
    "Faults",
    "FaultyBackend",
    "FaultyCopies",
    "Harness",
    "JobHarness",
    "Replay",
    "check",
    "check_aggregate",
    "check_migration",
    "check_redistribution",
    "check_reducer",
    "check_sink",
    "faulty",
    "replay",
    "states",
]

_CHECKS = {
    "check": "checks.check",
    "check_aggregate": "checks.laws",
    "check_migration": "checks.laws",
    "check_redistribution": "checks.redistribution",
    "check_reducer": "checks.laws",
    "check_sink": "sinks.check_sink",
}
"""The modules of the checks: only these need Hypothesis."""


if not TYPE_CHECKING:  # else every name would be one of this package, to mypy

    def __getattr__(name: str) -> Any:
        """Import the module of a check on first use, and return the check."""
        if name not in _CHECKS:
            raise AttributeError(f"module 'statekit.testing' has no attribute {name!r}")
        return getattr(importlib.import_module(f"statekit.testing.{_CHECKS[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names: completion does not list the modules that are imported with them."""
    return sorted(__all__)
