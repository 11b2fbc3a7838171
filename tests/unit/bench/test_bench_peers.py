"""Other systems beside ours: where one cannot be measured, the row says why."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from tests.bench.peers.environments import Environment, NotAvailable
from tests.bench.peers.inputs import UNIFORM, WORKLOADS, Input
from tests.bench.peers.jobs.handshake import columns
from tests.bench.peers.processes import Spent, run
from tests.bench.peers.versus import (
    AGGREGATES,
    FUNCTION,
    MATCHES,
    ROCKSDB,
    Contender,
    Match,
    measured,
)

EVENTS = 30_000


@pytest.mark.parametrize(
    ("ours", "workload"),
    [(FUNCTION, "zipf"), (AGGREGATES, "entries"), (ROCKSDB, "count"), (ROCKSDB, "entries")],
)
def test_jobs_without_another_system_have_the_right_results(
    ours: Contender, workload: str, tmp_path: Path
) -> None:
    spent = ours.run(Input(tmp_path, WORKLOADS[workload], EVENTS).write(), workload)
    assert spent.cpu_s > 0
    assert spent.told["written"] > 0
    if sys.platform == "linux":
        assert spent.memory is not None
        assert 20_000_000 < spent.memory < 2_000_000_000


def test_the_start_of_a_job_is_not_measured() -> None:
    spent = [
        (Spent(cpu_s, memory, {"written": 7}), Spent(1.0, 10, {"written": 1}))
        for cpu_s, memory in ((4.0, 30), (3.0, 50), (9.0, 40))
    ]
    arm = FUNCTION.arm(spent, events=EVENTS)
    assert (arm.seconds, arm.events, arm.memory, arm.written) == (3.0, EVENTS - 1_000, 50, 7)
    with pytest.raises(NotAvailable, match="statekit: it took no longer than its start"):
        FUNCTION.arm([(start, start) for _, start in spent], events=EVENTS)


@pytest.mark.slow
def test_a_system_that_pip_cannot_install_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKIT_BENCH_PEERS", str(tmp_path))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    environment = Environment("nowhere", ("statekit-no-such-system==1.0",))
    theirs = Contender("No Such System", "bytewax_job", "nothing", environment=environment)
    row = measured(Match(FUNCTION, theirs, events=EVENTS), "count")
    assert row.arms == ()
    assert row.without == row.result
    assert "No Such System: cannot install statekit-no-such-system==1.0: ERROR" in row.without
    with pytest.raises(NotAvailable):  # it is tried again: next time there may be a network
        environment.python()


def test_a_system_that_is_not_there_or_fails_is_a_row_that_says_so() -> None:
    theirs = Contender("Bytewax", "bytewax_job", "nothing", ("10",))  # not in this environment
    row = measured(Match(FUNCTION, theirs, events=EVENTS), "count", rounds=1)
    assert row.arms == ()
    assert "Bytewax: it failed: ModuleNotFoundError: No module named 'bytewax'" in row.without


def test_wrong_results_are_no_number(tmp_path: Path) -> None:
    Input(tmp_path, UNIFORM, 2_000).write()
    fewer = Input(tmp_path, UNIFORM, 1_000)  # what is right for these is wrong for what is there
    with pytest.raises(NotAvailable, match="it gave wrong results"):
        FUNCTION.run(fewer, "count")


def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    events = Input(tmp_path / "events", WORKLOADS["count"], EVENTS).write()
    given = (str(events.home), "count", str(tmp_path / "home"), "10", "function")
    with pytest.raises(NotAvailable, match="it took more than"):
        run(Path(sys.executable), "tests.bench.peers.jobs.statekit_job", given, limit_s=0.2)


def test_all_are_given_the_same_events(tmp_path: Path) -> None:
    for name, workload in WORKLOADS.items():
        events = Input(tmp_path / name, workload, 60_000).write()
        drawn = columns(events.home, *workload.columns)
        lines = (events.home / "events.csv").read_text().splitlines()
        assert [list(map(int, line.split(","))) for line in lines[:10]] == [
            list(row) for row in zip(*(column[:10] for column in drawn), strict=True)
        ]
        parts = sorted((events.home / "csv").iterdir())
        rows = [line for part in parts for line in part.read_text().splitlines()[1:]]
        assert rows == lines
        assert len(rows) == 60_000


def test_all_rows_name_their_durability_and_version() -> None:
    for match in itertools.chain(*MATCHES.values()):
        assert match.ours.name.startswith("statekit")
        assert match.theirs.durable
        if match.theirs.environment is not None:
            first, *_ = match.theirs.environment.requirements
            assert "==" in first
