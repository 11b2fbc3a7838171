"""Comparing two states finds exactly the rows that plain dicts differ in."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import plan
from statekit.checkpoint.state_kinds import STATE_KINDS, RowShape, StateKind
from statekit.functions import state_parameters
from statekit.job.options import RunOptions
from statekit.maintenance.diff.compare import (
    Difference,
    EpochSource,
    RowDifference,
    StateDifference,
    compare,
)
from statekit.runtime.local import LocalRunner
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.testing import Harness
from statekit.timestamp import instant
from statekit.working_copy.copies import MemoryCopies
from tests.support.counting_job import Entry, entries, plain_state, tally, tally_job

GROUPS = 8

PlainRows = dict[tuple[str, Any], Any]
"""What rows hold, by key and place."""


def plain_rows(records: Iterable[Entry]) -> dict[str, PlainRows]:
    found: dict[str, PlainRows] = {"total": {}, "seen": {}, "parity": {}}
    for key, states in plain_state(records).items():
        found["total"][key, None] = states["total"]
        found["seen"] |= {(key, index): n for index, n in enumerate(states["seen"])}
        found["parity"] |= {(key, side): n for side, n in states["parity"].items()}
    return found


def plain_difference(a: PlainRows, b: PlainRows) -> list[RowDifference]:
    found = []
    for key, place in {**a, **b}:
        old, new = a.get((key, place)), b.get((key, place))
        change = "added" if old is None else "removed" if new is None else "changed"
        if old != new:
            found.append(RowDifference(change, key, place, old, new))  # type: ignore[arg-type]
    return found


def by_place(found: Iterable[RowDifference]) -> list[RowDifference]:
    return sorted(found, key=lambda row: (row.key, str(row.place)))


def check(found: Difference, a: Iterable[Entry], b: Iterable[Entry]) -> None:
    """All rows that differ have been asked for, and are those of plain Python."""
    of_a, of_b = plain_rows(a), plain_rows(b)
    assert {state.state for state in found.states} == set(of_a)
    for state in found.states:
        rows_a, rows_b = of_a[state.state], of_b[state.state]
        expected = plain_difference(rows_a, rows_b)
        assert by_place(state.examples) == by_place(expected)
        assert (state.rows_a, state.rows_b) == (len(rows_a), len(rows_b))
        changes = [row.change for row in expected]
        assert state.added == changes.count("added")
        assert state.removed == changes.count("removed")
        assert state.changed == changes.count("changed")
    assert found.is_same == (of_a == of_b)


def state_of(found: Difference, name: str) -> StateDifference:
    return next(state for state in found.states if state.state == name)


def differ(a: Path, b: Path, epoch_a: int | None = None, epoch_b: int | None = None) -> Difference:
    return compare(EpochSource(a, epoch_a), EpochSource(b, epoch_b), examples=10_000)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), min_size=2, max_size=5), st.data())
def test_epochs_of_one_checkpoint_differ_as_plain_dicts_do(
    epochs: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever the parallelism of each was, and if one was rolled back to."""
    with tempfile.TemporaryDirectory() as path:
        repository, copies = Repository(path), MemoryCopies()
        records: list[list[Entry]] = []
        for number, (count, parallelism) in enumerate(epochs):
            runner = LocalRunner(
                tally_job(GROUPS).plan, repository, copies, RunOptions(parallelism=parallelism)
            )
            runner.epoch({"records": entries(number, count, keys=5)})
            records.append([*(records[-1] if records else []), *entries(number, count, keys=5)])
        to = data.draw(st.integers(0, len(epochs) - 2), label="rolled back to")
        plan(repository, to).carry_out()
        records.append(records[to])
        drawn = st.integers(0, len(epochs))
        a, b = data.draw(drawn, label="a"), data.draw(drawn, label="b")
        found = differ(Path(path), Path(path), a, b)
        check(found, records[a], records[b])


@settings(max_examples=10, deadline=None)
@given(
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.sampled_from([4, 8, 100]), st.sampled_from([4, 8, 100])),
)
def test_two_checkpoints_differ_as_plain_dicts_do(
    counts: tuple[int, int], sizes: tuple[int, int], groups: tuple[int, int]
) -> None:
    """However the input was cut into epochs, and with any number of shards and key groups."""
    with tempfile.TemporaryDirectory() as path:
        given = [entries(1, 1 + count, keys=4) for count in counts]
        for name, records, size, key_groups in zip("ab", given, sizes, groups, strict=True):
            tally_job(key_groups).run(
                {"records": records},
                checkpoint=Path(path) / name,
                epoch_size=size,
                parallelism=min(size, key_groups),
            )
        check(differ(Path(path) / "a", Path(path) / "b"), *given)


