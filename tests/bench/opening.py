"""How long it takes to open a working copy, and a database with the options of RocksDB itself."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import rocksdict

from statekit.backend.mutation import Batch
from statekit.backend.rocksdb import RocksBackend
from statekit.clock import stopwatch_s
from tests.bench.report import Arm, Row

STATES = ("first", "second", "third", "fourth", "fifth")
TABLES, ROWS, ROUNDS = 4, 1_000, 61
_DURABLE = "all rows, in tables on the local disk"


def opened() -> list[Row]:
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = Path(home) / "ours", Path(home) / "theirs"
        _fill(ours)
        _fill(theirs)
        taken = [(_seconds(_statekit, ours), _seconds(_rocksdb, theirs)) for _ in range(ROUNDS)]
    of_ours, of_theirs = zip(*taken[1:], strict=True)
    arms = (
        Arm("statekit", statistics.median(of_ours), _DURABLE, turns=of_ours),
        Arm("RocksDB, its own options", statistics.median(of_theirs), _DURABLE, turns=of_theirs),
    )
    what = f"a working copy of {len(STATES)} states with {TABLES} tables each is opened"
    told = f"{arms[0].seconds * 1e3:.1f} ms, RocksDB {arms[1].seconds * 1e3:.1f} ms"
    return [Row(what, told, "as RocksDB", arms)]


def _fill(path: Path) -> None:
    for table in range(TABLES):
        backend = RocksBackend(path, STATES)
        batch = Batch()
        for state in STATES:
            keys = [b"%d/%d" % (number, table) for number in range(ROWS)]
            batch.put_all(state, keys, keys)
        backend.write(batch)
        backend.close()  # writes a table of each state


def _seconds(opens: Callable[[Path], Callable[[], None]], path: Path) -> float:
    """How long it takes until a database is open. Closing it does not count."""
    began_s = stopwatch_s()
    close = opens(path)
    seconds = stopwatch_s() - began_s
    close()
    return seconds


def _statekit(path: Path) -> Callable[[], None]:
    return RocksBackend(path, STATES, create=False).close


def _rocksdb(path: Path) -> Callable[[], None]:
    options = rocksdict.Options(raw_mode=True)
    families = {f"state.{name}": options for name in STATES}
    return rocksdict.Rdict(str(path), options, column_families=families).close


BENCHMARKS = {"opening": opened}
