"""Change tables against the change feed."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.functions.process import Process
from statekit.query.changes.state_changes import StateChanges
from statekit.testing import Harness
from tests.support.all_row_kinds import PROCESSES, Step, epochs, run
from tests.support.change_rows import rows_of_feed, rows_of_tables


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=epochs(), parallelism=st.integers(1, 3), rescaled=st.integers(1, 3))
def test_changes_of_every_kind_of_state_equal_the_feed(
    process: Process[Any, Any, Any], steps: list[list[Step]], parallelism: int, rescaled: int
) -> None:
    harness = Harness(process, parallelism=parallelism)
    for number, records in enumerate(steps):
        if number == 2:
            harness.rescale(rescaled)
        run(harness, 3 * number, records)
    checkpoint = harness._repository
    for spec in process.states:
        for after in (None, 0):
            place = (checkpoint, process.name, spec.name)
            assert rows_of_tables(*place, after) == rows_of_feed(*place, after), spec.name


@sk.process(key=("op", "n"))
def odd_names(
    record: dict[str, Any],
    last: sk.ValueState[dict[str, int]],
    count: Annotated[sk.OperatorState[int], sk.Default(0)],
    words: sk.OperatorListState[str],
) -> None:
    last.update({"n": record["n"]})
    count.update((count.get() or 0) + 1)
    words.append(record["op"])


def odd_checkpoint(*records: dict[str, Any]) -> Repository:
    harness = Harness(odd_names, parallelism=2)
    for record in records:
        harness.send(record)
    return harness._repository


def test_a_key_field_named_like_a_column_gets_a_prefix() -> None:
    checkpoint = odd_checkpoint({"op": "a", "n": 1})
    changes = StateChanges(checkpoint, "odd_names", "last")
    manifest = changes.epochs.manifest(0)
    names = changes.table(manifest).schema.names
    assert names[5:] == ["op", "key_op", "n", "value", "expires"]


def test_operator_state_has_its_shard_as_key() -> None:
    checkpoint = odd_checkpoint({"op": "a", "n": 1}, {"op": "b", "n": 2})
    for state in ("count", "words"):
        rows = rows_of_tables(checkpoint, "odd_names", state)
        assert rows == rows_of_feed(checkpoint, "odd_names", state)
        assert {row["key"] for row in rows if row["op"] == "upsert"} <= {0, 1}


def test_pieces_are_pickled_and_read_by_another_process() -> None:
    checkpoint = odd_checkpoint(*({"op": "a", "n": n} for n in range(5)))
    changes = StateChanges(checkpoint, "odd_names", "last", wanted={"n", "op"})
    before = changes.epochs.manifest(0)
    pieces = list(changes.pieces(before, changes.manifests(before, 3)))
    assert [piece.facts.epoch for piece in pieces] == [1, 2, 3]
    assert all(len(pickle.dumps(piece)) < 2000 for piece in pieces)
    rows = [
        row
        for piece in pickle.loads(pickle.dumps(pieces))
        for batch in changes.batches(piece)
        for row in batch.to_pylist()
    ]
    assert [row["n"] for row in rows] == ["1", "2", "3"]
    assert "value" not in rows[0]


def test_an_unknown_state_is_named_with_those_that_exist() -> None:
    changes = StateChanges(odd_checkpoint({"op": "a", "n": 1}), "odd_names", "lost")
    with pytest.raises(sk.QueryError, match="no state 'lost': it has last, count, words"):
        changes.table(changes.epochs.manifest(0))


def test_the_columns_are_those_of_the_job_that_replaced_another_one_at_its_path(
    tmp_path: Path,
) -> None:
    def send(harness: Harness) -> EpochManifest:
        harness.send({"key": "a"})
        return Repository(tmp_path / "c").manifest(0)

    @sk.process(key="key")
    def op(record: dict[str, Any], last: sk.ValueState[int]) -> None:
        last.update(1)

    first = send(Harness(op, checkpoint=tmp_path / "c"))
    changes = StateChanges(tmp_path / "c", "op", "last")
    assert changes.table(first).schema.field("value").type == pa.int64()
    shutil.rmtree(tmp_path / "c")

    @sk.process(key="key")
    def other(record: dict[str, Any], last: sk.ValueState[str]) -> None:
        last.update("text")

    other.name = "op"
    second = send(Harness(other, checkpoint=tmp_path / "c"))
    assert second.job_file.path == first.job_file.path
    assert changes.table(second).schema.field("value").type == pa.string()
    (piece,) = changes.pieces(None, [second])
    assert [batch["value"].to_pylist() for batch in changes.batches(piece)] == [["text"]]
    with pytest.raises(sk.QueryError, match="was replaced"):
        StateChanges(tmp_path / "c", "op", "last").table(first)
