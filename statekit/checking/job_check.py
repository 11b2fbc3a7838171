"""All findings about a job before it runs. `Job.check` describes it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from typing import Any

from statekit.checking.checkpoint_fit import checkpoint_findings, stored_job
from statekit.checking.connections import connection_findings, connections_of
from statekit.checking.declared_parts import declared_findings
from statekit.errors import StatekitError, StateTypeError
from statekit.job.findings import JobFinding, Severity
from statekit.job.plan import Plan
from statekit.shown import shown


def check_job(
    job: Plan,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    checkpoint: str | None,
    *,
    spark: bool,
    allow_dropped_state: bool,
    connections: bool,
    limit_s: float,
    needs_targets: bool,
) -> list[JobFinding]:
    """Return the findings about a job. `Job.check` describes the arguments.

    Parameters:
        needs_targets: whether a sink without a target is an error.
    """
    if not (0 < limit_s < math.inf):
        raise StateTypeError(f"limit_s={shown(limit_s)}: give a number of seconds above 0")
    origins, targets = job.origins(inputs), job.targets(outputs)
    found = list(declared_findings(job, origins, targets, spark=spark, needs_targets=needs_targets))
    found += _of_workers(job, origins, targets, "error" if spark else "warning")
    if checkpoint is not None:
        found += checkpoint_findings(
            job, checkpoint, allow_dropped_state=allow_dropped_state, limit_s=limit_s
        )
    if connections:
        checkpoint_id = _id_of(checkpoint)
        found += connection_findings(connections_of(job, origins, targets, checkpoint_id), limit_s)
    return found


def _of_workers(
    job: Plan, origins: Mapping[str, object], targets: Mapping[str, object], severity: Severity
) -> Iterator[JobFinding]:
    if importlib.util.find_spec("pyspark") is None:
        what = "whether Spark's workers get its functions is not checked: pyspark is not installed"
        yield JobFinding(severity, f"job {job.name}", what)
        return
    from statekit.checking.worker_functions import function_findings  # it imports pyspark

    yield from function_findings(job, origins, targets, severity)


def _id_of(checkpoint: str | None) -> str:
    """Return the id of a checkpoint; that of none if there is none, or if it cannot be read."""
    try:
        stored = None if checkpoint is None else stored_job(checkpoint)
    except StatekitError:
        return "check"
    return "check" if stored is None else stored.job_file.id
