"""Base class of Hypothesis state machines of jobs.

`import statekit.testing` does not import this module, which needs Hypothesis.
"""

from statekit.testing.checks.job_machine import JobMachine, JobModel

__all__ = ["JobMachine", "JobModel"]
