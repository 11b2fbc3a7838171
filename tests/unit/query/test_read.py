"""Tables of states against CheckpointReader, key by key."""

from __future__ import annotations

import datetime as dt
import gc
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.job_file import TIMERS, WAITING, StateRecord
from statekit.checkpoint.paths import first_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import EpochMark
from statekit.checkpoint.state_kinds import RowShape
from statekit.codec.json_form import instant_text
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.packed_bytes import row_batches
from statekit.testing import Harness
from tests.support import full_checkpoint
from tests.support.all_row_kinds import (
    KEYS,
    PROCESSES,
    START,
    Step,
    epochs,
    held,
    keep_in_order,
    run,
)
from tests.support.change_rows import decoded_rows
from tests.support.effort import SOAK


def rows_of(checkpoint: Any, operator: str, state: str, **how: Any) -> list[dict[str, Any]]:
    reader = sk.read(checkpoint, operator, state, **how)
    table = reader.read_all()
    table.validate(full=True)
    assert table.schema.equals(reader.schema, check_metadata=True)
    return [row for batch in table.to_batches() for row in decoded_rows(batch)]


def shown(state: StateRecord, rows: list[dict[str, Any]]) -> Any:
    """The rows of one key, or shard, in the form in which CheckpointReader gives them."""
    if state.shape is RowShape.ELEMENTS:
        assert [row["position"] for row in rows] == list(range(len(rows)))
        return [row["value"] for row in rows]
    if state.shape is RowShape.ENTRIES:
        return {row["map_key"]: row["value"] for row in rows}
    if not rows:
        return None
    (row,) = rows
    if "value" in row:
        return row["value"]
    return {name: value for name, value in row.items() if name != "key_key"}


def compare(repository: Repository, epoch: int) -> None:
    """Compare all states after an epoch."""
    reader = CheckpointReader(repository, epoch=epoch)
    for operator in reader.job.operators:
        for state in operator.states:
            rows = rows_of(repository, operator.name, state.name, epoch=epoch)
            if state.is_local:
                expected = reader.operator_state(operator.name, state.name)
                for shard, of_shard in enumerate(expected):
                    own = [row for row in rows if row["shard"] == shard]
                    assert shown(state, own) == of_shard
                continue
            by_key: dict[str, list[dict[str, Any]]] = {}
            for row in rows:
                by_key.setdefault(row.get("key_key", row["key"]), []).append(row)
            assert by_key.keys() <= set(KEYS)
            for key in KEYS:
                expected = reader.get(operator.name, state.name, key)
                assert shown(state, by_key.get(key, [])) == expected
                own = rows_of(repository, operator.name, state.name, epoch=epoch, key=key)
                assert own == by_key.get(key, [])


@settings(max_examples=8 if SOAK else 4, deadline=None)
@given(epochs(), st.sampled_from(PROCESSES), st.integers(1, 3))
def test_the_table_is_what_the_reader_gives_at_every_epoch(
    given: list[list[Step]], process: Any, parallelism: int
) -> None:
    harness = Harness(process, parallelism=parallelism)
    for number, records in enumerate(given):
        run(harness, number, records)
    repository = harness._repository
    for epoch in repository.epochs():
        compare(repository, epoch)
    timers = rows_of(repository, process.name, TIMERS)
    for key, (_, own) in held(harness).items():
        expected = {(timer.name, timer.clock, instant_text(timer.at)) for timer in own}
        found = [row for row in timers if row["key"] == key]
        assert {(row["timer"], row["clock"], row["at"]) for row in found} == expected
        assert rows_of(repository, process.name, TIMERS, key=key) == found


def test_other_parallelisms_rollbacks_and_rewrites_do_not_matter() -> None:
    repository = Repository.in_memory()
    full_checkpoint.make(repository)
    for epoch in repository.epochs():
        compare(repository, epoch)


def test_bases_are_read_and_leave_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "checkpoint")
    full_checkpoint.make_with_bases(repository, tmp_path / "working")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    for epoch in repository.epochs():
        compare(repository, epoch)
    assert not list((tmp_path / "scratch").iterdir())
    reader = sk.read(repository, "keep_in_order", "seen")
    reader.read_next_batch()
    assert list((tmp_path / "scratch").iterdir())
    del reader
    gc.collect()
    assert not list((tmp_path / "scratch").iterdir())


def test_buffered_records_are_rows_and_are_found_by_key() -> None:
    harness = Harness(keep_in_order, parallelism=2)
    steps = [Step("a", 1, START), Step("b", 2, START), Step("a", 3, START)]
    harness.send(*steps)
    repository = harness._repository
    rows = rows_of(repository, "keep_in_order", WAITING)
    assert sorted((row["key_key"], row["value_at"], row["n"]) for row in rows) == [
        (step.key, instant_text(START), step.n) for step in sorted(steps)
    ]
    assert {row["n"] for row in rows_of(repository, "keep_in_order", WAITING, key="a")} == {1, 3}


# -------------------------------------------------------------------------------- the schema


@dataclass
class Leg:
    key: str
    written: int
    stop: str | int
    stops: list[str | int]


