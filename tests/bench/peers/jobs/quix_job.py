"""Quix Streams: its RocksDB store, as `sdf.apply(…, stateful=True)` gives it to a function.

Without Kafka, so without a changelog topic and without sending anything: the store's share alone.
Arguments: the events, `count` or `entries`, a scratch directory, and the events of a transaction.
"""

from __future__ import annotations

import sys
from pathlib import Path

from quixstreams.state.rocksdb import RocksDBStore

from tests.bench.peers.jobs.handshake import bytes_in, columns, done, ready


def main(events: Path, workload: str, home: Path, per_transaction: str) -> None:
    every = int(per_transaction)
    (keys,) = columns(events, "key")
    (values,) = columns(events, "value")
    names = ["sum"] * len(keys)
    if workload == "entries":
        names = [str(entry) for entry in columns(events, "entry")[0]]
    prefixes = [str(key).encode() for key in keys]
    store = RocksDBStore("default", "topic", str(home / "store"))
    partition = store.assign_partition(0)
    ready()
    check = 0
    for start in range(0, len(keys), every):
        transaction = partition.begin()
        part = slice(start, start + every)
        for prefix, name, value in zip(prefixes[part], names[part], values[part], strict=True):
            state = transaction.as_state(prefix=prefix)
            if workload == "entries":
                total = state.get(name, 0) + value
                state.set(name, total)
            else:
                number, total = state.get(name) or (0, 0)
                total += value
                state.set(name, [number + 1, total])
            check += total
        transaction.prepare(processed_offsets={"topic": start + every})
        transaction.flush()
    done(check=check, of="events", written=bytes_in(home / "store"))
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
