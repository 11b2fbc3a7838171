"""Marks the tests here, and gives them short ways to what they do again and again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.effort import SOAK
from tests.support.spark_drivers import share_class_archive
from tests.support.spark_runs import Runs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Iterator[Runs]:
    """Runs of jobs on a checkpoint of this test."""
    yield Runs(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def class_archive(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Makes the start of Spark drivers that tests kill take half as long.

    It takes longer to write than it saves for a few of them.
    """
    if not SOAK:
        return
    own = tmp_path_factory.getbasetemp()
    share_class_archive(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
