"""Random jobs give the same outputs and the same state in one process and on Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from tests.support.effort import SOAK
from tests.support.random_jobs import RandomJob, plain, table
from tests.support.spark_runs import Runs, state_of

SEEDS = 600 if SOAK else 5


def _states(made: RandomJob, checkpoint: Path, scratch: Path) -> dict[str, Any]:
    return {
        f"{operator}.{name}": state_of(checkpoint, operator, name, scratch)
        for operator, names in made.states.items()
        for name in names
    }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_job_gives_the_same_in_one_process_and_on_spark(runs: Runs, seed: int) -> None:
    made = RandomJob(seed)
    sinks = [sink.name for sink in made.job.plan.sinks]
    given: dict[str, list[Any]] = {
        name: [record for piece in made.pieces for record in piece[name]] for name in made.pieces[0]
    }
    # The frames first: a runtime that changed the objects of the caller would change them, too.
    frames = [{name: table(of) for name, of in piece.items()} for piece in made.pieces]
    local = runs.home / "local"
    sent = {name: [repr(record) for record in of] for name, of in given.items()}
    found: dict[str, Counter[Any]] = {name: Counter() for name in sinks}
    for last, piece in enumerate(made.pieces):
        up_to = {name: given[name][: len(of) * (last + 1)] for name, of in piece.items()}
        done = made.job.run(
            up_to, checkpoint=local, parallelism=2, drain=last == len(made.pieces) - 1
        )
        for name in sinks:
            found[name].update(map(plain, done[name]))
    assert {name: [repr(r) for r in of] for name, of in given.items()} == sent
    for last, piece in enumerate(frames):
        runs.start(
            made.job,
            {name: runs.spark.createDataFrame(of) for name, of in piece.items()},
            outputs={name: sk.sinks.parquet(runs.home / name) for name in sinks},
            parallelism=2,
            drain=last == len(made.pieces) - 1,
        ).await_termination()
    for name in sinks:
        assert found[name] == Counter(map(plain, runs.parquet(name))), f"{name} of\n{made.job}"
    of_spark = _states(made, runs.checkpoint, runs.home / "unpacked")
    assert _states(made, local, runs.home / "unpacked-local") == of_spark
