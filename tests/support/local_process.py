"""The counting job on RocksDB to the end of its input, in a process that tests kill.

The same coordinator, shards, working copies and repository as on Spark.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Connection
from pathlib import Path

from statekit.backend import mutation
from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies
from tests.support.effort import SOAK
from tests.support.offsets import records_read
from tests.support.spark_job import Counted, counting_job, events

EPOCHS = 60 if SOAK else 20
EPOCH_SIZE = 40


def write_epoch(directory: Path, records: list[Counted], epoch: int) -> None:
    """A sink that is idempotent by epoch, as the Parquet sink is."""
    draft = directory / f".{epoch:05d}.{os.getpid()}"
    draft.write_text(json.dumps(records))
    draft.rename(directory / f"{epoch:05d}.json")


def run(home: Path, seed: int, parallelism: int, ready: Connection) -> None:
    """Run the job to its end.

    Parameters:
        ready: is sent something when the first epoch begins.
    """
    # Epochs that spill several batches, which RocksDB flushes while they run.
    mutation.BATCH_BYTES_MAX = 500
    options = RocksOptions(write_buffer_bytes=64 * 1024)
    out = home / "out"
    out.mkdir(parents=True, exist_ok=True)
    runner = LocalRunner(
        counting_job().plan,
        Repository(home / "checkpoint"),
        DiskCopies(home / "working", options),
        RunOptions(parallelism=parallelism),
    )
    given = events(seed, EPOCHS * EPOCH_SIZE)
    start = records_read(runner.coordinator.last, "events")
    ready.send("ready")
    for begin in range(start, len(given), EPOCH_SIZE):
        end = begin + EPOCH_SIZE
        runner.epoch(
            {"events": given[begin:end]},
            outputs={"counted": lambda records, epoch: write_epoch(out, records, epoch)},
            offsets={"events": end},
        )