def test_only_shards_that_changed_are_read(tmp_path: Path) -> None:
    """Files that only the other shards need may even be gone."""
    harness = Harness(tally, parallelism=4, key_groups=GROUPS, checkpoint=tmp_path)
    keys = [f"k{n}" for n in range(12)]
    harness.send(*(Entry(key, 1) for key in keys))
    harness.send(Entry("k0", 2))
    changed = harness.shard_of("k0")
    shards = Repository(tmp_path).manifest(0).operators["tally"].shards
    for number, shard in enumerate(shards):
        if number != changed:
            (tmp_path / shard.files[0].path).unlink()
    found = differ(tmp_path, tmp_path, 0, 1)
    assert (found.shards_read, found.shards_skipped) == (1, 3)
    total = state_of(found, "total")
    assert (total.rows_a, total.rows_b, total.changed) == (12, 12, 1)


def test_shards_of_another_layout_without_changes_are_not_read(tmp_path: Path) -> None:
    harness = Harness(tally, parallelism=4, key_groups=GROUPS, checkpoint=tmp_path)
    harness.send(*(Entry(f"k{n}", 1) for n in range(12)))
    wider = Harness(tally, parallelism=2, checkpoint=tmp_path)
    wider.send(Entry("k0", 2))
    for a, b in ((0, 1), (1, 0)):
        found = differ(tmp_path, tmp_path, a, b)
        assert (found.shards_read, found.shards_skipped) == (1, 1)
        assert state_of(found, "total").changed == 1


def test_no_more_rows_are_returned_than_requested(tmp_path: Path) -> None:
    harness = Harness(tally, checkpoint=tmp_path)
    harness.send(Entry("a", 1))
    harness.send(*(Entry(f"k{n}", 1) for n in range(9)))
    found = compare(EpochSource(tmp_path, 0), EpochSource(tmp_path, 1), examples=4)
    assert [len(state.examples) for state in found.states] == [4, 4, 4]
    assert state_of(found, "total").added == 9


# ---------------------------------------------------------------------------------------- types


class Reading(NamedTuple):
    key: str
    at: dt.datetime
    value: float = 0.0


Short = Annotated[sk.ValueState[int], sk.TTL("1 hour")]


@sk.process(key="key")
def stamped(reading: Reading, kept: Short) -> None:
    kept.update(int(reading.value))


def at(second: int) -> dt.datetime:
    return instant(second * 1_000_000)


def test_when_a_row_was_written_is_no_difference(tmp_path: Path) -> None:
    harness = Harness(stamped, checkpoint=tmp_path)
    harness.send(Reading("a", at(0), 1.0))
    harness.advance_processing_time(at(60))
    harness.send(Reading("a", at(0), 1.0))
    found = differ(tmp_path, tmp_path, 0, 2)
    assert found.is_same
    assert found.shards_read == 1
    harness.send(Reading("a", at(0), 2.0))
    (changed,) = state_of(differ(tmp_path, tmp_path, 0), "kept").examples
    assert changed == RowDifference("changed", "a", None, 1, 2)


@sk.process(key="key", event_time="at", lateness="1 hour", ordered=True)
def waits(reading: Reading, ctx: sk.Context) -> None:
    ctx.timers.set(reading.at + dt.timedelta(seconds=5), "bell", clock="processing")


@waits.on_timer
def bell(timer: sk.Timer) -> None: ...


def test_timers_and_buffered_records_are_rows(tmp_path: Path) -> None:
    harness = Harness(waits, checkpoint=tmp_path)
    first, second = Reading("a", at(7000), 1.0), Reading("a", at(7200), 2.0)
    harness.send(first)
    harness.send(second, second)
    harness.send(Reading("a", at(10_700), 3.0))
    harness.send()
    (added,) = {
        row.change for row in state_of(differ(tmp_path, tmp_path, 0, 1), "_waiting").examples
    }
    assert added == "added"
    found = differ(tmp_path, tmp_path, 1, 4 - 1)
    (timer,) = state_of(found, "_timers").examples
    assert (timer.change, timer.key) == ("added", "a")
    assert timer.place == ["processing", at(7005).isoformat(), "bell"]
    waiting = state_of(found, "_waiting")
    assert (waiting.rows_a, waiting.rows_b) == (3, 3)
    assert [(row.change, row.place[0]) for row in waiting.examples] == [
        ("removed", at(7000).isoformat()),
        ("added", at(10_700).isoformat()),
    ]
    assert waiting.examples[1].place[1]["value"] == 3.0


