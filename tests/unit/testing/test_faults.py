from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statekit.backend.interface import MemoryBackend
from statekit.checkpoint.object_store import StoreOptions
from statekit.checkpoint.repository import Repository
from statekit.errors import (
    CorruptCheckpointError,
    FencedError,
    StatekitError,
    StateTypeError,
    StorageError,
)
from statekit.query.rows.reader import CheckpointReader
from statekit.testing import Fault, Faults, FaultyBackend, FaultyCopies, Harness, faulty
from statekit.testing.faults import Operation, What, plans
from statekit.working_copy.copies import DiskCopies, MemoryCopies
from tests.support.counting_job import entries, plain_outputs, plain_state, tally, tally_job
from tests.support.manual_checkpoints import manifest
from tests.support.mutations import Put, batch_of

RECORDS = [record for epoch in range(4) for record in entries(epoch, 12)]
TRIES_MAX = 40
ONCE = StoreOptions(retry_seconds=0.0, pause_seconds=0.0)


def until_it_ends(run: Callable[[], object], faults: Faults) -> list[StatekitError]:
    """Start a job again and again, as whoever operates it would."""
    errors: list[StatekitError] = []
    while True:
        try:
            run()
        except StatekitError as error:
            errors.append(error)
            assert len(errors) < TRIES_MAX, faults.done
            continue
        return errors


def check_state(repository: Repository, faults: Faults) -> None:
    """Hold what is stored against plain Python."""
    reader = CheckpointReader(repository)
    for key, states in plain_state(RECORDS).items():
        for state, value in states.items():
            found = reader.get("tally", state, key)
            assert (type(value)() if found is None else found) == value, faults.done


@settings(max_examples=30, deadline=None)
@given(faults=plans(until=120), first=st.integers(1, 3), second=st.integers(1, 3))
def test_a_job_that_is_started_again_after_each_error_ends_as_on_a_good_store(
    faults: Faults, first: int, second: int
) -> None:
    good = Repository.in_memory()
    repository, copies = faulty(good, faults), FaultyCopies(MemoryCopies(), faults)
    written: dict[int, list[tuple[str, int]]] = {}

    def run(records: int, parallelism: int) -> None:
        tally_job().run(
            {"records": RECORDS[:records]},
            checkpoint=repository,
            parallelism=parallelism,
            epoch_size=12,
            backend=copies,
            outputs={"outputs": lambda out, epoch: written.__setitem__(epoch, list(out))},
        )

    until_it_ends(lambda: run(24, first), faults)
    until_it_ends(lambda: run(len(RECORDS), second), faults)
    put_out = [told for epoch in sorted(written) for told in written[epoch]]
    assert sorted(put_out) == sorted(plain_outputs(RECORDS)), faults.done
    check_state(good, faults)
    assert good.epochs() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_many_faults_on_local_disks_change_nothing_but_the_time_it_takes(
    tmp_path: Path, seed: int
) -> None:
    faults = Faults(rate=0.03, seed=seed, effects=("fail before", "fail after", "tear"))
    copies = FaultyCopies(DiskCopies(tmp_path / "copies"), faults)
    good = Repository(tmp_path / "checkpoint")

    def run() -> None:
        tally_job().run(
            {"records": RECORDS},
            checkpoint=faulty(good, faults),
            parallelism=2,
            epoch_size=12,
            backend=copies,
        )

    until_it_ends(run, faults)
    assert faults.done
    check_state(good, faults)


@given(at=st.integers(0, 13), operation=st.sampled_from(["put", "create"]))
@settings(max_examples=30, deadline=None)
def test_a_flipped_bit_in_stored_data_is_found_and_never_read_as_state(
    at: int, operation: Operation
) -> None:
    faults = Faults(Fault("flip", at, operation))
    good = Repository.in_memory()

    def run() -> None:
        tally_job().run(
            {"records": RECORDS}, checkpoint=faulty(good, faults), parallelism=2, epoch_size=12
        )
        tally_job().run({"records": RECORDS}, checkpoint=good)  # reads what is there
        check_state(good, faults)

    def run_and_read_all() -> None:
        run()
        for epoch in range(4):
            CheckpointReader(good, epoch=epoch)

    # 8 change files and 4 pages are put; a job file and 4 manifests are created.
    if at < {"put": 12, "create": 5}[operation]:
        with pytest.raises(CorruptCheckpointError, match=r"memory://.* is truncated or altered"):
            run_and_read_all()
        assert len(faults.done) == 1
    else:
        run()
        assert not faults.done


