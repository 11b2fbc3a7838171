"""Tables of states against a scan of the same rows in RocksDB, and savepoints of them.

Three states of one operator: a scalar per int key, map entries by str key, a struct per str key.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import msgspec

import statekit as sk
from statekit.backend.change_file import Changes
from statekit.backend.interface import Backend
from statekit.backend.mutation import Batch
from statekit.checkpoint.manifest import ShardReport, ShardState
from statekit.checkpoint.repository import Repository, group_bounds
from statekit.checkpoint.shard_contents import ReplayCost
from statekit.clock import unique_id
from statekit.codec.key_codec import key_codec
from statekit.job.options import RunOptions
from statekit.keygroup import key_group, pack_group
from statekit.maintenance.savepoint.write import write_savepoint
from statekit.query.rows.reader import CheckpointReader
from statekit.query.tables.packed_bytes import row_batches
from statekit.query.tables.row_parts import Family
from statekit.query.tables.table import table_for_reading
from statekit.runtime.coordinator import Coordinator
from statekit.working_copy.unpacked_shard import ShardRows
from tests.bench.report import Arm, Row, statekit

ROWS = int(os.environ.get("STATEKIT_BENCH_ROWS", "1_000_000")) // 2
GROUPS = 128
RUNS = 3
_ENTRIES = 10
_BOUND = "a scan in RocksDB of the same rows"


@dataclass
class Leg:
    origin: str
    number: int
    delay: float
    landed: bool


@dataclass
class Seen:
    key: str
    leg: Leg


@sk.process(key="key")
def keep(
    record: Seen,
    number: sk.ValueState[int],
    words: sk.MapState[str, float],
    leg: sk.ValueState[Leg],
) -> None:
    leg.update(record.leg)


STATES = {
    "number": (f"{ROWS:,} ints by str key", 500_000),
    "words": (f"{ROWS:,} entries of maps, str → float", 500_000),
    "leg": (f"{ROWS:,} structs of 4 fields by str key", 200_000),
}


def _job() -> sk.Job:
    made = sk.Job("keep", key_groups=GROUPS)
    made.source("seen", Seen).process(keep)
    return made


def _rows() -> dict[str, list[tuple[bytes, bytes]]]:
    """The rows of each state, in the order of their row keys."""
    encode, key, subkey = msgspec.msgpack.encode, key_codec(str).encode, key_codec(str).encode
    names = [f"N{number:07d}" for number in range(ROWS)]
    prefixes = [pack_group(key_group(name, GROUPS)) + key(name) for name in names]
    legs = (Leg("JFK" if n % 3 else "LGA", n, n / 7, n % 2 == 0) for n in range(ROWS))
    rows = {
        "number": [(prefix, encode(n * 7)) for n, prefix in enumerate(prefixes)],
        "words": [
            (prefixes[n // _ENTRIES] + subkey(f"word-{n % _ENTRIES}"), encode(n / 3))
            for n in range(ROWS)
        ],
        "leg": [(prefix, encode(asdict(leg))) for prefix, leg in zip(prefixes, legs, strict=True)],
    }
    return {name: sorted(found) for name, found in rows.items()}


def _build(repository: Repository) -> None:
    """Commit one epoch with all rows in one shard."""
    coordinator = Coordinator.open(_job().plan, repository, RunOptions(parallelism=1))
    coordinator.begin()
    rows, changes = _rows(), Changes(tuple(STATES))
    for name, found in rows.items():
        for start in range(0, ROWS, 10_000):
            keys, values = zip(*found[start : start + 10_000], strict=True)
            batch = Batch()
            batch.put_all(name, keys, values)
            changes.append(batch)
    finished = changes.finish()
    assert finished is not None
    ref = repository.put_changes("keep", *finished)
    shard = ShardState(
        first_group=0,
        last_group=GROUPS - 1,
        attempt=unique_id(),
        changed=0,
        files=(ref,),
        is_complete=True,
        chain=ReplayCost().followed_by(ref, 0),
        rows=dict.fromkeys(rows, ROWS),
        bytes={name: sum(len(k) + len(v) for k, v in found) for name, found in rows.items()},
    )
    coordinator.commit([ShardReport(operator="keep", shard=shard)])


def _seconds(run: Callable[[], object]) -> float:
    """The processor seconds of a call: one core, whatever else runs."""
    begun = time.thread_time()
    run()
    return time.thread_time() - begun


def _scan(backend: Backend, state: str) -> None:
    deque(backend.scan(state, *group_bounds(0, GROUPS - 1)), maxlen=0)


def _table(reader: CheckpointReader, backend: Backend, state: str) -> None:
    table = table_for_reading(Family(reader.operator("keep"), state))
    rows = sum(
        table.batch(batch).num_rows
        for batch in row_batches(backend.scan(state, *group_bounds(0, GROUPS - 1)))
    )
    assert rows == ROWS


def _read(repository: Repository, state: str) -> None:
    assert sum(batch.num_rows for batch in sk.read(repository, "keep", state)) == ROWS


def _rates(reader: CheckpointReader) -> Iterator[Row]:
    (shard,) = reader.manifest.operators["keep"].shards
    unpacked = ShardRows(reader.repository, "keep", reader.manifest)
    with unpacked.opened(shard, tuple(STATES)) as backend:
        for state, (what, wanted) in STATES.items():
            _table(reader, backend, state)  # so that no run is the first to read the rows
            turns = [
                (
                    _seconds(partial(_table, reader, backend, state)),
                    _seconds(partial(_scan, backend, state)),
                )
                for _ in range(RUNS)
            ]
            ours, bound = (statistics.median(turn) for turn in zip(*turns, strict=True))
            whole = _seconds(partial(_read, reader.repository, state))
            yield Row(
                f"table of {what}",
                f"{ROWS / ours:,.0f} rows/s per core; scan alone {ROWS / bound:,.0f}; with "
                f"unpacking of change files {ROWS / whole:,.0f}",
                f"≥ {wanted:,}",
                (statekit(ours, ROWS), Arm(_BOUND, bound, "nothing", ROWS)),
                note="the table includes the scan",
            )


def tables() -> list[Row]:
    """Rows per second and core of tables, and of a savepoint."""
    with tempfile.TemporaryDirectory(prefix="statekit-bench-") as directory:
        repository = Repository(Path(directory) / "checkpoint")
        _build(repository)
        reader = CheckpointReader(repository)
        rows = list(_rates(reader))
        saving = _seconds(lambda: write_savepoint(repository, "saved"))
        total = ROWS * len(STATES)
        what = f"savepoint of the same {total:,} rows, with Parquet"
        rows.append(Row(what, f"{total / saving:,.0f} rows/s per core", "> 100,000"))
        return rows
