"""Run an epoch until it is committed, with an error now and then."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from statekit.errors import StatekitError
from statekit.testing.job_harness import JobHarness
from statekit.testing.subject import Observed, Step

ATTEMPTS_MAX = 50
"""Maximum number of attempts of an epoch with faults. Each fault happens once."""


def with_restarts(
    step: Step, started: Callable[[], JobHarness], harness: JobHarness | None, observed: Observed
) -> JobHarness:
    """Run an epoch until it is committed. After the first error the process continues with its
    working copies; after every second error the job is started again.
    """
    number, published = len(observed.epochs), dict[str, list[Any]]()
    for attempt in count(1):
        try:
            if harness is None:
                harness = started()
            if harness.epoch is None or harness.epoch < number:
                if step.has_nothing_to_do(harness):
                    break
                step.publish(harness, published)
            observed.add(dict(published), harness)
            break
        except StatekitError:
            if attempt > ATTEMPTS_MAX:
                raise
            if attempt % 2 == 0:
                harness = None
    assert harness is not None
    return harness
