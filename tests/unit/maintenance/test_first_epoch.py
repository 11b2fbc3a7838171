"""The first epoch of a checkpoint that no run makes leaves alone what others have committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.errors import FencedError
from statekit.maintenance.first_epoch import replace_spark_files


class Order(NamedTuple):
    order: str
    cents: int


@sk.process(key="order")
def last(order: Order, cents: sk.ValueState[int]) -> None:
    cents.update(order.cents)


def shop() -> sk.Job:
    job = sk.Job("shop")
    job.source("orders", Order).process(last)
    return job


def run(at: Path, *cents: int) -> None:
    orders = [Order(str(number), each) for number, each in enumerate(cents)]
    shop().run({"orders": orders}, checkpoint=at)


def with_sparks_log(at: Path) -> Path:
    """A file of Spark's, which a stream on this checkpoint has written."""
    path = at / "spark" / "offsets" / "0"
    path.parent.mkdir(parents=True)
    path.write_text("v1")
    return path


def values(at: Path) -> list[int]:
    return sorted(sk.read(at, "last", "cents").read_all().column("value").to_pylist())


def test_a_transform_keeps_sparks_log_of_a_checkpoint_that_another_one_has_completed(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run(old, 5, 7)
    logs = []

    def is_overtaken(of_old: sk.Transformation) -> None:
        of_old.copy("last")
        sk.transform(shop())(lambda other: other.copy("last")).run(old, into=new)
        logs.append(with_sparks_log(new))

    with pytest.raises(FencedError, match=r"has committed epoch 0 of .* meanwhile"):
        sk.transform(shop())(is_overtaken).run(old, into=new)
    assert logs[0].read_text() == "v1"
    manifest = Repository(new).manifest(0)
    files = {ref.path for shard in manifest.operators["last"].shards for ref in shard.files}
    assert {*Repository(new).tree("data")} == files
    run(new, 5, 7, 9)
    assert values(new) == [5, 7, 9]


def test_a_bootstrap_keeps_sparks_log_of_a_job_that_began_meanwhile(tmp_path: Path) -> None:
    at, logs = tmp_path / "new", []

    class SlowTable:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            run(at, 100)
            logs.append(with_sparks_log(at))
            return pa.table({"order": ["1"], "value": [5]}).__arrow_c_stream__(requested_schema)

    with pytest.raises(FencedError, match="meanwhile"):
        shop().bootstrap("last.cents", SlowTable(), checkpoint=at)
    assert logs[0].read_text() == "v1"
    assert values(at) == [100]


def test_sparks_part_is_replaced_only_in_a_checkpoint_without_epochs(tmp_path: Path) -> None:
    log = with_sparks_log(tmp_path)
    replace_spark_files(Repository(tmp_path), [("offsets/7", b"v1")])
    assert not log.exists()
    assert (tmp_path / "spark" / "offsets" / "7").exists()
    run(tmp_path, 1)
    with pytest.raises(FencedError, match="has committed epoch 0"):
        replace_spark_files(Repository(tmp_path), [])
    assert (tmp_path / "spark" / "offsets" / "7").exists()
