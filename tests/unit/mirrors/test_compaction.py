"""Small files of mirrored tables are rewritten as large ones, and no row is lost or doubled."""

from __future__ import annotations

import datetime as dt
import json
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

import statekit as sk
from statekit.clock import unique_id
from statekit.sinks.lake import lake_commits
from statekit.sinks.lake.delta_log import DeltaLog
from statekit.testing import Harness
from tests.support.killable_processes import die_at, exit_code
from tests.support.lake_tables import IcebergTable
from tests.support.mirrors import Sale, delta_rows, sales, shown, state_rows
from tests.support.small_disk import small_disk

STEPS = 7


class Kept(NamedTuple):
    """Values of many types."""

    flag: bool
    part: float
    data: bytes
    day: dt.date
    moment: dt.datetime
    price: Decimal
    names: list[str]
    counts: dict[str, int]
    maybe: int | None


@sk.process(key="user")
def stores_all(sale: Sale, kept: sk.ValueState[Kept]) -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=sale.cents)
    price, names = Decimal(sale.cents).scaleb(-2), [sale.user] * sale.cents
    maybe = sale.cents if sale.cents % 2 else None
    kept.update(
        Kept(sale.cents > 2, 0.5, b"\0", moment.date(), moment, price, names, {sale.user: 1}, maybe)
    )


def follow(home: Path, sink: Any, name: str, **options: Any) -> None:
    with sk.mirror(
        home / "job", "sales.by_cents", sink, mode="changes", name=name, **options
    ) as mirror:
        mirror.catch_up()


def log_of(rows: pa.Table) -> list[str]:
    """All changes but the first one, which clears the table."""
    changes = rows.filter(pc.field("op") != "clear")
    return sorted(map(str, changes.select(["op", "user", "map_key", "value"]).to_pylist()))


def steps(home: Path, sink: Any, **options: Any) -> None:
    """Take steps one by one: of each, the table has a file."""
    job = Harness(sales, checkpoint=home / "job", parallelism=2)
    with sk.mirror(
        home / "job", "sales.by_cents", sink, mode="changes", name="one", **options
    ) as mirror:
        for number in range(STEPS):
            job.send(Sale("ada", 1 + number), Sale("bob", number))
            mirror.catch_up()


def without_compaction(home: Path) -> list[str]:
    """The log of a mirror that compacts nothing. Each row is written once, so that its snapshot
    has the same changes.
    """
    path = home / "expected"
    follow(home, sk.sinks.delta(path), "expected", compact=0)
    return log_of(delta_rows(path))


def test_files_of_a_delta_log_are_compacted(tmp_path: Path) -> None:
    steps(tmp_path, sk.sinks.delta(tmp_path / "log"), compact=3)
    table = DeltaTable(str(tmp_path / "log"))
    assert len(table.file_uris()) < 5
    assert any("compacted-" in file for file in table.file_uris())
    assert log_of(delta_rows(tmp_path / "log")) == without_compaction(tmp_path)


def actions(home: Path) -> list[list[dict[str, Any]]]:
    """The actions that change files, by commit."""
    logs = sorted((home / "_delta_log").glob("*.json"))
    commits = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    return [
        [
            each[kind] | {"kind": kind}
            for each in commit
            for kind in ("add", "remove")
            if kind in each
        ]
        for commit in commits
    ]


def test_a_compaction_of_delta_rewrites_small_files_alone_and_is_no_change_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_commits, "SMALL_BYTES", 20_000)
    job = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    job.send(*(Sale(f"user {number * 7919}", number) for number in range(1, 4_001)))
    follow(tmp_path, sk.sinks.delta(tmp_path / "log"), "one", compact=0)
    steps(tmp_path, sk.sinks.delta(tmp_path / "log"), compact=3)
    compactions = [
        own
        for own in actions(tmp_path / "log")
        if any("compacted-" in action["path"] for action in own if action["kind"] == "add")
    ]
    assert compactions
    added = [each for own in actions(tmp_path / "log") for each in own if each["kind"] == "add"]
    assert any(each["size"] > 20_000 for each in added)
    for own in compactions:
        assert not any(action["dataChange"] for action in own)
        assert all(action["size"] < 20_000 for action in own if action["kind"] == "remove")
    assert log_of(delta_rows(tmp_path / "log")) == without_compaction(tmp_path)


def test_tables_with_rows_of_all_types_are_compacted(tmp_path: Path) -> None:
    job = Harness(stores_all, checkpoint=tmp_path / "job", parallelism=2)
    sink = sk.sinks.delta(tmp_path / "table")
    for number in range(6):
        job.send(*(Sale(f"u{number}-{user}", number) for user in range(3)))
        with sk.mirror(tmp_path / "job", "stores_all.kept", sink, compact=2) as mirror:
            mirror.catch_up()
    assert any("compacted-" in file for file in DeltaTable(str(tmp_path / "table")).file_uris())
    expected = state_rows(tmp_path / "job", "stores_all", "kept", None)
    assert shown(delta_rows(tmp_path / "table"), expected) == shown(expected, expected)


