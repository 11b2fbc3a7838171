"""What only tables of Delta Lake have: statistics, compaction, features, stores."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

import statekit as sk
from statekit.sinks import Attempt, Outputs, Part, Receipt
from statekit.sinks.delta import Delta
from tests.support.lake_tables import DeltaFolder, spent
from tests.support.sinks import ORDERS, Order, Spent, spending_job, sums

TEXT, LONG = PrimitiveType("string"), PrimitiveType("long")


@pytest.fixture
def table(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(str(tmp_path / "table"))


def run(root: Path, sink: Any, orders: list[Order] = ORDERS, **options: Any) -> None:
    given: dict[str, Any] = {"checkpoint": root, "epoch_size": 5, "drain": False} | options
    spending_job(sink).run({"orders": orders}, **given)


def forget(root: Path, epoch: int) -> None:
    (root / "epochs" / f"{epoch:020d}.json").unlink()


class Compacting(Delta):
    """Another writer compacts the table after the sink has looked at it."""

    def publish(self, attempt: Attempt, receipts: Any) -> None:
        super().publish(attempt, receipts)
        DeltaTable(self.path).optimize.compact()


def test_a_compaction_keeps_each_record_once(root: Path, table: DeltaFolder) -> None:
    sink: Any = table.sink()
    run(root, Compacting(sink.path, sink.writing))
    forget(root, 2)  # its rows are in another file now
    run(root, sink)
    assert table.rows() == sums(ORDERS)


def test_other_rows_of_an_epoch_that_was_compacted_are_refused(
    root: Path, table: DeltaFolder
) -> None:
    run(root, table.sink())
    table.table.optimize.compact()
    version = table.table.version()
    forget(root, 2)
    message = r"wrote 2 rows, this one has 1, .* Restore the table"
    with pytest.raises(sk.RestoreError, match=message):
        run(root, table.sink(), ORDERS[:11])
    table.table.restore(version - 1)
    run(root, table.sink(), ORDERS[:11])
    assert table.rows() == sums(ORDERS[:11])


def test_a_rollback_of_epochs_that_were_compacted_is_refused_until_the_table_is_restored(
    root: Path, table: DeltaFolder
) -> None:
    run(root, table.sink())
    table.table.optimize.compact()
    version = table.table.version()
    with pytest.raises(sk.RestoreError, match=r"\(1 to 3\) .* rewritten their files"):
        run(root, table.sink(), from_epoch=0)
    assert table.rows() == sums(ORDERS)
    table.table.restore(version - 1)
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)


def test_a_file_that_is_compacted_between_look_and_commit_is_not_doubled(
    root: Path, table: DeltaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(root, table.sink())
    forget(root, 2)
    looked: list[int] = []
    look: Callable[..., DeltaTable] = Delta._table

    def compacted(sink: Delta) -> DeltaTable:
        found = look(sink)
        if len(looked) == 1:  # the first look is that of begin()
            DeltaTable(sink.path).optimize.compact()
        looked.append(found.version())
        return found

    monkeypatch.setattr(Delta, "_table", compacted)
    run(root, table.sink())
    assert len(looked) == 3, "the commit failed once"
    assert table.rows() == sums(ORDERS)


class Reading(NamedTuple):
    sensor: str
    at: dt.datetime
    value: float
    place: tuple[str, int] | None
    tags: list[str]


@sk.process(key="sensor")
def passing(reading: Reading, seen: sk.ValueState[int]) -> Iterator[Reading]:
    seen.update(1)
    yield reading


def _statistics(readings: list[Reading], place: Path) -> dict[str, Any]:
    job = sk.Job("readings")
    job.source("readings", Reading).process(passing).sink("all", sk.sinks.delta(place))
    job.run({"readings": readings})
    (commit,) = (place / "_delta_log").glob("*1.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    (added,) = (action["add"] for action in actions if "add" in action)
    found: dict[str, Any] = json.loads(added["stats"])
    return found


def test_files_have_statistics_by_which_readers_skip_them(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 31, 8, tzinfo=dt.UTC)
    readings = [
        Reading("a", at, 1.5, ("oslo", 5), ["x"]),
        Reading("b" * 100, at + dt.timedelta(microseconds=1), -2.0, None, []),
    ]
    assert _statistics(readings, tmp_path / "t") == {
        "numRecords": 2,
        "minValues": {
            "sensor": "a",
            "at": "2026-01-31T08:00:00.000000Z",
            "value": -2.0,
            "place": {"_1": "oslo", "_2": 5},
        },
        "maxValues": {
            "sensor": "b" * 64 + "\U0010ffff",
            "at": "2026-01-31T08:00:00.000001Z",
            "value": 1.5,
            "place": {"_1": "oslo", "_2": 5},
        },
        "nullCount": {"sensor": 0, "at": 0, "value": 0, "place": {"_1": 1, "_2": 1}},
    }
    found = DeltaTable(tmp_path / "t").to_pyarrow_table(filters=[("value", "<", 0.0)])
    assert found["sensor"].to_pylist() == ["b" * 100]


def test_columns_with_nan_or_infinity_have_no_misleading_bounds(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 31, 8, tzinfo=dt.UTC)
    nan = _statistics([Reading("a", at, float("nan"), None, []), *_values(at, 1.0)], tmp_path / "n")
    assert "value" not in nan["minValues"]
    assert "value" not in nan["maxValues"]
    infinite = _statistics(_values(at, 1.0, float("inf")), tmp_path / "i")
    assert infinite["minValues"]["value"] == 1.0
    assert "value" not in infinite["maxValues"]


def _values(at: dt.datetime, *values: float) -> list[Reading]:
    return [Reading("a", at, value, None, []) for value in values]


def test_a_table_with_partitions_or_constraints_is_refused(root: Path, table: DeltaFolder) -> None:
    write_deltalake(table.place, spent(("ada", 5)), partition_by="customer")
    table.table.alter.add_constraint({"paid": "cents > 0"})
    with pytest.raises(
        sk.StateSchemaError, match=r"partition columns customer; .* constraint 'paid'"
    ):
        run(root, table.sink())


def test_a_column_that_may_not_be_null_takes_complete_outputs_only(
    root: Path, table: DeltaFolder
) -> None:
    columns = [Field("customer", TEXT, nullable=False), Field("cents", LONG)]
    DeltaTable.create(table.place, Schema(columns))
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)

    @sk.process(key="cents")
    def unnamed(order: Order, seen: sk.ValueState[int]) -> Iterator[Anybody]:
        seen.update(1)
        yield Anybody(None, order.cents)

    job = sk.Job("unnamed")
    job.source("orders", Order).process(unnamed).sink("spent", table.sink())
    with pytest.raises(sk.ProcessError, match=r"'customer', and this column .* may not be null"):
        job.run({"orders": ORDERS})
    assert table.rows() == sums(ORDERS)


class Anybody(NamedTuple):
    customer: str | None
    cents: int


def test_a_column_that_outputs_do_not_have_is_null_or_refused(
    root: Path, table: DeltaFolder
) -> None:
    more = [Field("customer", TEXT), Field("cents", LONG), Field("shop", TEXT)]
    DeltaTable.create(table.place, Schema(more))
    run(root, table.sink())
    assert table.read()["shop"].null_count == len(ORDERS)
    required = DeltaFolder(f"{table.place}-required")
    DeltaTable.create(required.place, Schema([*more[:2], Field("shop", TEXT, nullable=False)]))
    with pytest.raises(sk.StateSchemaError, match="'shop' may not be null"):
        run(root.with_name("other"), required.sink())


def test_parts_of_an_epoch_are_merged_in_their_order(tmp_path: Path) -> None:
    table = DeltaFolder(str(tmp_path / "table"))
    sink = table.sink(mode="upsert", key="customer")
    outputs = Outputs("5f" * 16, "spent", spent(("ada", 1)).schema)
    sink.begin(outputs)
    attempt = Attempt(outputs, 0, "run", True, (), lambda: None)
    sink.open(attempt)
    receipts: list[Receipt] = []
    for number, rows in enumerate([spent(("ada", 1), ("bob", 2)), spent(("ada", 3))]):
        receipt = sink.write(Part(outputs, 0, "run", number), iter(rows.to_batches()))
        assert receipt is not None
        receipts.append(receipt)
    sink.publish(attempt, receipts)
    assert table.rows() == [Spent("ada", 3), Spent("bob", 2)]
    assert list((tmp_path / "table" / "_statekit").iterdir()) == []


def test_a_key_without_a_value_is_refused(tmp_path: Path) -> None:
    sink = DeltaFolder(str(tmp_path / "table")).sink(mode="upsert", key="customer")
    outputs = Outputs("5f" * 16, "spent", spent(("ada", 1)).schema)
    rows = pa.table({"customer": pa.array([None], pa.string()), "cents": [1]})
    with pytest.raises(sk.ProcessError, match="field 'customer' without a value"):
        sink.write(Part(outputs, 0, "run", 0), iter(rows.to_batches()))


@pytest.mark.parametrize("type_", [pa.null(), pa.time64("us"), pa.struct([]), pa.float16()])
def test_types_that_no_table_has_are_refused_with_their_path(
    tmp_path: Path, type_: pa.DataType
) -> None:
    schema = pa.schema([("inner", pa.struct([("x", pa.list_(type_))]))])
    with pytest.raises(sk.StateTypeError, match=r"field 'inner\.x\.\w+' of type .* no lake table"):
        sk.sinks.delta(tmp_path / "t").begin(Outputs("5f", "s", schema))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(sk.StatekitError, match=r"pip install 'statekit\[delta\]'"):
        sk.sinks.delta(tmp_path)


def test_a_table_that_cannot_be_reached_is_an_error_that_commits_nothing(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "_delta_log").write_text("a file")
    with pytest.raises(sk.ConnectorError, match=r"Delta table .* failed with .* check that"):
        run(root, sk.sinks.delta(tmp_path / "table"))
    assert not list((root / "epochs").glob("*"))


def test_a_table_on_s3_has_each_record_once(root: Path, s3: str) -> None:
    table = DeltaFolder(s3)
    run(root, table.sink(), ORDERS[:7])
    run(root, table.sink())
    forget(root, 2)
    run(root, table.sink())
    assert table.rows() == sums(ORDERS)
    upserted = DeltaFolder(f"{s3}-last")
    run(root.with_name("other"), upserted.sink(mode="upsert", key="customer"))
    last = {row.customer: row for row in sums(ORDERS)}
    assert upserted.rows() == sorted(last.values())


def test_an_error_of_a_store_shows_no_credentials(
    root: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKIT_STORE_RETRY_SECONDS", "1")
    with pytest.raises(sk.ConnectorError, match=r"NoSuchBucket|404|not exist") as error:
        run(root, sk.sinks.delta("s3://nobody/table"))
    assert "sentinel" not in str(error.value)
