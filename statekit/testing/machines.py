"""Base classes of Hypothesis state machines, for states and for jobs.

`import statekit.testing` does not import this module, which needs Hypothesis.
"""

from statekit.testing.job_machine import JobMachine, JobModel
from statekit.testing.state_machines import (
    AggregatingStateMachine,
    ListStateMachine,
    MapStateMachine,
    ReducingStateMachine,
    StateMachine,
    ValueStateMachine,
)

__all__ = [
    "AggregatingStateMachine",
    "JobMachine",
    "JobModel",
    "ListStateMachine",
    "MapStateMachine",
    "ReducingStateMachine",
    "StateMachine",
    "ValueStateMachine",
]
