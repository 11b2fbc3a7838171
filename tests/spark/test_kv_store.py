"""Random programs of a key-value store on Spark, against the model of plain Python."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession

from statekit.records.output_union import output_type_of
from statekit.timestamp import datetime_to_micros
from tests.support.command_line import statekit
from tests.support.instants import after, at
from tests.support.kv_job_runs import given_to, operations_of
from tests.support.kv_jobs import Op, Shape, shapes, store_job
from tests.support.kv_model import Answer, TimedModel, model_of
from tests.support.spark_runs import Runs

PROGRAMS = 20
DECLARED, EPOCHS, SPAN = 5, 2, 20
OPS = output_type_of(Op, "the operations of a program")

Epoch = tuple[list[Any], int, int]
"""Operations, the parallelism with which they run, and the seconds that pass before."""


@st.composite
def programs(draw: st.DrawFn) -> tuple[Shape, list[str], list[Epoch]]:
    """A store, its operations, and its epochs."""
    shape = draw(shapes())
    kinds = draw(st.permutations(shape.kinds))[:DECLARED]
    epochs = st.tuples(operations_of(SPAN), st.integers(1, 3), st.sampled_from([1, 4, 9]))
    return shape, kinds, draw(st.lists(epochs, min_size=EPOCHS, max_size=EPOCHS))


def plain(value: Any) -> Any:
    """A row of Spark, or a part of it, as the model gives it."""
    if isinstance(value, Row) and value.__fields__ == ["amount"]:
        return value.amount
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return value


class SparkRun:
    """A program on Spark, with a start for each epoch, and its model."""

    def __init__(self, spark: SparkSession, home: Path, shape: Shape, kinds: list[str]) -> None:
        home.mkdir()
        self.runs, self.kinds = Runs(spark, home), kinds
        self.job, self.model = store_job(tuple(kinds), shape), model_of(shape)

    def epoch(self, given: dict[str, list[Op]], parallelism: int, *, drain: bool) -> None:
        """Run an epoch, and the end of event time after the last one. Check the answers."""
        rows: dict[str, list[Row]] = {sink.name: [] for sink in self.job.plan.sinks}

        def collect(name: str) -> Callable[[DataFrame, int], None]:
            return lambda df, epoch: rows[name].extend(df.collect())

        frames = {name: self._frame(given.get(name, [])) for name in self.kinds}
        self.runs.start(
            self.job,
            frames,
            outputs={name: collect(name) for name in rows},
            parallelism=parallelism,
            clock=lambda: datetime_to_micros(self.model.now),
            drain=drain,
        ).await_termination()
        expected = self.model.epoch(self.kinds, given)
        if drain and isinstance(self.model, TimedModel):
            for name, answers in self.model.drain(self.kinds).items():
                expected[name] += answers
        self._check(rows, expected)

    def _frame(self, ops: Sequence[Op]) -> DataFrame:
        batch = OPS.to_batch(list(ops))
        return self.runs.spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)

    def _check(self, rows: dict[str, list[Row]], expected: dict[str, list[Answer]]) -> None:
        found = {name: Counter(map(plain, own)) for name, own in rows.items()}
        assert found == {name: Counter(own) for name, own in expected.items()}, f"{self.job}"


@pytest.mark.soak
def test_a_store_on_spark_answers_as_its_model_in_random_programs(
    spark: SparkSession, tmp_path: Path
) -> None:
    numbers = iter(range(10**6))

    @settings(
        max_examples=PROGRAMS + 1,  # the first one has no operations
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(program=programs())
    def run(program: tuple[Shape, list[str], list[Epoch]]) -> None:
        shape, kinds, epochs = program
        own = SparkRun(spark, tmp_path / str(next(numbers)), shape, kinds)
        for number, (operations, parallelism, seconds) in enumerate(epochs):
            own.model.now += after(seconds)
            given_ops = given_to(kinds, operations)
            own.epoch(given_ops, parallelism, drain=number == len(epochs) - 1)

    run()


def test_ranges_and_lifetimes_on_spark_are_those_of_the_model(runs: Runs) -> None:
    shape = Shape(value=int, sort=str, ttl=5, changes=True)
    kinds = ["put_for", "increment", "expire", "scan_prefix", "trim_to_two", "last"]
    own = SparkRun(runs.spark, runs.home / "own", shape, kinds)
    puts = [Op("a", at(1), 7, place=place, ttl=after(place)) for place in range(-2, 4)]
    asked = [Op("a", at(1), 1, begins="a"), Op("b", at(1), 2)]
    given = dict.fromkeys(kinds, asked) | {"put_for": puts}
    own.epoch(given, 2, drain=False)
    checkpoint = own.runs.checkpoint
    assert "é" in statekit("get", checkpoint, "kv", "values", "a").stdout
    assert "values" in statekit("inspect", checkpoint, "--operator", "kv").stdout