def job_of(*declared: Any) -> sk.Job:
    job = sk.Job("job")
    stream = job.source("records", Entry)
    for each in declared:
        stream.process(each, name=each.name.split("_")[0])
    return job


@sk.process(key="key")
def p_ints(entry: Entry, held: sk.ValueState[int], gone: sk.ValueState[int]) -> None:
    held.update(entry.n)
    gone.update(entry.n)


@sk.process(key="key")
def p_floats(entry: Entry, held: sk.ValueState[float], more: sk.MapState[str, int]) -> None:
    held.update(float(entry.n))
    more["x"] = entry.n


@sk.process(key="n")
def q_by_number(entry: Entry, held: sk.ValueState[str]) -> None:
    held.update(entry.key)


@sk.process(key="n")
def p_by_number(entry: Entry, held: sk.ValueState[int]) -> None:
    held.update(entry.n)


def ran(path: Path, job: sk.Job, *records: Entry, **options: Any) -> Path:
    job.run({"records": records}, checkpoint=path, **options)
    return path


def test_different_types_are_reported_and_decoded_values_are_compared(tmp_path: Path) -> None:
    a = ran(tmp_path / "a", job_of(p_ints), Entry("a", 1), Entry("b", 2))
    b = ran(tmp_path / "b", job_of(p_floats), Entry("a", 1), Entry("b", 3))
    found = differ(a, b)
    held = state_of(found, "held")
    assert (held.type_a, held.type_b) == ("value[int]", "value[float]")
    assert held.examples == [RowDifference("changed", "b", None, 2, 3.0)]
    assert (held.rows_a, held.rows_b) == (2, 2)
    gone, more = state_of(found, "gone"), state_of(found, "more")
    assert (gone.type_b, gone.removed, gone.rows_b) == (None, 2, 0)
    assert (more.type_a, more.added, more.rows_a) == (None, 2, 0)
    assert not found.is_same


def test_types_alone_make_a_difference(tmp_path: Path) -> None:
    a = ran(tmp_path / "a", job_of(p_ints), Entry("a", 1))
    b = ran(tmp_path / "b", job_of(p_floats, q_by_number), Entry("a", 1))
    assert not differ(a, b).is_same


def test_operators_of_one_side_have_rows_of_one_side(tmp_path: Path) -> None:
    a = ran(tmp_path / "a", job_of(p_ints), Entry("a", 1))
    b = ran(tmp_path / "b", job_of(p_ints, q_by_number), Entry("a", 1))
    for found, changed in ((differ(a, b), "added"), (differ(b, a), "removed")):
        assert set(found.operators_a) ^ set(found.operators_b) == {"q"}
        (row,) = found.states[-1].examples
        assert (row.change, row.key, row.new or row.old) == (changed, 1, "a")
        assert [state.is_same for state in found.states] == [True, True, False]


def test_another_type_of_key_makes_all_rows_others(tmp_path: Path) -> None:
    a = ran(tmp_path / "a", job_of(p_ints), Entry("a", 1))
    b = ran(tmp_path / "b", job_of(p_by_number), Entry("a", 1))
    held = state_of(differ(a, b), "held")
    assert [(row.change, row.key) for row in held.examples] == [("removed", "a"), ("added", 1)]


def of_days(cls: Any) -> Any:
    """A process function whose key and map key are of a class."""

    def held(record: Any, last: Any) -> None:
        last[record.key] = record.n

    hints = {"record": NamedTuple("Of", [("key", cls), ("n", int)]), "last": sk.MapState[cls, int]}
    held.__annotations__ = {**hints, "return": None}
    return sk.process(key="key")(held)


def test_rows_of_a_renamed_class_of_keys_are_the_same(tmp_path: Path) -> None:
    classes: list[Any] = [NamedTuple("Day", [("year", int)]), NamedTuple("Date", [("year", int)])]
    for cls in classes:
        function = of_days(cls)
        record: Any = function.record_type.cls
        Harness(function, checkpoint=tmp_path / cls.__name__).send(record(cls(2026), 1))
    found = state_of(differ(tmp_path / "Day", tmp_path / "Date"), "last")
    assert (found.rows_a, found.rows_b, found.examples) == (1, 1, [])


@sk.process(key="key")
def p_by_name(entry: Entry, latest: sk.BroadcastState[str, int]) -> None: ...


@p_by_name.on_broadcast
def named(entry: Entry, latest: sk.BroadcastState[str, int]) -> None:
    latest[entry.key] = entry.n


@sk.process(key="key")
def p_by_count(entry: Entry, latest: sk.BroadcastState[int, int]) -> None: ...


