"""`statekit scan`, `export` and `top` over a stored checkpoint with rows of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

import statekit as sk
from tests.support.invoked import invoked
from tests.support.places import STORED

CHECKPOINT = STORED / "all-kinds"
STATES = ["account", "last", "cents", "by_method", "lately", "rates", "count", "recent", "_timers"]


def printed(*words: object, code: int = 0) -> str:
    done = invoked(*words)
    if isinstance(done.exception, sk.StatekitError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.mark.parametrize("state", STATES)
def test_scan_prints_every_kind_of_state_in_80_columns(state: str) -> None:
    shown = printed("scan", CHECKPOINT, "ledger", state, "--limit", 3)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    columns = sk.read(CHECKPOINT, "ledger", state).schema.names
    assert all(name in lines[1] for name in columns)
    assert f"ledger.{state} in epoch 7" in lines[-1]


def test_scan_says_if_more_rows_follow() -> None:
    assert "more rows follow" in printed("scan", CHECKPOINT, "ledger", "cents", "--limit", 3)
    assert "more rows follow" not in printed("scan", CHECKPOINT, "ledger", "count", "--limit", 3)


def test_scan_prints_all_rows_as_lines_of_json() -> None:
    lines = printed("scan", CHECKPOINT, "ledger", "cents", "--json").splitlines()
    rows = sk.read(CHECKPOINT, "ledger", "cents").read_all().to_pylist()
    assert [json.loads(line) for line in lines] == rows
    own = printed(
        "scan", CHECKPOINT, "ledger", "cents", "--json", "--key", "acc-0", "--column", "value"
    )
    assert [json.loads(line) for line in own.splitlines()] == [
        {"value": row["value"]} for row in rows if row["account"] == "acc-0"
    ]


def days(*words: str) -> list[tuple[str, tuple[str, int]]]:
    """The keys and map keys that `scan` prints."""
    lines = printed("scan", "checkpoint", "kv", "values", "--json", *words).splitlines()
    return [(row["key"], tuple(row["map_key"])) for row in map(json.loads, lines)]


def test_scan_and_export_read_the_keys_or_the_map_keys_of_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = sk.Job("rooms")
    store = job.add(sk.KVStore("kv", key=str, sort=tuple[str, int], value=int))
    readings = job.source("readings", Reading)
    store.put(readings, key="room", sort=lambda of: (of.kind, of.day), value="day")
    rooms = ("hall", "hallway", "attic")
    given = [Reading(room, kind, day) for room in rooms for kind in "ab" for day in (1, 2)]
    job.run({"readings": given}, checkpoint="checkpoint", parallelism=2)
    halls = {("hall", (kind, day)) for kind in "ab" for day in (1, 2)}
    ways = {("hallway", place) for _, place in halls}
    assert set(days("--prefix", "hall")) == halls | ways
    assert set(days("--prefix", "hall", "--end", "hallw")) == halls
    assert set(days("--start", "hallo")) == ways
    of_hall = ("--key", "hall")
    assert [place for _, place in days(*of_hall, "--prefix", '["b"]')] == [("b", 1), ("b", 2)]
    between = ("--start", '["a", 2]', "--end", '["b", 2]')
    assert [place for _, place in days(*of_hall, *between)] == [("a", 2), ("b", 1)]
    into = ("--to", "csv", "--into", "rows.csv", "--prefix", "attic")
    assert "4 rows" in printed("export", "checkpoint", "kv", "values", *into)
    with pytest.raises(sk.StateTypeError, match="not a prefix of keys"):
        days(*of_hall, "--prefix", "b")
    with pytest.raises(sk.QueryError, match="leave the prefix, the start and the end out"):
        printed("scan", CHECKPOINT, "in_order", "_waiting", "--prefix", "a")
    with pytest.raises(sk.QueryError, match="no map keys: it is a value state"):
        printed("scan", CHECKPOINT, "ledger", "last", "--key", "acc-0", "--prefix", "a")


class Reading(NamedTuple):
    room: str
    kind: str
    day: int


def test_scan_shows_json_text_as_json() -> None:
    line = printed("scan", CHECKPOINT, "in_order", "_waiting", "--json", "--limit", 1)
    assert isinstance(json.loads(line)["value"], dict)


def test_export_writes_a_file_and_names_the_epoch(tmp_path: Path) -> None:
    target = tmp_path / "cents.parquet"
    words = ["export", CHECKPOINT, "ledger", "cents", "--to", "parquet", "--into", target]
    said = printed(*words, "--epoch", 2)
    assert "ledger.cents in epoch 2" in said
    expected = sk.read(CHECKPOINT, "ledger", "cents", epoch=2).read_all()
    assert pq.read_table(target).equals(expected)
    with pytest.raises(sk.QueryError, match="--overwrite"):
        printed(*words)
    printed(*words, "--overwrite")
    assert pq.read_table(target).num_rows > expected.num_rows


def test_top_ranks_keys_of_all_operators_or_of_one_state() -> None:
    everything = printed("top", CHECKPOINT)
    assert "keys of ledger" in everything
    assert "keys of in_order" in everything
    assert max(map(len, everything.splitlines())) <= 80
    data = json.loads(printed("top", CHECKPOINT, "ledger", "cents", "--limit", 2, "--json"))
    first, second = data["ledger"]["keys"]
    assert first["bytes"] >= second["bytes"]
    assert first["state"] == "cents"
    written = json.loads(printed("top", CHECKPOINT, "ledger", "--by", "writes", "--json"))
    assert written["ledger"]["epochs"] == [0, 7]
    assert "writes" in printed("top", CHECKPOINT, "ledger", "--by", "writes")
