"""Whatever happens to the processes of a job, state is one committed epoch and outputs are once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash_cycles import KINDS, Cycles
from tests.support.effort import SOAK

pytestmark = pytest.mark.slow

ON_ONE_CHECKPOINT = 50 if SOAK else len(KINDS)
CHECKPOINTS = 10 if SOAK else 1

# What comes of harm depends on where it meets a process, but so much comes of fifty.
NEARLY_SURE = ("collector: die", "shards on a base", "shards with a history")


@pytest.mark.parametrize("seed", range(CHECKPOINTS))
def test_a_job_that_crashes_again_and_again_has_the_results_of_one_that_does_not(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cycles = Cycles(tmp_path, seed, KINDS if SOAK else dict.fromkeys(KINDS, 1))
    for _ in range(ON_ONE_CHECKPOINT):
        cycles.cycle()
    with capsys.disabled():
        print(f"\n{cycles.told()}")
    assert cycles.counts["epochs"] > ON_ONE_CHECKPOINT
    nearly_sure = NEARLY_SURE if SOAK else ()
    missing = [kind for kind in (*KINDS, *nearly_sure) if not cycles.counts[kind]]
    assert not missing, f"it never came to this, so nothing was shown for it: {missing}"
