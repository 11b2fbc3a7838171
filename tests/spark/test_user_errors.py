"""What the code of users does in a Spark worker becomes a typed error in the driver."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import statekit as sk


class Order(NamedTuple):
    user: str
    cents: int

    def __repr__(self) -> str:
        raise ValueError("no repr")


def unprintable() -> Exception:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    return Unprintable()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "unprintable": unprintable,
    "huge": lambda: ValueError("x" * 20_000_000),
    "no text": lambda: ValueError("\ud800"),
    "like another error": lambda: ValueError("a\nstatekit.errors.FencedError: no\n\tat b"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "group": lambda: ExceptionGroup("several", [unprintable(), ValueError("\ud800")]),
}


def failing(error: Callable[[], BaseException]) -> sk.Job:
    @sk.process(key="user")
    def total(order: Order, sum: sk.ValueState[int]) -> Iterator[int]:
        sum.update(order.cents)
        yield 1
        raise error()

    return job_of(total)


def job_of(declared: Any) -> sk.Job:
    job = sk.Job("orders")
    job.source("orders", Order).process(declared).sink("out")
    return job


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("ann", 5)], "user string, cents int")


def start(job: sk.Job, spark: SparkSession, orders: DataFrame, home: Path, **out: Any) -> None:
    outputs = out or {"out": sk.sinks.parquet(home / "out")}
    job.start(spark, {"orders": orders}, outputs, checkpoint=home / "c", parallelism=2)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_a_worker_has_operator_key_and_epoch(
    error: str, spark: SparkSession, orders: DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(sk.ProcessError, match=r"operator 'total'.*at key 'ann' in epoch 0") as e:
        start(failing(ERRORS[error]), spark, orders, tmp_path)
    assert len(str(e.value)) < 5000
    assert type(e.value) is sk.ProcessError

    @sk.process(key="user")
    def total(order: Order, sum: sk.ValueState[int]) -> Iterator[int]:
        assert sum.get() is None  # nothing was committed, and the job starts again
        yield order.cents

    start(job_of(total), spark, orders, tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).collect()[0][0] == 5


@pytest.mark.slow
def test_a_worker_that_ends_is_an_error_with_the_operators_and_the_epoch(
    spark: SparkSession, orders: DataFrame, tmp_path: Path
) -> None:
    @sk.process(key="user")
    def leave(order: Order, sum: sk.ValueState[int]) -> Iterator[int]:
        yield 1
        os._exit(3)

    with pytest.raises(sk.ProcessError, match=r"worker of Spark ended .* epoch 0.*'leave'"):
        start(job_of(leave), spark, orders, tmp_path)


def test_an_error_of_a_sink_has_its_name_and_epoch(
    spark: SparkSession, orders: DataFrame, tmp_path: Path
) -> None:
    @sk.process(key="user")
    def total(order: Order, sum: sk.ValueState[int]) -> Iterator[int]:
        yield order.cents

    def fails(df: DataFrame, epoch: int) -> None:
        raise unprintable()

    with pytest.raises(sk.ProcessError, match="sink 'out' failed in epoch 0 with Unprintable"):
        start(job_of(total), spark, orders, tmp_path, out=fails)


def used(what: object) -> Any:
    @sk.process(key="user")
    def total(order: Order, sum: sk.ValueState[int]) -> Iterator[int]:
        yield 1 if what else 0

    return total


def test_a_function_that_cannot_be_pickled_is_refused_with_the_object(
    spark: SparkSession, orders: DataFrame, tmp_path: Path
) -> None:
    for what, kind in [
        (threading.Lock(), "lock"),
        ((n for n in [1]), "generator"),
        (spark, "Spark"),
    ]:
        with pytest.raises(sk.StateTypeError, match=rf"'total'.*the variable 'what' of.*{kind}"):
            start(job_of(used(what)), spark, orders, tmp_path)
    assert not list(tmp_path.iterdir())  # nothing was started


@pytest.mark.slow
def test_a_module_that_workers_do_not_have_is_named(
    spark: SparkSession, orders: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("nowhere_else")
    exec("class Ghost:\n    pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "nowhere_else", module)
    with pytest.raises(sk.ProcessError, match=r"operator 'total' cannot be read.*nowhere_else"):
        start(job_of(used(module.Ghost())), spark, orders, tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("user string, User string, cents int", "'user' and 'User', which are one name to Spark"),
        ("USER string, cents int", "no column 'user' .* a column 'USER'.*withColumnRenamed"),
        ("user string, user string, cents int", "columns of the same name"),
    ],
)
def test_columns_that_differ_in_case_are_named(
    columns: str, message: str, spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([], columns)
    with pytest.raises(sk.ProcessError, match=message):
        start(job_of(used(1)), spark, frame, tmp_path)