def test_the_content_of_a_file_decides_who_created_it_after_a_lost_answer() -> None:
    good = Repository.in_memory()
    mine = faulty(good, Faults(Fault("fail after", 0, "create")))
    mine.commit(manifest(0, writer="mine"))
    other = faulty(good, Faults(Fault("fail before", 0, "create")))
    with pytest.raises(FencedError):
        other.commit(manifest(0, writer="other"))
    assert good.manifest(0).writer == "mine"


def test_a_torn_read_is_repeated_and_never_used() -> None:
    good = Repository.in_memory()
    ref = good.put_file("data/o/f", io.BytesIO(b"0123456789"))
    faults = Faults(Fault("tear", 0, "get"), Fault("tear", 1, "get"))
    with faulty(good, faults).open_verified(ref) as file:
        assert file.read() == b"0123456789"
    assert len(faults.done) == 2
    with pytest.raises(StorageError, match="5 bytes came instead of 10"):
        faulty(good, Faults(Fault("tear", 0)), ONCE).open_verified(ref)


def test_lasting_errors_are_not_retried_and_temporary_ones_are() -> None:
    good = Repository.in_memory()
    lasting = Faults(Fault("fail before", 0), lasting=True)
    with pytest.raises(StorageError, match="create of a failed on purpose"):
        faulty(good, lasting).create("a", b"x")
    assert not good.exists("a")
    faulty(good, Faults(Fault("fail before", 0))).create("a", b"x")
    assert good.read("a") == b"x"


def test_a_delay_changes_nothing() -> None:
    waited: list[float] = []
    faults = Faults(Fault("delay", 1), delay_s=7.0, sleep=waited.append)
    repository = faulty(Repository.in_memory(), faults)
    repository.create("a", b"x")
    assert repository.read("a") == b"x"
    assert waited == [7.0]


@pytest.mark.parametrize("what", get_args(What))
def test_a_backend_fails_at_the_planned_write(what: What) -> None:
    inner = MemoryBackend(["s"])
    faults = Faults(Fault(what, 1, "write"), sleep=lambda _: None)
    backend = FaultyBackend(inner, faults)
    backend.write(batch_of([Put("s", b"a", b"1")]))
    batch = batch_of([Put("s", b"b", b"2"), Put("s", b"c", b"3")])
    if what == "delay":
        backend.write(batch)
    else:
        with pytest.raises(StorageError, match="write of s failed on purpose"):
            backend.write(batch)
    left = {"fail before": "a", "tear": "ab", "flip": "ab"}.get(what, "abc")
    assert [key.decode() for key, _ in inner.scan("s", b"", b"z")] == list(left)
    assert faults.done == [f"{what}: write 1 of s"]


def test_the_same_seed_does_the_same_and_another_something_else() -> None:
    done = []
    for seed in (1, 1, 2):
        faults = Faults(rate=0.3, seed=seed)
        repository = faulty(Repository.in_memory(), faults)
        for number in range(40):
            repository.create(f"n{number}", b"")
        done.append(faults.done)
    assert done[0] == done[1] != done[2]


def test_a_harness_runs_on_a_faulty_store() -> None:
    faults = Faults(Fault("fail after", 0, "create"), Fault("tear", 0, "put"))
    harness = Harness(tally, checkpoint=faulty(Repository.in_memory(), faults))
    harness.send({"key": "a", "n": 1})
    assert harness.state("total", "a") == 1
    assert len(faults.done) == 2


@pytest.mark.parametrize("what", ["fail before", "fail after", "tear"])
def test_a_harness_goes_on_with_its_copies_after_an_epoch_that_failed_while_it_was_written(
    what: What,
) -> None:
    faults = Faults(Fault(what, at=1, operation="write"))
    harness = Harness(tally, backend=FaultyCopies(MemoryCopies(), faults))
    first, second = entries(0, 12), entries(1, 12)
    emitted = harness.send(*first)
    with pytest.raises(StorageError, match="failed on purpose"):
        harness.send(*second)
    emitted += harness.send(*second)
    assert sorted(emitted) == sorted(plain_outputs([*first, *second]))


def test_a_fault_that_cannot_be_is_refused() -> None:
    with pytest.raises(StateTypeError, match="what='explode'"):
        Fault("explode", 0)  # type: ignore[arg-type]
    with pytest.raises(StateTypeError, match="operation='rename'"):
        Fault("tear", 0, "rename")  # type: ignore[arg-type]
    with pytest.raises(StateTypeError, match="at=-1"):
        Fault("tear", -1)
