"""Exported files hold the rows of the table; a failed export leaves nothing."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.export import FORMATS, export
from statekit.query.tables.top import first_keys
from statekit.testing import Harness
from tests.support import full_checkpoint
from tests.support.all_row_kinds import KEYS
from tests.support.counting_job import Entry, tally


@pytest.fixture(scope="module")
def repository() -> Repository:
    made = Repository.in_memory()
    full_checkpoint.make(made)
    return made


def rows(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


STATES = [("keep", "seen"), ("keep", "last"), ("keep", "_timers"), ("share", "shared")]


@pytest.mark.parametrize(("operator", "state"), STATES)
def test_parquet_arrow_and_duckdb_hold_the_same_rows(
    repository: Repository, tmp_path: Path, operator: str, state: str
) -> None:
    expected = sk.read(repository, operator, state).read_all()
    assert expected.num_rows
    for to in FORMATS:
        reader = sk.read(repository, operator, state)
        assert export(reader, tmp_path / to, to, name=state) == expected.num_rows
    parquet, arrow, database = (str(tmp_path / to) for to in ("parquet", "arrow", "duckdb"))
    assert pq.read_table(parquet).equals(expected)
    assert pa.ipc.open_file(arrow).read_all().equals(expected)
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        found = connection.sql(f"select * from read_parquet('{parquet}')").fetchall()
        assert found == [tuple(row.values()) for row in rows(expected)]
        connection.execute(f"attach '{database}' as d")
        assert connection.sql(f'select * from d."{state}"').fetchall() == found
    assert {path.name for path in tmp_path.iterdir()} == set(FORMATS)


def test_nested_values_are_json_text_in_csv_and_bytes_are_hex(tmp_path: Path) -> None:
    table = pa.table({"n": [[1, 2], None], "raw": [b"\xff", b""], "text": ["ü,", None]})
    export(table.to_reader(), tmp_path / "a.csv", "csv")
    with open(tmp_path / "a.csv", encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert (json.loads(first["n"]), first["raw"], first["text"]) == ([1, 2], "ff", "ü,")
    assert second == {"n": "", "raw": "", "text": ""}


def _broken() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": [1]})
    raise sk.QueryError("the epoch was collected")


@pytest.mark.parametrize("to", FORMATS)
def test_a_failed_export_leaves_no_file_and_raises_the_same_error(tmp_path: Path, to: Any) -> None:
    reader = pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), _broken())
    with pytest.raises(sk.QueryError, match="the epoch was collected"):
        export(reader, tmp_path / "a", to)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    table, target = pa.table({"n": [1]}), tmp_path / "a"
    target.write_text("precious")
    with pytest.raises(sk.QueryError, match="exists already, and was not changed"):
        export(table.to_reader(), target, "parquet")
    assert target.read_text() == "precious"
    export(table.to_reader(), target, "parquet", overwrite=True)
    assert pq.read_table(target).equals(table)
    with pytest.raises(sk.QueryError, match="exists already"):
        export(table.to_reader(), tmp_path, "parquet", overwrite=True)
    with pytest.raises(sk.StorageError, match="cannot write"):
        export(table.to_reader(), tmp_path / "none" / "a", "parquet")


def test_without_duckdb_the_other_formats_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(sk.QueryError, match="pip install duckdb"):
        export(pa.table({"n": [1]}).to_reader(), tmp_path / "a", "duckdb")


@pytest.mark.parametrize("to", ["parquet", "csv", "arrow"])
def test_a_file_name_may_be_as_long_as_the_disk_takes(tmp_path: Path, to: Any) -> None:
    table = pa.table({"n": [1]})
    assert export(table.to_reader(), tmp_path / ("a" * 255), to) == 1
    with pytest.raises(sk.StorageError, match="at most 255 bytes long"):
        export(table.to_reader(), tmp_path / ("a" * 256), to)
    assert [path.name for path in tmp_path.iterdir()] == ["a" * 255]


# ------------------------------------------------------------------------------------ top


@pytest.mark.parametrize("state", ["seen", "_timers", "by_n"])
def test_the_largest_keys_are_those_with_the_most_rows(repository: Repository, state: str) -> None:
    ranking = first_keys(CheckpointReader(repository), "keep", state, by="rows", limit=3)
    held = [
        (sum(1 for _ in batch.to_pylist()), key)
        for key in KEYS
        for batch in [sk.read(repository, "keep", state, key=key, columns=["key"]).read_all()]
    ]
    stored = [key.rows or 0 for key in ranking.keys]
    assert stored == sorted(stored, reverse=True)
    assert all(
        key.rows is not None and key.rows >= count
        for key in ranking.keys
        for count, name in held
        if name == key.key
    )
    assert all(one.bytes and one.writes is None for one in ranking.keys)
    counts = [rows for _, rows in ranking.groups]
    assert counts == sorted(counts, reverse=True)


def test_buffered_records_of_a_key_are_counted_together(repository: Repository) -> None:
    ranking = first_keys(
        CheckpointReader(repository), "keep_in_order", "_waiting", by="rows", limit=99
    )
    table = sk.read(repository, "keep_in_order", "_waiting").read_all()
    assert sum(key.rows or 0 for key in ranking.keys) == table.num_rows
    assert len({key.key for key in ranking.keys}) == len(ranking.keys)


def test_the_most_written_keys_are_counted_over_the_kept_epochs() -> None:
    @sk.process(key="word")
    def count(record: dict[str, Any], seen: sk.ValueState[int]) -> None:
        seen.update(record["n"])

    harness = Harness(count)
    for number in range(12):
        words = ["often", "never"] if number == 3 else ["often"]
        harness.send(*({"word": word, "n": number} for word in words))
    found = first_keys(CheckpointReader(harness._repository), "count", by="writes")
    assert [(key.key, key.writes) for key in found.keys] == [("often", 12), ("never", 1)]
    assert found.epochs == (0, 11)


def written_again_and_again(place: Path) -> Repository:
    """Twelve epochs that write one key."""
    harness = Harness(tally, checkpoint=place)
    for number in range(12):
        harness.send(Entry("a", number))
    return Repository(place)


def test_a_ranking_by_writes_names_the_epochs_that_it_counts(tmp_path: Path) -> None:
    repository = written_again_and_again(tmp_path)
    Collector(repository, sk.Retention(epochs=5)).collect(sweep=False)
    reader = CheckpointReader(repository)
    assert reader.epochs[0] == 7
    found = first_keys(reader, "tally", "total", by="writes")
    assert ([key.writes for key in found.keys], found.epochs) == ([4], (8, 11))
    with pytest.raises(sk.QueryError, match=r"epoch 7 .* cannot be counted"):
        first_keys(CheckpointReader(repository, epoch=7), "tally", by="writes")


def test_a_ranking_by_writes_fails_if_a_manifest_between_is_missing(tmp_path: Path) -> None:
    repository = written_again_and_again(tmp_path)
    reader = CheckpointReader(repository)
    (tmp_path / epoch_path(5)).unlink()
    with pytest.raises(sk.CorruptCheckpointError, match=epoch_path(5)):
        first_keys(reader, "tally", by="writes")
    with pytest.raises(sk.CorruptCheckpointError, match=epoch_path(5)):
        first_keys(CheckpointReader(repository), "tally", by="writes")


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_a_ranking_of_no_keys_is_refused(repository: Repository, limit: Any) -> None:
    with pytest.raises(sk.StateTypeError, match="limit="):
        first_keys(CheckpointReader(repository), "keep", limit=limit)


def test_a_ranking_of_unknown_or_operator_state_is_refused(repository: Repository) -> None:
    reader = CheckpointReader(repository)
    for operator, state in (("keep", "sen"), ("share", "shared")):
        with pytest.raises(sk.QueryError, match="no keyed state"):
            first_keys(reader, operator, state)


def test_an_export_to_an_unknown_format_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    rows = pa.table({"n": [1]}).to_reader()
    with pytest.raises(sk.QueryError, match="'xml': there is no such format, and nothing was wri"):
        export(rows, tmp_path / "rows.xml", "xml")  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]
