"""Two processes run one job on one checkpoint: each epoch is committed by one of them."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.working_copy.copies import DiskCopies
from tests.support.counting_job import (
    Entry,
    entries,
    plain_outputs,
    plain_state,
    state_of,
    tally,
    tally_job,
)
from tests.support.killable_processes import barrier, start
from tests.support.timeouts import PATIENCE_S

GROUPS = 8
ROUNDS = 20


def records_of(epoch: int) -> list[Entry]:
    return entries(epoch, 15)


class FileSink:
    """A file per epoch, written as a whole: as exactly-once as sinks by epoch can be."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, records: list[Any], epoch: int) -> None:
        draft = self.directory / f"{os.getpid()}.draft"
        draft.write_text(json.dumps(records))
        draft.rename(self.directory / f"{epoch:04d}.json")

    def read(self) -> list[tuple[str, int]]:
        files = sorted(self.directory.glob("*.json"))
        return [(key, n) for file in files for key, n in json.loads(file.read_text())]


def epochs_of(made: LocalRunner, outputs: FileSink) -> int:
    epoch = made.coordinator.epoch
    made.epoch({"records": records_of(epoch)}, outputs={"outputs": outputs})
    return epoch


def note(place: str, what: str, epoch: int) -> None:
    with (Path(place) / f"log.{os.getpid()}").open("a") as log:
        log.write(f"{what} {epoch}\n")


def read_notes(place: Path) -> dict[int, list[tuple[str, int]]]:
    """What each process noted, by its number."""
    found = {}
    for log in place.glob("log.*"):
        lines = (line.split() for line in log.read_text().splitlines())
        found[int(log.suffix[1:])] = [(what, int(epoch)) for what, epoch in lines]
    return found


def make(place: str, *, notes_beginnings: bool) -> LocalRunner:
    copies = DiskCopies(Path(place) / "local")
    made = LocalRunner(
        tally_job(GROUPS).plan, Repository(Path(place) / "c"), copies, RunOptions(parallelism=2)
    )
    made.coordinator.notes_beginnings = notes_beginnings
    return made


def race_in_step(place: str, together: Barrier, notes_beginnings: bool) -> None:
    """Start each epoch, and commit it, at the same instant as the other."""
    sink = FileSink(Path(place) / "out")
    for _ in range(ROUNDS):
        together.wait(PATIENCE_S)
        try:
            made = make(place, notes_beginnings=notes_beginnings)
        except sk.FencedError:  # the other wrote the job file between our look and our try
            made = make(place, notes_beginnings=notes_beginnings)
        epoch = made.coordinator.epoch
        commit, met = made.coordinator.commit, []

        def commit_together(*args: Any, **given: Any) -> Any:
            met.append(True)  # noqa: B023 - used within its turn
            together.wait(PATIENCE_S)
            return commit(*args, **given)  # noqa: B023 - used within its turn

        made.coordinator.commit = commit_together  # type: ignore[method-assign]
        together.wait(PATIENCE_S)  # both look at the same epoch
        try:
            made.epoch({"records": records_of(epoch)}, outputs={"outputs": sink})
            note(place, "committed", epoch)
        except sk.FencedError:
            note(place, "fenced", epoch)
        finally:
            if not met:
                together.wait(PATIENCE_S)


def race_at_random(place: str, together: Barrier, notes_beginnings: bool) -> None:
    """Run on as long as it goes, and start again when fenced."""
    chosen = random.Random(os.getpid())
    sink = FileSink(Path(place) / "out")
    together.wait(PATIENCE_S)
    while (Repository(Path(place) / "c").latest_epoch() or 0) < ROUNDS:
        epoch = -1
        try:
            made = make(place, notes_beginnings=notes_beginnings)
            for _ in range(chosen.randrange(1, 4)):
                epoch = made.coordinator.epoch
                time.sleep(chosen.uniform(0, 0.01))
                epochs_of(made, sink)
                note(place, "committed", epoch)
        except sk.FencedError:
            note(place, "fenced", epoch)


@pytest.mark.parametrize(
    ("race", "notes_beginnings"),
    [(race_in_step, False), (race_in_step, True), (race_at_random, True)],
    ids=["in step", "in step with notes of beginnings", "at random"],
)
def test_of_two_drivers_one_commits_each_epoch_and_the_other_is_fenced(
    tmp_path: Path, race: Callable[..., None], notes_beginnings: bool
) -> None:
    (tmp_path / "out").mkdir()
    together = barrier(2)
    processes = [start(race, str(tmp_path), together, notes_beginnings) for _ in range(2)]
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0, 0]
    noted = list(read_notes(tmp_path).values())
    committed = sorted(epoch for log in noted for what, epoch in log if what == "committed")
    epochs = Repository(tmp_path / "c").epochs()
    assert committed == epochs == list(range(len(epochs)))
    if race is race_in_step:
        fenced = sorted(epoch for log in noted for what, epoch in log if what == "fenced")
        assert fenced == committed
    check_outputs_and_state(tmp_path, epochs)


def check_outputs_and_state(place: Path, epochs: list[int]) -> None:
    given = [record for epoch in epochs for record in records_of(epoch)]
    by_key: dict[str, list[int]] = {}
    for key, total in FileSink(place / "out").read():
        by_key.setdefault(key, []).append(total)
    expected: dict[str, list[int]] = {}
    for key, total in plain_outputs(given):
        expected.setdefault(key, []).append(total)
    assert by_key == expected
    model = plain_state(given)
    assert state_of(Harness(tally, checkpoint=place / "c"), model) == model


def start_a_new_checkpoint(place: str, together: Barrier) -> None:
    for number in range(ROUNDS):
        together.wait(PATIENCE_S)
        try:
            made = LocalRunner(
                tally_job(GROUPS).plan,
                Repository(Path(place) / f"c{number}"),
                DiskCopies(Path(place) / "local"),
            )
            made.epoch({"records": records_of(0)})
            note(place, "committed", number)
        except sk.FencedError:
            note(place, "fenced", number)


def test_two_drivers_that_start_a_checkpoint_at_once_agree_on_the_job_file_of_the_one_that_commits(
    tmp_path: Path,
) -> None:
    together = barrier(2)
    processes = [start(start_a_new_checkpoint, str(tmp_path), together) for _ in range(2)]
    for process in processes:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in processes] == [0, 0]
    noted: Iterator[tuple[str, int]] = (n for log in read_notes(tmp_path).values() for n in log)
    committed = sorted(number for what, number in noted if what == "committed")
    # The second may come after the first has committed, and then goes on from there.
    assert set(committed) == set(range(ROUNDS))
    for number in range(ROUNDS):
        place = tmp_path / f"c{number}"
        repository = Repository(place)
        epochs = repository.epochs()
        assert len(epochs) == committed.count(number)
        named = {repository.manifest(epoch).job_file.path for epoch in epochs}
        assert len(named) == 1  # each may have written one before it knew of the other
        found = repository.job_file(*named)
        assert Coordinator.open(tally_job().plan, repository).job_file == found
        model = plain_state(record for _ in epochs for record in records_of(0))
        assert state_of(Harness(tally, checkpoint=place), model) == model
