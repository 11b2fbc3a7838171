"""The benchmark of many keys, with few."""

from __future__ import annotations

from pathlib import Path

import pytest

from statekit.backend.rocksdb import RocksBackend
from tests.bench.cold_rows import ColdRows
from tests.bench.keys_held import scaling
from tests.support.mutations import Put, batch_of


@pytest.mark.soak
def test_each_size_has_a_row_and_the_largest_has_its_bounds() -> None:
    rows = scaling((500, 3_000), per_epoch=400, rounds=2)
    assert [row.keys for row in rows] == [500, 3_000, None, None, None]
    assert [arm.name for arm in rows[2].arms] == [
        "statekit, 3,000 keys",
        "statekit, 400 keys, each once",
    ]
    assert all("µs per row" in row.result for row in rows[3:])


def test_cold_rows_are_read_from_a_table_and_from_blocks_and_a_missing_one_is_noticed(
    tmp_path: Path,
) -> None:
    keys = [number.to_bytes(4, "big") for number in range(20_000)]
    backend = RocksBackend(tmp_path / "db", ["held"])
    backend.write(batch_of([Put("held", key, b"row") for key in keys]))
    backend.flush()
    backend.close()
    (tmp_path / "aside").mkdir()
    cold = ColdRows(tmp_path / "db", "held", tmp_path / "aside")
    in_rocksdb, of_blocks = cold.read(keys)
    assert in_rocksdb > of_blocks > 0
    with pytest.raises(AssertionError):
        cold.read([b"\x00\x00\x00\x00\x00"])
