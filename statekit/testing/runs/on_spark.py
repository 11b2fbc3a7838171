"""Comparison of a history of a job on Spark with the same history in process."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from statekit.errors import StateTypeError
from statekit.job.job import Job
from statekit.job.plan import Input
from statekit.query.rows.reader import CheckpointReader
from statekit.records.output_type import OutputType
from statekit.testing.drivers.job_harness import JobHarness
from statekit.timestamp import datetime_to_micros

_AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
"""The processing time of all epochs."""

_SHARDS = 2


def differs_on_spark(job: Job, history: list[dict[str, list[Any]]]) -> str | None:
    """Return the first difference between a job on Spark and in this process; None if there is
    none.

    Each epoch is a bounded run over frames of its records; event time ends in the last one.

    Raises:
        StateTypeError: there is no session, or records have no schema.
    """
    spark = _active_session()
    with tempfile.TemporaryDirectory(prefix="statekit-on-spark-") as place:
        here, there = Path(place, "here"), Path(place, "there")
        harness = JobHarness(job, _SHARDS, checkpoint=here)
        harness.set_clock(_AT)
        ours: dict[str, list[Any]] = {sink.name: [] for sink in job.plan.sinks}
        theirs: dict[str, list[Any]] = {sink.name: [] for sink in job.plan.sinks}
        for number, records in enumerate([*history, {}]):
            is_last = number == len(history)
            emitted = [harness.send(**records), *([harness.drain()] if is_last else [])]
            for name, rows in ours.items():
                rows += [record for each in emitted for record in each[name]]
            job.start(
                spark,
                {source.name: _frame(spark, job, source, records) for source in job.plan.sources},
                {name: partial(_collect, rows) for name, rows in theirs.items()},
                checkpoint=there,
                working_directory=Path(place, "working"),
                parallelism=_SHARDS,
                clock=lambda: datetime_to_micros(_AT),
                drain=is_last,
            )
        for sink in job.plan.sinks:
            one, other = _shown(job, sink.stream, ours[sink.name]), Counter(theirs[sink.name])
            if one != other:
                missing, more = list((one - other).elements()), list((other - one).elements())
                return (
                    f"sink {sink.name!r}: only in process {', '.join(missing[:3]) or 'nothing'}; "
                    f"only on Spark {', '.join(more[:3]) or 'nothing'}"
                )
        return _states_differ(job, here, there)


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise StateTypeError(
            "holds=['spark'] runs histories on Spark, and there is no session: take the fixture "
            "`spark` in the test, or make a session before"
        )
    return spark


def _frame(spark: Any, job: Job, source: Input, records: dict[str, list[Any]]) -> Any:
    members = source.record_type.members
    if len(members) != 1 or members[0].fields is None:
        raise StateTypeError(
            f"source {source.name!r} of {job.name!r} has "
            f"{'dicts' if len(members) == 1 else 'several types'}, so a frame of its records has "
            "no schema: on Spark, only sources of one type with fields are compared"
        )
    form = OutputType(members[0].cls, f"source {source.name!r}", noun="record")
    import pyarrow as pa

    given = form.stored(records.get(source.name, []))
    return spark.createDataFrame(pa.Table.from_batches([form.to_batch(given)]))


def _collect(rows: list[str], df: Any, _: int) -> None:
    rows += map(_text, df.toArrow().to_pylist())


def _shown(job: Job, stream: str, records: list[Any]) -> Counter[str]:
    """Return the rows that Spark has for the records of a stream."""
    transform = job.plan.transform(stream)
    operator = next((each for each in job.plan.operators if each.name == stream), None)
    if transform is not None:
        form: Any = transform.function.output_type
    elif operator is not None:
        form = operator.declared.output_type
    else:  # late records, or a source
        form = OutputType(type(records[0]), stream) if records else None
    if form is None or not records:
        return Counter()
    return Counter(map(_text, form.to_batch(form.stored(records)).to_pylist()))


def _text(row: dict[str, Any]) -> str:
    return repr({name: _plain(value) for name, value in row.items()})


def _plain(value: Any) -> Any:
    """Return a value in a form that does not depend on its time zone and its class."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def read_values(reader: CheckpointReader, operator: str, state: str) -> dict[str, Any]:
    """Return the values of a state as a reader shows them, by the texts of the keys."""
    with tempfile.TemporaryDirectory() as directory:
        return {repr(key): value for key, value in reader.rows(operator, state, directory)}


def _states_differ(job: Job, here: Path, there: Path) -> str | None:
    """Return the first state that differs between two checkpoints; None if all are the same."""
    readers = [CheckpointReader(checkpoint, allow_pickle=True) for checkpoint in (here, there)]
    for operator in job.plan.operators:
        for spec in operator.declared.states:
            if spec.kind.is_local:
                continue
            held = [read_values(reader, operator.name, spec.name) for reader in readers]
            for key in dict.fromkeys([*held[0], *held[1]]):
                one, other = (repr(each[key]) if key in each else None for each in held)
                if one != other:
                    return (
                        f"state {spec.name!r} of {operator.name} at the key {key}: {one} in "
                        f"process, and {other} on Spark"
                    )
    return None
