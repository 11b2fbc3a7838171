from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from statekit.checkpoint.repository import Repository
from statekit.clock import unique_id
from statekit.errors import StorageError
from statekit.query.rows.reader import CheckpointReader
from tests.support.counting_job import Entry, entries, plain_outputs, plain_state, tally_job
from tests.support.s3_server import FAULTS, FaultyProxy, environment, set_environment

EPOCHS = [entries(epoch, 60) for epoch in range(2)]


def frame(spark: SparkSession, records: list[Entry]) -> DataFrame:
    return spark.createDataFrame([(entry.key, entry.n) for entry in records], "key string, n long")


def test_a_job_whose_workers_reach_the_store_over_a_bad_network_loses_nothing(
    spark: SparkSession, s3_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"s3://bucket/{unique_id()}"
    kinds = [kind for kind in FAULTS if kind != "hang"]
    put_out: Counter[tuple[Any, ...]] = Counter()
    with FaultyProxy(s3_port, seed=1, rate=0.15, kinds=kinds) as proxy:
        set_environment(monkeypatch, proxy.port)
        for name, value in environment(proxy.port).items():
            monkeypatch.setitem(spark.sparkContext.environment, name, value)  # of the workers
        for parallelism, records in enumerate(EPOCHS, start=2):
            tally_job().start(
                spark,
                inputs={"records": frame(spark, records)},
                outputs={"outputs": lambda df, epoch: put_out.update(map(tuple, df.collect()))},
                checkpoint=url,
                parallelism=parallelism,
                working_directory=tmp_path / "copies",
                drain=False,
            )
        assert proxy.done
        records = [record for epoch in EPOCHS for record in epoch]
        assert sum(put_out.values()) == len(plain_outputs(records))
        reader = CheckpointReader(url)
        for key, states in plain_state(records).items():
            assert reader.get("tally", "total", key) == states["total"]


def test_a_stream_whose_own_part_spark_cannot_store_is_refused_before_anything_happens(
    spark: SparkSession, s3_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_environment(monkeypatch, s3_port)
    url = f"s3://bucket/{unique_id()}"
    frame(spark, EPOCHS[0]).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("key string, n long").parquet(str(tmp_path / "in"))
    with pytest.raises(StorageError, match=r"Spark cannot open s3a://.*/spark.*hadoop-aws"):
        tally_job().start(
            spark,
            inputs={"records": stream},
            outputs={"outputs": lambda df, epoch: None},
            checkpoint=url,
        )
    assert not list(Repository(url).tree(""))
