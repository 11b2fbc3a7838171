"""Stored checkpoints and savepoints are read, and jobs continue from them."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.manifest_pages import PAGED_FORMAT
from statekit.checkpoint.paths import epoch_path
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FORMAT, Sealed, checksum_of
from statekit.cli import inspect as cli_inspect
from statekit.cli import verify as cli_verify
from statekit.cli.diff import source_of
from statekit.errors import RestoreError
from statekit.maintenance.diff.compare import compare
from statekit.maintenance.migrate import Migration
from statekit.maintenance.savepoint.format import Savepoint, SavepointFile
from statekit.query.rows.reader import CheckpointReader
from tests.stored import recipe_all_kinds, recipe_layouts, recipe_operators
from tests.stored.recipe_all_kinds import given
from tests.support.effort import SOAK
from tests.support.places import STORED


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED / name, tmp_path / "checkpoint"))


# ---------------------------------------------------------------------------- all kinds of state

ALL_KINDS = STORED / "all-kinds"
SAVED = ALL_KINDS / "savepoints/s"
READ = 27


def test_a_checkpoint_with_all_kinds_of_state_reads() -> None:
    assert b'"format":3,' in (ALL_KINDS / "job.json").read_bytes()
    reader = CheckpointReader(ALL_KINDS, allow_pickle=True)
    assert reader.epochs == list(range(8))
    assert reader.abandoned == ((4, 4),)
    causes = [Repository(ALL_KINDS).manifest(epoch).cause for epoch in (1, 2, 5, 7)]
    assert causes == ["records", "rescale", "rollback", "records"]
    orders, payments = (given(READ)[name] for name in ("orders", "payments"))
    mine = [event.cents for event in orders if event.account == "acc-3"]
    paid = [event for event in payments if event.account == "acc-3"]
    cents = [*mine, *(-event.cents for event in paid)]
    assert sorted(reader.get("ledger", "cents", "acc-3")) == sorted(cents)
    assert reader.get("ledger", "largest", "acc-3") == max(map(abs, cents))
    assert reader.get("ledger", "by_method", "acc-3") == {
        method: sum(event.cents for event in paid if event.method == method)
        for method in ("card", "cash")
    }
    assert reader.get("ledger", "account", "acc-3")["owner"] == "ACC-3"
    assert reader.get("ledger", "last", "acc-3") == f"{mine[-1] / 100:.2f}", "behind all payments"
    assert reader.get("ledger", "last", "once") == 105, "of the generation before"
    rates = {"EUR": given(READ)["rates"][-1].factor}
    assert reader.operator_state("ledger", "rates") == [rates] * 3
    assert sum(reader.operator_state("ledger", "count")) == 2 * READ
    recent = reader.operator_state("ledger", "recent")
    assert sorted(n for part in recent for n in part) == sorted(
        event.cents for event in (*orders, *payments)
    )
    assert sorted(n for part in reader.operator_state("sample", "kept") for n in part) == sorted(
        event.cents for event in orders
    )
    seen = {method for part in reader.operator_state("ledger", "methods") for method in part}
    assert seen == {"card", "cash"}


def test_the_command_line_shows_buffered_records(capsys: pytest.CaptureFixture[str]) -> None:
    reader = CheckpointReader(ALL_KINDS)
    waiting = reader.manifest.operators["in_order"].rows["_waiting"]
    assert waiting
    cli_inspect.inspect(str(ALL_KINDS))
    assert re.search(rf"_waiting +│ buffered records +│ +{waiting} ", capsys.readouterr().out)
    cli_inspect.inspect(str(ALL_KINDS), as_json=True)
    shown = {found["name"]: found for found in json.loads(capsys.readouterr().out)["operators"]}
    assert (shown["in_order"]["waiting"], shown["ledger"]["waiting"]) == (waiting, None)


def test_a_stored_savepoint_has_the_state_of_its_checkpoint() -> None:
    assert b'"format":3,' in (SAVED / "savepoint.json").read_bytes()
    for other in (str(SAVED), f"{ALL_KINDS}@7"):
        assert compare(source_of(str(ALL_KINDS)), source_of(other)).is_same
    changed = compare(source_of(f"{ALL_KINDS}@4"), source_of(f"{ALL_KINDS}@6"))
    assert changed.is_same, "epoch 6 is epoch 4 once more, behind the rollback"
    (part,) = SAVED.glob("state.*/ledger/last/*.parquet")
    table = pq.read_table(part).to_pydict()
    values = dict(zip(table["account"], table["value"], strict=True))
    assert values["once"] is None, "a row of the generation before has no value of the type"
    assert values["acc-3"] == CheckpointReader(ALL_KINDS).get("ledger", "last", "acc-3")


def held(checkpoint: Path) -> list[tuple[str, int, str]]:
    """What there is in each state, in words that do not depend on shards.

    Without the timers of windows, which earlier versions set: they find nothing once they are due.
    """
    source = source_of(str(checkpoint))
    other = source_of(f"{checkpoint}@7")
    found = compare(other, source, examples=10_000, allow_pickle=True)
    return [
        (f"{state.operator}.{state.state}", state.rows_b, repr(sorted(map(repr, state.examples))))
        for state in found.states
        if (state.operator, state.state) != ("sum_cents_by_account", "_timers")
    ]


def gone_on(checkpoint: Path, parallelism: int | None, **options: Any) -> dict[str, list[Any]]:
    outputs = recipe_all_kinds.run(
        recipe_all_kinds.build_job(), checkpoint, READ + 18, parallelism=parallelism, **options
    )
    return {name: sorted(map(repr, told)) for name, told in outputs.items()}


@pytest.mark.parametrize("parallelism", [3, 5, 1] if SOAK else [5])
def test_a_checkpoint_with_all_kinds_of_state_continues_with_the_same_results(
    tmp_path: Path, parallelism: int
) -> None:
    stored, anew = copied("all-kinds", tmp_path), tmp_path / "anew"
    recipe_all_kinds.make(anew)
    outputs = gone_on(stored, parallelism)
    assert all(outputs.values())
    assert outputs == gone_on(anew, parallelism)
    assert held(stored) == held(anew)


@pytest.mark.parametrize(("parallelism", "key_groups"), [(3, 16), (5, 64), (1, 7)])
def test_a_stored_savepoint_restores_as_if_nothing_had_happened(
    tmp_path: Path, parallelism: int, key_groups: int
) -> None:
    stored = copied("all-kinds", tmp_path)
    expected = gone_on(stored, parallelism)
    job = recipe_all_kinds.build_job()
    job.plan.key_groups = key_groups
    options: dict[str, Any] = {"parallelism": parallelism, "from_savepoint": SAVED}
    made = recipe_all_kinds.run(job, tmp_path / "new", READ + 18, **options)
    assert {name: sorted(map(repr, told)) for name, told in made.items()} == expected
    reader = CheckpointReader(tmp_path / "new")
    assert (reader.job.key_groups, reader.manifest.parallelism) == (key_groups, parallelism)
    assert sum(reader.operator_state("ledger", "count")) == 2 * (READ + 18)


def test_a_stored_checkpoint_is_migrated_at_once(tmp_path: Path) -> None:
    stored, lazily = copied("all-kinds", tmp_path), tmp_path / "lazily"
    shutil.copytree(stored, lazily)
    assert Migration(recipe_all_kinds.build_job(), stored).run(lambda *_: None) is not None
    assert CheckpointReader(stored).get("ledger", "last", "once") == "1.05"
    assert CheckpointReader(stored).get("ledger", "account", "once")["owner"] == "ONCE"
    assert gone_on(stored, 2) == gone_on(lazily, 2)


# ------------------------------------------------------------------ bases, histories and slices

LAYOUTS = STORED / "layouts"


def test_a_checkpoint_with_bases_and_slices_reads() -> None:
    assert b'"format":3,' in (LAYOUTS / "job.json").read_bytes()
    reader = CheckpointReader(LAYOUTS)
    assert reader.epochs == [7]
    ledger, ordered = (reader.manifest.operators[name].shards for name in ("ledger", "in_order"))
    assert [bool(shard.base) for shard in ledger] == [True, False, False]
    assert [bool(shard.history) for shard in ledger] == [False, True, False]
    assert [bool(shard.slices) for shard in ledger] == [False, False, True]
    assert all(shard.files for shard in (*ledger[:2], *ordered))
    by_account: dict[str, list[recipe_layouts.Move]] = {}
    for move in recipe_layouts.GIVEN:
        by_account.setdefault(move.account, []).append(move)
    for account, moves in by_account.items():
        cents = [move.cents for move in moves]
        assert reader.get("ledger", "cents", account) == cents
        assert reader.get("ledger", "lately", account) == len(moves)
        by_hour = reader.get("ledger", "by_hour", account)
        assert set(by_hour) == {move.at.hour for move in moves}
        assert sum(by_hour.values()) == sum(cents)
    recent = reader.operator_state("ledger", "recent")
    assert all(recent)
    assert sorted(n for part in recent for n in part) == [
        move.cents for move in recipe_layouts.GIVEN
    ]
    assert reader.manifest.operators["in_order"].rows["_waiting"]
    assert reader.manifest.operators["ledger"].rows["_timers"] == 38


def test_a_savepoint_with_bases_has_the_state_of_its_checkpoint() -> None:
    saved = LAYOUTS / "savepoints/s"
    assert b'"format":3,' in (saved / "savepoint.json").read_bytes()
    assert compare(source_of(str(LAYOUTS)), source_of(str(saved))).is_same


@pytest.mark.parametrize(
    ("backend", "parallelism"),
    [("memory", 3), ("rocksdb", 3), ("memory", 1), ("rocksdb", 5)] if SOAK else [("rocksdb", 5)],
)
def test_a_checkpoint_with_bases_and_slices_continues_with_the_same_results(
    tmp_path: Path, backend: str, parallelism: int
) -> None:
    stored, anew = copied("layouts", tmp_path), tmp_path / "anew"
    moves = [*recipe_layouts.GIVEN, *recipe_layouts.MORE]
    given: dict[str, Any] = {"parallelism": parallelism, "backend": backend}
    cli_verify.verify_checkpoint(str(stored), all_rows=True)  # exits with 0, or this would raise
    for end in recipe_layouts.ENDS:
        recipe_layouts.run(anew, recipe_layouts.GIVEN[:end], parallelism=2)
    outputs = recipe_layouts.run(stored, moves, bases=recipe_layouts.BASES, **given)
    expected = recipe_layouts.run(anew, moves)
    for sink, told in outputs.items():
        assert told
        assert sorted(told) == sorted(expected[sink])
    found = compare(source_of(str(stored)), source_of(str(anew)))
    assert [state.state for state in found.states if not state.is_same] == ["recent"]
    readers = [CheckpointReader(place) for place in (stored, anew)]
    lists = [reader.operator_state("ledger", "recent") for reader in readers]  # in any shards
    assert len({tuple(sorted(n for part in parts for n in part)) for parts in lists}) == 1
    assert CheckpointReader(stored).manifest.parallelism == parallelism
    cli_verify.verify_checkpoint(str(stored), all_rows=True)


# -------------------------------------------------- windows, aggregates, joins, key-value stores

OPERATORS = STORED / "operators"


def test_the_states_of_declared_operators_read() -> None:
    assert b'"format":3,' in (OPERATORS / "job.json").read_bytes()
    records = recipe_operators.given(recipe_operators.READ)
    cents: Counter[str] = Counter()
    times: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for order in records["orders"]:
        cents[order.customer] += order.cents
        times[order.customer][f"{order.at:%Y-%m-%dT%H:%M:%SZ}"] = order.cents
    reader = CheckpointReader(OPERATORS)
    for customer in times:
        assert reader.get("counts", "value", customer) == cents[customer]
        assert reader.get("by_time", "values", customer) == times[customer]
    table = sk.read(str(OPERATORS), "counts", "value").read_all().to_pylist()
    assert {row["key"]: row["value"] for row in table} == cents
    saved = source_of(str(OPERATORS / "savepoints/s"))
    assert compare(source_of(str(OPERATORS)), saved).is_same


@pytest.mark.parametrize(
    ("backend", "parallelism", "saved"),
    [("memory", 3, False), ("rocksdb", 1, False), ("rocksdb", 3, True)],
)
def test_declared_operators_continue_with_the_same_results(
    tmp_path: Path, backend: str, parallelism: int, saved: bool
) -> None:
    stored, anew = copied("operators", tmp_path), tmp_path / "anew"
    options: dict[str, Any] = {"parallelism": parallelism, "backend": backend}
    if saved:
        options["from_savepoint"], stored = stored / "savepoints/s", tmp_path / "new"
    recipe_operators.make(anew)
    outputs = recipe_operators.run(stored, recipe_operators.WHOLE, **options)
    expected = recipe_operators.run(anew, recipe_operators.WHOLE)
    assert {*outputs} == {output.name for output in recipe_operators.build_job().plan.sinks}
    for sink, told in outputs.items():
        assert told, sink
        assert sorted(map(repr, told)) == sorted(map(repr, expected[sink])), sink
    assert compare(source_of(str(stored)), source_of(str(anew))).is_same
    cli_verify.verify_checkpoint(str(stored), all_rows=True)


# ------------------------------------------------------------------------------- other versions


def of_format(sealed: Sealed, version: int) -> bytes:
    """The file as another version would write it, with a field that this one does not know."""
    body = sealed.to_bytes().rpartition(b',"checksum":"')[0]
    body = body.replace(b'{"format":%d,' % FORMAT, b'{"format":%d,"novelty":[1],' % version, 1)
    return body + b',"checksum":"%s"}' % checksum_of(body).encode()


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        (PAGED_FORMAT + 1, "upgrade statekit"),
        (2, "no released statekit reads it"),
        (1, "no released"),
    ],
)
@pytest.mark.parametrize("kind", [JobFile, EpochManifest, SavepointFile])
def test_files_of_another_format_version_are_refused(
    tmp_path: Path, kind: type[Sealed], version: int, advice: str
) -> None:
    stored = copied("all-kinds", tmp_path)
    repository = Repository(stored)
    last = repository.manifest(7)
    place = {
        JobFile: stored / last.job_file.path,
        EpochManifest: stored / epoch_path(7),
        SavepointFile: stored / "savepoints/s/savepoint.json",
    }[kind]
    place.write_bytes(of_format(kind.from_bytes(place.read_bytes(), "it"), version))
    newest = PAGED_FORMAT if kind is EpochManifest else FORMAT
    told = f"{place.name} has format version {version}, and this statekit reads {newest}: {advice}"
    refused: list[Callable[[], object]] = [lambda: Savepoint.at(stored / "savepoints/s")]
    if kind is not SavepointFile:
        refused = [
            lambda: CheckpointReader(stored),
            lambda: gone_on(stored, None),
            lambda: Migration(recipe_all_kinds.build_job(), stored),
        ]
    for start in refused:
        with pytest.raises(RestoreError, match=told):
            start()
