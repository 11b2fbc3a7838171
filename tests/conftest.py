"""What tests share: one Spark session, started by the first test that asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark on two cores. Starting it takes seconds, so all tests share it."""
    from tests.spark.spark_runs import new_session

    # Part of the tests: without it, statekit has to find this interpreter for the workers.
    os.environ.pop("PYSPARK_PYTHON", None)
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
