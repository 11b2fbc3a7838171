"""The benchmark of many shards, with few."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench import many_shards
from tests.bench.many_shards import filled, key_of_each_shard, without_spark


def test_an_epoch_of_300_shards_writes_far_less_than_the_limit(tmp_path: Path) -> None:
    keys = key_of_each_shard(300)
    runner = filled(tmp_path, keys)
    rows = {row.measured: row for row in without_spark(runner, keys, 3)}
    (size,) = (row.result for name, row in rows.items() if "bytes of manifest" in name)
    (most,) = re.findall(r"([0-9,]+) at most", size)
    assert 1_000 < int(most.replace(",", "")) < many_shards.WANTED_BYTES
    assert sum("planning and commit" in name for name in rows) == 1
    last = runner.coordinator.last
    assert last is not None
    assert last.operators["keep"].records_in == many_shards.ACTIVE
    assert last.operators["keep"].rows == {"last": 300}
