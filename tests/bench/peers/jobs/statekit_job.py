"""One shard of ours, without Spark: RocksDB, durable change files and a commit for each epoch.

Arguments: the events, `count` or `entries`, a scratch directory, the events of an epoch, and
`function` or `aggregates`. Bringing records of a key group and key together is Spark's work on a
cluster; here it is done in Arrow, and counts.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import statekit as sk
from statekit.functions.process import Process
from statekit.job.per_key.aggregation import aggregation
from statekit.records.record_type import RecordType
from statekit.runtime.rare_collection import RARE_COLLECTION
from statekit.working_copy.uploader import uploader
from tests.bench.peers.jobs.handshake import bytes_in, done, ready
from tests.bench.shard_alone import Shard
from tests.bench.workload import Entry, Event, map_entry, running_count, sorted_batches

RECORDS: dict[str, type[msgspec.Struct]] = {"count": Event, "entries": Entry}
FUNCTIONS: dict[str, Process[Any, Any, Any]] = {"count": running_count, "entries": map_entry}
KEYS = {"count": ("key",), "entries": ("key", "entry")}


def aggregates(workload: str) -> Process[Any, Any, Any]:
    records = RecordType.of(RECORDS[workload], where="bench")
    kept = {"count": sk.Count(), "total": sk.Sum("value")}
    return aggregation(records, key=KEYS[workload], aggregates=kept)


def main(events: Path, workload: str, home: Path, per_epoch: str, by: str) -> None:
    gc.set_threshold(*RARE_COLLECTION)  # as in a worker
    record = RECORDS[workload]
    names = record.__struct_fields__
    table = pa.table({name: np.fromfile(events / f"{name}.i64", np.int64) for name in names})
    declared = FUNCTIONS[workload] if by == "function" else aggregates(workload)
    shard = Shard(declared, record, home)
    put_out: list[pa.RecordBatch] = []
    ready()
    for start in range(0, len(table), int(per_epoch)):
        part = table.slice(start, int(per_epoch))
        if declared.traits.combiner is not None:
            part = declared.traits.combiner.rows(part)
        shard.epoch(sorted_batches(part, declared.key), put_out.append)
    uploader().drain()
    check = sums_of_events(put_out) if by == "function" else sums_of_keys(put_out)
    done(check=check, of="events" if by == "function" else "keys", written=bytes_in(home))


def sums_of_events(put_out: list[pa.RecordBatch]) -> int:
    found: int = sum(pc.sum(batch.column("total")).as_py() or 0 for batch in put_out)
    return found


def sums_of_keys(put_out: list[pa.RecordBatch]) -> int:
    """The last of each key."""
    table = pa.Table.from_batches(put_out)
    *key, _, total = table.column_names
    found: int = pc.sum(table.group_by(key).aggregate([(total, "max")]).column(-1)).as_py()
    return found  # no value is less than 0: the last sum is the largest


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5])