@p_by_count.on_broadcast
def counted(entry: Entry, latest: sk.BroadcastState[int, int]) -> None:
    latest[entry.n] = entry.n


def test_operator_state_with_other_types_is_named_by_the_number_of_the_shard(
    tmp_path: Path,
) -> None:
    for name, process in (("a", p_by_name), ("b", p_by_count)):
        job = sk.Job("p")
        records = job.source("records", Entry)
        records.process(process, name="p", broadcast=job.source("news", Entry))
        given = {"records": [Entry("k", 1)], "news": [Entry("x", 7)]}
        job.run(given, checkpoint=tmp_path / name, parallelism=2)
    latest = state_of(differ(tmp_path / "a", tmp_path / "b"), "latest")
    places = [(row.change, row.key, row.place) for row in latest.examples]
    shards = ["shard 0", "shard 1"]
    assert sorted(places, key=str) == [
        *(("added", shard, 7) for shard in shards),
        *(("removed", shard, "x") for shard in shards),
    ]


def test_a_dropped_state_is_a_difference_although_no_shard_changed(tmp_path: Path) -> None:
    @sk.process(key="key")
    def p_less(entry: Entry, held: sk.ValueState[int]) -> None: ...

    ran(tmp_path, job_of(p_ints), Entry("a", 1))
    options: dict[str, Any] = {"allow_dropped_state": True, "backend": "rocksdb"}
    ran(tmp_path, job_of(p_less), Entry("a", 1), Entry("b", 1), **options)
    found = differ(tmp_path, tmp_path, 0, 1)
    gone = state_of(found, "gone")
    assert (gone.removed, gone.type_b) == (1, None)
    assert state_of(found, "held").is_same


@sk.process(key="key")
def p_pickled(entry: Entry, held: Annotated[sk.ValueState[complex], sk.PickleCodec()]) -> None:
    held.update(complex(entry.n))


def test_pickled_rows_are_compared_without_unpickling_them(tmp_path: Path) -> None:
    ran(tmp_path, job_of(p_pickled), Entry("a", 1))
    ran(tmp_path, job_of(p_pickled), Entry("a", 1), Entry("a", 2))
    (row,) = differ(tmp_path, tmp_path, 0, 1).states[0].examples
    assert row.change == "changed"
    assert set(row.new) == {"pickled"}
    sides = EpochSource(tmp_path, 0), EpochSource(tmp_path, 1)
    (row,) = compare(*sides, examples=1, allow_pickle=True).states[0].examples
    assert (row.old, row.new) == ("(1+0j)", "(2+0j)")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    harness = Harness(tally, checkpoint=tmp_path)
    harness.send(Entry("a", 1))
    harness.send(Entry("a", 2))
    *_, ref = Repository(tmp_path).manifest(1).operators["tally"].shards[0].files
    damaged = tmp_path / ref.path
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(sk.CorruptCheckpointError, match=ref.path):
        differ(tmp_path, tmp_path, 0, 1)


def test_a_comparison_leaves_no_files_on_the_local_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    a = ran(tmp_path / "a", job_of(p_ints), Entry("a", 1))
    b = ran(tmp_path / "b", job_of(p_floats), Entry("a", 1))
    differ(a, b)
    assert not list(scratch.iterdir())


# ----------------------------------------------------------------------------------- new kinds

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Log(ListState[T]):
    """A state type of a kind of its own, with a row per element."""

    __slots__ = ()
    kind = StateKind("log", RowShape.ELEMENTS)


class Table(MapState[K, V]):
    """A state type of a kind of its own, with a row per entry."""

    __slots__ = ()
    kind = StateKind("table", RowShape.ENTRIES)


def test_rows_of_a_new_kind_are_compared_by_their_shape(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for cls in (Log, Table):
        monkeypatch.setitem(STATE_KINDS, cls.kind.name, cls.kind)
    monkeypatch.setattr(state_parameters, "_STATE_CLASSES", (Log, Table))

    @sk.process(key="key")
    def keep(record: dict[str, Any], log: Log[int], table: Table[str, int]) -> None:
        log.append(record["n"])
        table["last"] = record["n"]

    harness = Harness(keep, checkpoint=tmp_path)
    for n in (5, 6):
        harness.send({"key": "a", "n": n})
    assert harness.state("log", "a") == [5, 6]
    assert harness.state("table", "a") == {"last": 6}
    found = compare(EpochSource(tmp_path, 0), EpochSource(tmp_path, 1), examples=9)
    assert state_of(found, "log").examples == [RowDifference("added", "a", 1, None, 6)]
    assert state_of(found, "table").examples == [RowDifference("changed", "a", "last", 5, 6)]