class Seen(NamedTuple):
    key: str
    n: int = 0


@sk.process(key="key")
def legs(
    record: Seen,
    leg: Annotated[sk.ValueState[Leg], sk.TTL("1 hour")],
    numbers: sk.ListState[int],
    by_date: sk.MapState[dt.date, str],
) -> None:
    leg.update(Leg("k", 1, "a", ["x", 2]))
    numbers.append(record.n)
    by_date[dt.date(2013, 1, 1)] = "x"


def test_names_that_are_taken_get_a_prefix_and_json_text_is_marked() -> None:
    harness = Harness(legs)
    empty = sk.read(_sent(harness, Seen("u")), "legs", "leg").schema
    assert empty.names == ["key_key", "key", "value_written", "stop", "stops", "written", "expires"]
    fields = [empty.field("stop"), empty.field("stops").type.value_field, empty.field("key")]
    marks = [(field.metadata or {}).get(b"statekit.json") for field in fields]
    assert marks == [b"all", b"all", None]
    assert empty.field("stops").metadata[b"statekit.type"] == b"list[str | int]"
    (row,) = rows_of(harness._repository, "legs", "leg")
    assert (row["key_key"], row["key"], row["stop"], row["stops"]) == ("u", "k", "a", ["x", 2])
    hour = dt.datetime.fromisoformat(row["expires"]) - dt.datetime.fromisoformat(row["written"])
    assert hour == dt.timedelta(hours=1)


def test_numbers_that_json_does_not_have_are_text_in_json_text() -> None:
    @sk.process(key="key")
    def ratios(record: Seen, ratio: sk.ValueState[float | str]) -> None:
        ratio.update(float("nan") if record.n else float("-inf"))

    repository = _sent(Harness(ratios), Seen("a"), Seen("b", 1))
    rows = rows_of(repository, "ratios", "ratio")
    assert {row["key"]: row["value"] for row in rows} == {"a": "-Infinity", "b": "NaN"}
    reader = CheckpointReader(repository)
    assert [reader.get("ratios", "ratio", key) for key in "ab"] == ["-Infinity", "NaN"]


def _sent(harness: Harness, *records: Any) -> Repository:
    harness.send(*records)
    return harness._repository


def test_the_schema_of_an_empty_state_is_that_of_a_full_one() -> None:
    @sk.process(key="key")
    def some(record: Seen, value: sk.ValueState[int], other: sk.MapState[str, Leg]) -> None:
        if record.n:
            value.update(record.n)
            other["a"] = Leg("k", 1, "a", [])

    harness = Harness(some, parallelism=2)
    repository = _sent(harness, Seen("a"))
    schemas = [sk.read(repository, "some", name).schema for name in ("value", "other")]
    assert [rows_of(repository, "some", name) for name in ("value", "other")] == [[], []]
    _sent(harness, Seen("a", 1))
    assert [sk.read(repository, "some", name).schema for name in ("value", "other")] == schemas
    assert schemas[0].types == [pa.string(), pa.int64()]


def test_columns_are_read_in_the_given_order_and_an_unknown_one_is_refused() -> None:
    repository = _sent(Harness(legs), Seen("u"))
    rows = rows_of(repository, "legs", "leg", columns=["stop", "key_key"])
    assert [list(row.items()) for row in rows] == [[("stop", "a"), ("key_key", "u")]]
    with pytest.raises(sk.QueryError, match=r"legs\.leg in epoch 0: .* has no column 'speed'"):
        sk.read(repository, "legs", "leg", columns=["speed"])
    with pytest.raises(sk.QueryError, match="at least one column"):
        sk.read(repository, "legs", "leg", columns=["stop", "stop"])


def test_ints_beyond_64_bits_are_refused_and_read_with_wide_ints() -> None:
    repository = _sent(Harness(legs), Seen("a", 2**63), Seen("b", -1))
    with pytest.raises(sk.QueryError, match=r"legs\.numbers in epoch 0 .*wide_ints=True"):
        sk.read(repository, "legs", "numbers").read_all()
    rows = rows_of(repository, "legs", "numbers", wide_ints=True)
    assert sorted(row["value"] for row in rows) == [-1, 2**63]


def test_pickled_values_are_read_only_on_demand() -> None:
    @sk.process(key="key")
    def hold(record: Seen, held: Annotated[sk.ValueState[complex], sk.PickleCodec()]) -> None:
        held.update(1j)

    repository = _sent(Harness(hold), Seen("a"))
    with pytest.raises(sk.QueryError, match=r"hold\.held in epoch 0: .*allow_pickle=True"):
        sk.read(repository, "hold", "held")
    assert rows_of(repository, "hold", "held", columns=["key"]) == [{"key": "a"}]
    assert rows_of(repository, "hold", "held", allow_pickle=True)[0]["value"] == "1j"


