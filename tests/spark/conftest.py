"""One Spark session for all tests here, and short ways to what they do again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.spark_runs import Runs, new_session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark on two cores. Starting it takes seconds, so all tests share it."""
    # Part of the tests: without it, statekit has to find this interpreter for the workers.
    os.environ.pop("PYSPARK_PYTHON", None)
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Iterator[Runs]:
    """Runs of jobs on a checkpoint of this test."""
    yield Runs(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()
