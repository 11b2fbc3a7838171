"""Findings about the functions, sources and sinks of a job as Spark's workers get them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping

from statekit.errors import StatekitError, StateTypeError
from statekit.job.findings import JobFinding, Severity
from statekit.job.plan import Plan
from statekit.sinks.protocol.sink import Sink
from statekit.sources.source import Source
from statekit.spark.worker.pickling import Pickled, pickled, unpickled

_LIMIT_S = 60.0
"""How long the fresh interpreter may take, in seconds: it imports the modules of the job."""

_CODE = "from statekit.checking.worker_functions import report; report()"


def function_findings(
    job: Plan, origins: Mapping[str, object], targets: Mapping[str, object], severity: Severity
) -> Iterator[JobFinding]:
    """Pickle the functions of a job, unpickle them in a new interpreter, and yield the findings.

    Parameters:
        origins, targets: of the run, by source and by sink.
        severity: of functions that workers do not get.
    """
    sent: list[Pickled[object]] = []
    for where, part in _parts(job, origins, targets).items():
        try:
            sent.append(pickled(part, where))
        except StateTypeError as error:
            yield JobFinding(severity, where, str(error))
    for where, problem in _in_new_interpreter(sent).items():
        if problem:
            yield JobFinding(severity, where, problem)
        else:
            yield JobFinding("ok", where, "a Spark worker can unpickle it")


def _parts(
    job: Plan, origins: Mapping[str, object], targets: Mapping[str, object]
) -> dict[str, object]:
    found: dict[str, object] = {f"operator {each.name}": each.declared for each in job.operators}
    found |= {f"{each.function.kind} {each.name}": each.function for each in job.transforms}
    found |= {f"source {name}": of for name, of in origins.items() if isinstance(of, Source)}
    return found | {f"sink {name}": of for name, of in targets.items() if isinstance(of, Sink)}


def _in_new_interpreter(sent: list[Pickled[object]]) -> dict[str, str]:
    """Return why each object cannot be unpickled; empty if it can be."""
    path = os.pathsep.join(entry for entry in sys.path if os.path.isabs(entry))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CODE],
            input=pickle.dumps(sent),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"a new interpreter did not import its modules within {_LIMIT_S:g} s"
        return {each.name: f"{why}: start no program while a module is imported" for each in sent}
    found: dict[str, str] = dict(map(json.loads, done.stdout.splitlines()))
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    why = f"a new interpreter ended with exit code {done.returncode} when it unpickled this: {last}"
    return {each.name: found.get(each.name, why) for each in sent}


def report() -> None:
    """Unpickle the objects from the standard input, and print a line of JSON for each.

    This runs in the new interpreter. What modules print when they are imported goes to stderr.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for each in pickle.loads(sys.stdin.buffer.read()):  # noqa: S301 - of the process that started it
        problem = ""
        try:
            unpickled(each)
        except StatekitError as error:
            problem = str(error)
        print(json.dumps([each.name, problem]), file=out)