def test_rows_of_earlier_generations_are_json_text_in_a_column_of_their_own() -> None:
    @sk.process(key="key")
    def total(record: Seen, total: sk.ValueState[int]) -> None:
        total.update(record.n)

    repository = _sent(Harness(total), Seen("a", 1), Seen("b", 2))

    @sk.process(key="key", migrate={"total": lambda number: str(number)})  # type: ignore[no-redef]
    def total(record: Seen, total: sk.ValueState[str]) -> None:
        total.update(f"{total.get()}+{record.n}")

    _sent(Harness(total, checkpoint=repository), Seen("b", 3))
    rows = rows_of(repository, "total", "total")
    assert sorted(rows, key=lambda row: row["key"]) == [
        {"key": "a", "value": None, "earlier": 1},
        {"key": "b", "value": "2+3", "earlier": None},
    ]
    field = sk.read(repository, "total", "total").schema.field("earlier")
    assert field.metadata == {b"statekit.type": b"int", b"statekit.json": b"all"}
    assert [row["value"] for row in rows_of(repository, "total", "total", epoch=0)] == [1, 2]


def test_keys_of_plain_dicts_are_found_as_numbers_and_as_text() -> None:
    @sk.process(key=("a", "b"))
    def hold(record: dict[str, Any], held: sk.ValueState[int]) -> None:
        held.update(1)

    repository = _sent(Harness(hold), {"a": 5, "b": "x"})
    expected = [{"a": 5, "b": "x", "value": 1}]
    assert rows_of(repository, "hold", "held") == expected
    assert rows_of(repository, "hold", "held", key=[5, "x"]) == expected
    assert rows_of(repository, "hold", "held", key='[5, "y"]') == []


# --------------------------------------------------------------------------------- failures


def test_what_does_not_exist_is_refused_with_the_names_that_do() -> None:
    repository = Repository.in_memory()
    full_checkpoint.make(repository)
    with pytest.raises(sk.QueryError, match=r"no state 'sen' in epoch \d+: it has last, brief"):
        sk.read(repository, "keep", "sen")
    with pytest.raises(sk.QueryError, match="no operator"):
        sk.read(repository, "kep", "seen")
    with pytest.raises(sk.QueryError, match="no epoch 99"):
        sk.read(repository, "keep", "seen", epoch=99)
    with pytest.raises(sk.QueryError, match=r"share\.shared .* belongs to shards"):
        sk.read(repository, "share", "shared", key="a")
    with pytest.raises(sk.QueryError, match="no state '_waiting'"):
        sk.read(repository, "keep", "_waiting")
    with pytest.raises(sk.StateTypeError):
        sk.read(repository, "keep", "seen", key=5)


def test_an_epoch_that_is_collected_while_it_is_read_says_so(tmp_path: Path) -> None:
    repository, working = Repository(tmp_path / "checkpoint"), tmp_path / "working"
    full_checkpoint.make_with_bases(repository, working)
    first, *_, last = repository.epochs()
    readers = [sk.read(repository, "keep_in_order", "seen", epoch=e) for e in (first, last)]
    repository.create(first_path(last), EpochMark(epoch=last).to_bytes())
    for path in [f for f in repository.tree("data") if f.endswith(".base.json")]:
        (tmp_path / "checkpoint" / path).unlink()
    with pytest.raises(
        sk.QueryError, match=rf"keep_in_order\.seen in epoch {first}: .*was collected"
    ):
        readers[0].read_all()
    with pytest.raises(sk.CorruptCheckpointError, match=rf"keep_in_order\.seen in epoch {last} of"):
        readers[1].read_all()


@pytest.mark.parametrize("damage", ["removed", "flipped"])
def test_a_damaged_file_is_an_error_that_names_the_state(tmp_path: Path, damage: str) -> None:
    repository = _sent(Harness(legs, checkpoint=tmp_path), Seen("a"))
    (file,) = tmp_path.glob("data/**/*.arrow")
    if damage == "removed":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(sk.CorruptCheckpointError, match=r"legs\.numbers in epoch 0 of"):
        sk.read(repository, "legs", "numbers").read_all()


def test_batches_are_of_bounded_size() -> None:
    def rows(count: int, size: int) -> Iterator[tuple[bytes, bytes]]:
        return ((number.to_bytes(4, "big"), bytes(size)) for number in range(count))

    batches = list(row_batches(rows(1_000, 10_000), bytes_max=1_000_000))
    assert sum(len(batch.keys) for batch in batches) == 1_000
    assert max(batch.size for batch in batches) < 4_000_000
    assert [len(b.keys) for b in row_batches(rows(10, 1), rows_max=4)] == [4, 4, 2]
    assert list(row_batches(rows(0, 0))) == []


@pytest.mark.parametrize(
    "wrong",
    [{"epoch": "3"}, {"epoch": -1}, {"epoch": True}, {"columns": "value"}, {"columns": [1]}],
)
def test_arguments_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    @sk.process(key="key")
    def hold(record: Seen, held: sk.ValueState[int]) -> None:
        held.update(record.n)

    repository, (name,) = _sent(Harness(hold), Seen("a", 1)), wrong
    with pytest.raises(sk.StateTypeError, match=f"{name}="):
        sk.read(repository, "hold", "held", **wrong)
