"""RocksDB by hand: what a loop over events costs that keeps each key's row in rocksdict itself.

Rows are read one by one, and written in a batch for each so many events; what was written since is
read out of a dict. No records, no types, no outputs but a tuple, and nothing to go back to.
Arguments: the events, `count` or `entries`, a scratch directory, and the events of a batch.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import rocksdict

from tests.bench.peers.jobs.handshake import bytes_in, columns, done, ready

ROW = struct.Struct("<qq")
KEYS = {"count": struct.Struct(">q"), "entries": struct.Struct(">qq")}


def main(events: Path, workload: str, home: Path, per_batch: str) -> None:
    every = int(per_batch)
    names = ("key",) if workload == "count" else ("key", "entry")
    *parts, values = columns(events, *names, "value")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    database = rocksdict.Rdict(str(home / "db"), options)
    ready()
    keys, check = list(map(KEYS[workload].pack, *parts)), 0
    for start in range(0, len(keys), every):
        changed: dict[bytes, bytes] = {}
        part = slice(start, start + every)
        for key, value in zip(keys[part], values[part], strict=True):
            row = changed.get(key) or database.get(key)
            number, total = ROW.unpack(row) if row else (0, 0)
            total += value
            changed[key] = ROW.pack(number + 1, total)
            check += total
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, row in changed.items():
            batch.put(key, row)
        database.write(batch)
    database.flush()
    done(check=check, of="events", written=bytes_in(home / "db"))
    database.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
