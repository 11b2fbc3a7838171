"""Processes on RocksDB without Spark, killed with SIGKILL at random points, go on correctly."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statekit.query.rows.reader import CheckpointReader
from tests.support import local_process, timed_process
from tests.support.effort import SOAK
from tests.support.killable_processes import pipe, start
from tests.support.offsets import records_read
from tests.support.spark_job import Counted, Event, by_word, counted, counting_job, events
from tests.support.spark_runs import state_of
from tests.support.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow


def _killed(
    run: Callable[..., object], home: Path, seeds: range, *, within_s: float
) -> Iterator[int]:
    """Kill a process once per seed, which is yielded, and let a last one come to its end."""
    for seed in seeds:
        chosen = random.Random(seed)
        shards = chosen.choice([1, 2, 3, 3, 3])
        ready, sent = pipe()
        process = start(run, home, seeds[0], shards, sent)
        assert ready.poll(PATIENCE_S), "it never began"
        ready.recv()
        time.sleep(chosen.uniform(0.0, within_s))
        process.kill()
        process.join(PATIENCE_S)
        assert process.exitcode in (0, -signal.SIGKILL)
        yield seed
    _, sent = pipe()
    process = start(run, home, seeds[0], 3, sent)
    process.join(PATIENCE_S)
    assert process.exitcode == 0


GROUPS = 70 if SOAK else 7
POINTS_PER_GROUP = 7 if SOAK else 4


@pytest.mark.parametrize(
    "seeds",
    [range(POINTS_PER_GROUP * n, POINTS_PER_GROUP * (n + 1)) for n in range(GROUPS)],
    ids=str,
)
def test_a_process_on_rocksdb_killed_at_random_points(tmp_path: Path, seeds: range) -> None:
    """Each seed is one kill: its delay, and how many shards the next process has."""
    given = events(seeds[0], local_process.EPOCHS * local_process.EPOCH_SIZE)
    out = tmp_path / "out"
    for seed in _killed(local_process.run, tmp_path, seeds, within_s=0.5):
        _check_prefix(tmp_path, given, seed)

    expected, states = counted(given)
    outputs = [Counted(*row) for path in sorted(out.glob("*.json")) for row in _rows(path)]
    assert by_word(outputs) == by_word(expected)
    uninterrupted = counting_job().run(
        {"events": given}, parallelism=3, epoch_size=local_process.EPOCH_SIZE
    )
    assert by_word(uninterrupted.outputs["counted"]) == by_word(outputs)
    for name in ("seen", "numbers", "most"):
        found = state_of(tmp_path / "checkpoint", "count", name, tmp_path / "unpacked")
        assert found == states[name], name


TIMED_GROUPS = 30 if SOAK else 3


@pytest.mark.parametrize(
    "seeds",
    [range(POINTS_PER_GROUP * n, POINTS_PER_GROUP * (n + 1)) for n in range(TIMED_GROUPS)],
    ids=str,
)
def test_no_timer_is_called_twice_or_never_by_a_process_that_is_killed(
    tmp_path: Path, seeds: range
) -> None:
    """Each seed is one kill. By event time all is as if uninterrupted, whatever the parallelism."""
    for _ in _killed(timed_process.run, tmp_path, seeds, within_s=1.0):
        pass

    given = timed_process.given(seeds[0])
    calm = timed_process.timed_job().run(
        {"seen": given}, parallelism=2, epoch_size=timed_process.EPOCH_SIZE
    )
    found = {
        sink: sorted(
            row for path in sorted((tmp_path / sink).glob("*.json")) for row in _rows(path)
        )
        for sink in timed_process.SINKS
    }
    assert found["counted"] == sorted(map(list, calm.outputs["counted"]))
    closed = [row for row in found["rang"] if row[1] == "close"]
    assert closed == sorted(list(rang) for rang in calm.outputs["rang"] if rang.timer == "close")
    rung = sorted(number for row in found["rang"] if row[1] == "wall" for number in row[2])
    assert rung == sorted(
        n for rang in calm.outputs["rang"] if rang.timer == "wall" for n in rang.numbers
    )
    assert len(set(rung)) == len(rung), "none twice"
    _check_watermarks(tmp_path / "checkpoint")


def _check_watermarks(checkpoint: Path) -> None:
    reader = CheckpointReader(checkpoint)
    manifests = [reader.repository.manifest(epoch) for epoch in reader.epochs]
    for name in reader.manifest.operators:
        marks = [manifest.operators[name].watermark_us or 0 for manifest in manifests]
        assert marks == sorted(marks), f"the watermark of {name} went back"
    instants = [manifest.processing_time_us for manifest in manifests]
    assert instants == sorted(instants), "processing time went back"
    assert not any(
        shard.wake_us for op in reader.manifest.operators.values() for shard in op.shards
    )


def _rows(path: Path) -> list[Any]:
    return list(json.loads(path.read_text()))


def _check_prefix(home: Path, given: list[Event], seed: int) -> None:
    """What is committed after a kill is what plain Python holds after as many records."""
    if not list((home / "checkpoint" / "epochs").glob("*.json")):
        return
    offset = records_read(CheckpointReader(home / "checkpoint").manifest, "events")
    found = state_of(home / "checkpoint", "count", "numbers", home / "unpacked")
    assert found == counted(given[:offset])[1]["numbers"], f"after the kill of seed {seed}"
