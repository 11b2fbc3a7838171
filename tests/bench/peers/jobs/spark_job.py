"""One engine of `tests.bench.on_spark` in a Spark session of its own, outputs going nowhere.

Arguments: the events, `count`, a scratch directory, the events of a batch, and an engine's class.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.bench import on_spark
from tests.bench.peers.jobs.handshake import bytes_in, done, ready
from tests.bench.workload import events as drawn_events

WARM, WARM_EVENTS = 2, 10_000


def main(events: Path, home: Path, per_batch: int, engine: str) -> None:
    drawn = {name: np.fromfile(events / f"{name}.i64", np.int64) for name in ("key", "value")}
    table = pa.table({**drawn, "ts": np.arange(len(drawn["key"]))})
    spark = on_spark.session()
    running = getattr(on_spark, engine)(spark, home)
    for seed in range(WARM):  # the JVM compiles what is hot
        running.feed(drawn_events(WARM_EVENTS, seed=seed))
    ready()
    for start in range(0, len(table), per_batch):
        running.feed(table.slice(start, per_batch))
    done(check=0, of="nothing", written=bytes_in(home / "checkpoint", home / "working"))
    running.query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
