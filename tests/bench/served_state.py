"""A job whose state is served while it changes:
`python -m tests.bench.served_state CHECKPOINT EPOCHS_PER_S CHANGES_PER_S`.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import NamedTuple

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.working_copy.copies import DiskCopies

KEYS = 100_000
CHANGES_PER_S = 10_000
EPOCHS_PER_S = 5


class Change(NamedTuple):
    key: int


class Value(NamedTuple):
    number: int
    text: str


@sk.process(key="key")
def store(change: Change, value: sk.ValueState[Value]) -> None:
    held = value.get()
    value.update(Value(0 if held is None else held.number + 1, f"text {change.key}"))


def store_job() -> sk.Job:
    job = sk.Job("store")
    job.source("changes", Change).process(store)
    return job


def fill(home: Path) -> None:
    """Make a checkpoint with all keys."""
    everything = map(Change, range(KEYS))
    store_job().run({"changes": everything}, checkpoint=home, epoch_size=KEYS // 2, drain=False)


def change_until_killed(home: Path, epochs_per_s: float, changes_per_s: int) -> None:
    """Change keys, so many a second."""
    copies = DiskCopies(home.with_name("writer"))
    runner = LocalRunner(store_job().plan, Repository(home), copies, RunOptions(parallelism=1))
    keys = itertools.cycle(range(0, KEYS, 7))
    for number in itertools.count(1):
        until = time.monotonic() + 1 / epochs_per_s
        some = itertools.islice(keys, int(changes_per_s / epochs_per_s))
        runner.epoch({"changes": list(map(Change, some))})
        if number == 1:
            print("changing", flush=True)
        time.sleep(max(0.0, until - time.monotonic()))


if __name__ == "__main__":
    change_until_killed(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
