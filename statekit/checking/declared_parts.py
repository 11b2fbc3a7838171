"""Findings about the parts of a job that its declaration has: types, keys, states, callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from statekit.errors import StatekitError
from statekit.job.findings import JobFinding, failed_check
from statekit.job.plan import Operator, Output, Plan
from statekit.runtime.sink_epochs import check_directories
from statekit.runtime.stream_forms import columns_of
from statekit.sinks.protocol.frame_sinks import FrameSink
from statekit.sinks.protocol.output_schema import schema_for_sinks
from statekit.sources.spark import SparkSource
from statekit.stored_types import state_text


def declared_findings(
    job: Plan,
    origins: Mapping[str, object],
    targets: Mapping[str, object],
    *,
    spark: bool,
    needs_targets: bool,
) -> Iterator[JobFinding]:
    """Yield the findings about each source, function, operator and sink of a job.

    Parameters:
        origins, targets: of the run, by source and by sink.
        spark: whether the job is to run on Spark.
        needs_targets: whether each sink needs a target.
    """
    for source in job.sources:
        where = f"source {source.name}"
        yield JobFinding("ok", where, f"records of {source.record_type.name}")
        if source.errors_of is None and source.name not in origins:
            yield JobFinding(
                "error",
                where,
                "it does not say where its records come from: give it a source in the job, as in "
                f'job.source("{source.name}", …, sk.sources.json_lines(path)), or pass inputs=',
            )
        if isinstance(origins.get(source.name), SparkSource) and not spark:
            yield _spark_only(where, "its source")
    for transform in job.transforms:
        what = f"{transform.input} → {transform.function.output_type.name}"
        yield JobFinding("ok", f"{transform.function.kind} {transform.name}", what)
    for operator in job.operators:
        yield _finding(f"operator {operator.name}", partial(_operator_text, operator))
    for sink in job.sinks:
        where = f"sink {sink.name}"
        yield _finding(where, partial(_sink_text, job, sink))
        if needs_targets and sink.name not in targets:
            yield JobFinding(
                "error",
                where,
                "it has no target, so that its records would go nowhere: give it one in the job, "
                f'as in .sink("{sink.name}", sk.sinks.console()), or pass outputs=',
            )
        if isinstance(targets.get(sink.name), FrameSink) and not spark:
            yield _spark_only(where, "its target")
    if not job.operators:
        what = "it has no operator, and so no state: add one with process(), window() or others"
        yield JobFinding("error", f"job {job.name}", what)
    yield _finding(f"job {job.name}", partial(_directories_text, targets))


def _finding(where: str, check: Callable[[], str]) -> JobFinding:
    """Return the text of a check as ok, and its error as an error."""
    try:
        return JobFinding("ok", where, check())
    except StatekitError as error:
        return failed_check(where, error)


def _spark_only(where: str, what: str) -> JobFinding:
    return JobFinding(
        "error", where, f"{what} runs on Spark only: use --spark or job.start, or another one"
    )


def _operator_text(operator: Operator) -> str:
    record, declared = operator.record(), operator.declared
    output = declared.output_type
    parts = [f"{', '.join(operator.streams)} → {'nothing' if output is None else output.name}"]
    if declared.key:
        parts.append(f"by {', '.join(declared.key)}")
    parts += [f"state {state.name}: {state_text(state)}" for state in record.states]
    for spec in declared.states:
        parts += [f"migrates {spec.name}"] if spec.hooks else []
        parts += [f"redistributes {spec.name}"] if spec.redistribute is not None else []
    if record.timers:
        names = [name for name in record.timer_names or () if name is not None]
        parts.append(f"timers {', '.join(names)}" if names else "timers")
    return "; ".join(parts)


def _sink_text(job: Plan, sink: Output) -> str:
    schema = schema_for_sinks(columns_of(job, sink.stream).arrow_schema)
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return f"outputs of {sink.stream} with {columns}"


def _directories_text(targets: Mapping[str, object]) -> str:
    check_directories(targets.values())
    return "no two sinks write to one directory"