def test_a_compaction_goes_on_with_the_next_step_if_it_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(tmp_path, sk.sinks.delta(tmp_path / "log"), compact=0)
    monkeypatch.setattr(lake_commits, "_COMPACTED_FILES_MAX", 3)
    job = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    job.send(Sale("eve", 1))
    before = len(DeltaTable(str(tmp_path / "log")).file_uris())
    with sk.mirror(
        tmp_path / "job",
        "sales.by_cents",
        sk.sinks.delta(tmp_path / "log"),
        mode="changes",
        name="one",
        compact=3,
    ) as mirror:
        for number in range(3):
            mirror.catch_up()
            job.send(Sale("eve", 2 + number))
    removed = [
        sum(action["kind"] == "remove" for action in own) for own in actions(tmp_path / "log")
    ]
    assert max(removed) == 3
    assert sum(removed) > 6
    assert len(DeltaTable(str(tmp_path / "log")).file_uris()) < before - 2


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_without_space_for_a_compaction_the_mirror_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lake: str
) -> None:
    job = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    with small_disk(tmp_path / "disk") as disk:
        table = IcebergTable(str(disk.path / "warehouse"))
        target: Any = sk.sinks.delta(disk.path / "log") if lake == "delta" else table.sink()
        with sk.mirror(
            tmp_path / "job", "sales.by_cents", target, mode="changes", name="one", compact=3
        ) as mirror:
            for _ in range(5):
                # There is space for the rows of one step, and not for those of three once more.
                job.send(*(Sale(unique_id(), 1 + user) for user in range(2000)))
                disk.fill(leave=300_000)
                mirror.catch_up()
                disk.make_space()
            assert "the files for sales.by_cents are not compacted: " in caplog.text
            assert "No space left on device" in caplog.text
            assert not list(disk.path.rglob("*compacted-*.parquet"))
            for number in range(4):
                job.send(Sale("ada", 1 + number))
                mirror.catch_up()
        rows = delta_rows(disk.path / "log") if lake == "delta" else table.read()
        assert log_of(rows) == without_compaction(tmp_path)
        assert len(list(disk.path.rglob("*compacted-*.parquet"))) > 0


@given(
    st.lists(st.integers(300, 40 << 20), max_size=300), st.integers(2, 8), st.integers(0, 1 << 50)
)
def test_the_work_of_compactions_depends_on_what_was_written_and_not_on_the_table(
    written: list[int], files: int, rest: int
) -> None:
    """The model of a table: sizes of its files, of which a compaction makes one."""
    sizes, rewritten = [rest], 0
    for size in written:
        sizes.append(size)
        places = lake_commits.files_to_compact(sizes, files)
        if not places:
            continue
        chosen = [sizes[place] for place in places]
        assert len(chosen) >= files
        assert max(chosen) < lake_commits.SMALL_BYTES
        assert sum(chosen) <= 128 << 20
        assert places == sorted(set(places))
        sizes = [own for place, own in enumerate(sizes) if place not in set(places)]
        sizes.append(sum(chosen))
        rewritten += sum(chosen)
        assert len([own for own in sizes if own < lake_commits.SMALL_BYTES]) < files + 17
    small = [size for size in [rest, *written] if size < lake_commits.SMALL_BYTES]
    assert rewritten <= 17 * sum(small)


def test_files_of_an_iceberg_log_are_compacted(tmp_path: Path) -> None:
    table = IcebergTable(str(tmp_path / "warehouse"))
    steps(tmp_path, table.sink(), compact=3)
    assert len(list((tmp_path / "warehouse").rglob("*compacted-*.parquet"))) > 0
    assert log_of(table.read()) == without_compaction(tmp_path)


def test_rows_of_compacted_files_of_iceberg_are_merged_with_those_of_others(tmp_path: Path) -> None:
    job = Harness(sales, checkpoint=tmp_path / "job", parallelism=2)
    table = IcebergTable(str(tmp_path / "warehouse"))
    sink: Any = table.sink()
    with sk.mirror(tmp_path / "job", "sales.by_cents", sink, compact=3) as mirror:
        for number in range(7):
            job.send(Sale(f"u{8 - number}", 1 + number), Sale(f"v{8 - number}", 1 + number))
            mirror.catch_up()
        # These rows are in the compacted file and in later ones, beside others that stay.
        job.send(*(Sale(f"u{8 - number}", 0) for number in range(7)))
        mirror.catch_up()
    assert len(list((tmp_path / "warehouse").rglob("*compacted-*.parquet"))) > 0
    expected = state_rows(tmp_path / "job", "sales", "by_cents", None)
    assert shown(table.read(), expected) == shown(expected, expected)


def follow_until_killed(home: Path, before: bool) -> None:
    die_at(DeltaLog, "compact", before=before, call=2)
    steps(home, sk.sinks.delta(home / "log"), compact=3)


@pytest.mark.parametrize("before", [True, False])
def test_a_mirror_that_is_killed_at_a_compaction_continues(tmp_path: Path, before: bool) -> None:
    assert exit_code(follow_until_killed, tmp_path, before) == -signal.SIGKILL
    Harness(sales, checkpoint=tmp_path / "job").send(Sale("eve", 3))
    follow(tmp_path, sk.sinks.delta(tmp_path / "log"), "one", compact=3)
    assert log_of(delta_rows(tmp_path / "log")) == without_compaction(tmp_path)
