"""What only Iceberg tables have: catalogs, snapshots, statistics in manifests, stores."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import statekit as sk
from statekit.sinks import Attempt, Outputs, Part, Sink
from statekit.sinks.iceberg import Iceberg
from tests.support.lake_tables import IcebergTable, in_class, spent
from tests.support.sinks import ORDERS, Order, Spent, spending_job, sums


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable(str(tmp_path / "warehouse"))


@pytest.fixture
def catalog(table: IcebergTable) -> Iterator[Catalog]:
    """The catalog of the table, which others use."""
    Path(table.place).mkdir()
    uri, warehouse = f"sqlite:///{table.place}/catalog.db", f"file://{table.place}"
    opened = load_catalog("default", type="sql", uri=uri, warehouse=warehouse)
    opened.create_namespace("shop")
    yield opened
    opened.close()


def run(root: Path, sink: Sink, orders: list[Order] = ORDERS, **options: Any) -> None:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    spending_job(sink).run({"orders": orders}, **given)


def forget(root: Path, epoch: int) -> None:
    (root / "epochs" / f"{epoch:020d}.json").unlink()


def _rewrite(table: IcebergTable) -> int:
    """Write all rows into one file, as a compaction does; return the snapshot before."""
    with table.loaded() as loaded:
        before: int = loaded.current_snapshot().snapshot_id
        loaded.overwrite(loaded.scan().to_arrow())
    return before


def _return_to(table: IcebergTable, snapshot: int) -> None:
    with table.loaded() as loaded:
        loaded.manage_snapshots().set_current_snapshot(snapshot).commit()


def test_snapshots_have_the_epoch_in_their_properties(root: Path, table: IcebergTable) -> None:
    run(root, table.sink())
    with table.loaded() as loaded:
        summaries = [snapshot.summary for snapshot in loaded.metadata.snapshots]
        numbers = [value for name, value in loaded.properties.items() if name.endswith(".epoch")]
    assert [summary["statekit.epoch"] for summary in summaries] == ["0", "1", "2"]
    assert numbers == ["2"]


def test_expired_snapshots_do_not_matter(root: Path, table: IcebergTable) -> None:
    run(root, table.sink())
    table.append(spent(("other", 5)))
    with table.loaded() as loaded:
        expired = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots[:-1]]
        loaded.maintenance.expire_snapshots().by_ids(expired).commit()
    forget(root, 2)
    run(root, table.sink())
    assert table.rows() == sorted([*sums(ORDERS), Spent("other", 5)])


def test_files_have_statistics_by_which_readers_skip_them(root: Path, table: IcebergTable) -> None:
    run(root, table.sink())
    with table.loaded() as loaded:
        files = list(loaded.scan(row_filter="customer > 'c1'").plan_files())
        found = loaded.scan(row_filter="cents > 15").plan_files()
        names = [task.file.file_path for task in found]
        (entry,) = (task.file for task in files if task.file.file_path in names[:1])
    assert len(files) == 3
    assert len(names) < 3
    assert entry.record_count == len(ORDERS) - 10 or entry.record_count == 5
    assert set(entry.null_value_counts.values()) == {0}


def test_rows_that_were_rewritten_are_kept_once(root: Path, table: IcebergTable) -> None:
    run(root, table.sink())
    _rewrite(table)
    forget(root, 2)
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)


def test_rows_that_were_rewritten_are_kept_once_after_their_snapshots_expired(
    root: Path, table: IcebergTable
) -> None:
    run(root, table.sink())
    _rewrite(table)
    with table.loaded() as loaded:
        expired = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots[:-1]]
        loaded.maintenance.expire_snapshots().by_ids(expired).commit()
    forget(root, 2)
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)


def test_other_rows_of_an_epoch_that_was_rewritten_are_refused(
    root: Path, table: IcebergTable
) -> None:
    run(root, table.sink())
    before = _rewrite(table)
    forget(root, 2)
    message = r"wrote 2 rows, this one has 1, .* Restore the table"
    with pytest.raises(sk.RestoreError, match=message):
        run(root, table.sink(), ORDERS[:11])
    _return_to(table, before)
    run(root, table.sink(), ORDERS[:11])
    assert table.rows() == sums(ORDERS[:11])


def test_a_rollback_of_epochs_that_were_rewritten_is_refused_until_the_table_is_restored(
    root: Path, table: IcebergTable
) -> None:
    run(root, table.sink())
    before = _rewrite(table)
    with pytest.raises(sk.RestoreError, match=r"\(1 to 3\) .* rewritten their files"):
        run(root, table.sink(), from_epoch=0)
    assert table.rows() == sums(ORDERS)
    _return_to(table, before)
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)


def test_a_commit_of_another_between_look_and_commit_is_seen(
    root: Path, table: IcebergTable
) -> None:
    class Late(Iceberg):
        looks = 0

        def log(self, outputs: Outputs) -> Any:
            found = super().log(outputs)
            self.looks += 1
            if self.looks == 3:  # the first two are those of begin()
                table.append(spent(("other", 5)))
            return found

    sink = in_class(Late, table.sink())
    run(root, sink)
    assert sink.looks == 6, "one commit failed"
    assert table.rows() == sorted([*sums(ORDERS), Spent("other", 5)])


def test_a_table_with_partitions_is_refused(
    root: Path, table: IcebergTable, catalog: Catalog
) -> None:
    schema = Schema(NestedField(1, "customer", StringType()), NestedField(2, "cents", LongType()))
    field = PartitionField(1, 1000, IdentityTransform(), "by_customer")
    catalog.create_table("shop.spent", schema, partition_spec=PartitionSpec(field))
    with pytest.raises(sk.StateSchemaError, match="it has the partition fields by_customer"):
        run(root, table.sink())


class Anybody(NamedTuple):
    customer: str | None
    cents: int


@sk.process(key="cents")
def unnamed(order: Order, seen: sk.ValueState[int]) -> Iterator[Anybody]:
    seen.update(1)
    yield Anybody(None, order.cents)


def test_a_required_column_takes_complete_outputs_only(
    root: Path, table: IcebergTable, catalog: Catalog
) -> None:
    name = NestedField(1, "customer", StringType(), required=True)
    catalog.create_table("shop.spent", Schema(name, NestedField(2, "cents", LongType())))
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)
    job = sk.Job("unnamed")
    job.source("orders", Order).process(unnamed).sink("spent", table.sink())
    with pytest.raises(sk.ProcessError, match=r"'customer', and this column .* is required"):
        job.run({"orders": ORDERS})
    assert table.rows() == sums(ORDERS)


def test_parts_of_an_epoch_are_merged_in_their_order(table: IcebergTable) -> None:
    sink = table.sink(mode="upsert", key="customer")
    outputs = Outputs("5f" * 16, "spent", spent(("ada", 1)).schema)
    sink.begin(outputs)
    attempt = Attempt(outputs, 0, "run", True, (), lambda: None)
    sink.open(attempt)
    parts = [spent(("ada", 1), ("bob", 2)), spent(("ada", 3))]
    receipts = [
        sink.write(Part(outputs, 0, "run", number), iter(rows.to_batches()))
        for number, rows in enumerate(parts)
    ]
    sink.publish(attempt, [receipt for receipt in receipts if receipt is not None])
    sink.close()
    assert table.rows() == [Spent("ada", 3), Spent("bob", 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("spent",), "give namespace and name, such as 'shop.orders'"),
        (("shop.spent",), "takes either warehouse= a local directory, or catalog="),
    ],
)
def test_a_table_that_cannot_be_found_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.sinks.iceberg(*arguments)


def test_a_warehouse_in_an_object_store_needs_a_catalog() -> None:
    with pytest.raises(
        sk.StateTypeError, match="and the catalog in a file needs one: give catalog="
    ):
        sk.sinks.iceberg("shop.spent", warehouse="s3://bucket/warehouse")


def test_a_catalog_that_cannot_be_reached_is_an_error_without_credentials(
    root: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "a file"
    missing.write_text("no database")
    properties = {"type": "sql", "uri": f"sqlite:///{missing}", "password": "quite secret"}
    sink = sk.sinks.iceberg("shop.spent", catalog=properties)
    assert "secret" not in repr(sink)
    with pytest.raises(sk.ConnectorError, match="Iceberg table shop") as error:
        run(root, sink)
    assert "secret" not in str(error.value)
    assert not list((root / "epochs").glob("*"))


def test_tasks_do_not_get_the_catalog(table: IcebergTable) -> None:
    sink = table.sink()
    sink.begin(Outputs("5f" * 16, "spent", spent(("ada", 1)).schema))
    assert b"sqlite" not in pickle.dumps(sink)
    sink.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(sk.StatekitError, match=r"pip install 'statekit\[iceberg\]'"):
        sk.sinks.iceberg("shop.spent", warehouse=tmp_path)


def test_a_table_on_s3_has_each_record_once(root: Path, s3: str, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": s3}
    for mode, key in (("append", None), ("upsert", "customer")):
        name, place = f"shop.{mode}", root.with_name(mode)
        sink = sk.sinks.iceberg(name, catalog=properties, mode=mode, key=key)  # type: ignore[arg-type]
        for given in (ORDERS[:7], ORDERS):
            run(place, sink, given)
        forget(place, 2)
        run(place, sink)
        with_endpoint = sink._catalog  # it has the endpoint from the environment
        rows = with_endpoint.load_table(name).scan().to_arrow()
        sink.close()
        last = {row.customer: row for row in sums(ORDERS)}
        expected = sums(ORDERS) if key is None else sorted(last.values())
        assert sorted(Spent(**row) for row in rows.to_pylist()) == expected


def test_a_name_with_other_fields_in_its_records_keeps_its_place(tmp_path: Path) -> None:
    """Nested fields get ids, by which they are read after a column was added."""
    sink = sk.sinks.iceberg("shop.nested", warehouse=tmp_path)
    place = pa.struct([("town", pa.string()), ("seats", pa.list_(pa.int64()))])
    outputs = Outputs("5f" * 16, "nested", pa.schema([("place", place)]))
    rows = pa.table({"place": pa.array([{"town": "oslo", "seats": [1]}], place)})
    more = pa.struct([("zip", pa.string()), *place])
    wider = pa.table({"place": pa.array([{"zip": "5", "town": "rome", "seats": [2]}], more)})
    for epoch, table in enumerate([rows, wider]):
        of = Outputs(outputs.checkpoint, "nested", table.schema)
        sink.begin(of)
        receipt = sink.write(Part(of, epoch, "run", 0), iter(table.to_batches()))
        sink.publish(Attempt(of, epoch, "run", False, (), lambda: None), [receipt])
    found = sink._catalog.load_table("shop.nested").scan().to_arrow()["place"].to_pylist()
    sink.close()
    assert sorted(found, key=lambda row: row["town"]) == [
        {"town": "oslo", "seats": [1], "zip": None},
        {"town": "rome", "seats": [2], "zip": "5"},
    ]
