"""Power cut at each step of an epoch: what is there afterwards is as if nothing had happened."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statekit.checkpoint.repository import Repository
from statekit.runtime.coordinator import Coordinator
from statekit.runtime.local import LocalRunner
from statekit.testing import Harness
from statekit.working_copy.copies import DiskCopies
from tests.support.counting_job import (
    Entry,
    committed_rows,
    comparable,
    copied_rows,
    entries,
    plain_outputs,
    plain_state,
    state_of,
    tally,
    tally_job,
)
from tests.support.killable_processes import die, exit_code

GROUPS = 8
SIZE = 10
RECORDS: list[Entry] = [record for epoch in range(6) for record in entries(epoch, SIZE)]

POINTS = [
    "before change files",
    "between change files of two shards",
    "between change files and sink",
    "in the middle of the sink",
    "between sink and manifest",
    "between the manifest's content and its name",
    "right after the manifest",
]


class Switch:
    """Cuts the power at one point of one epoch."""

    def __init__(self, point: str, epoch: int) -> None:
        self._point = point
        self._epoch = epoch
        self._now = -1
        self._seen = 0

    def install(self) -> None:
        self._wrap(LocalRunner, "epoch", before=self._enter)
        self._wrap(Repository, "put_changes", before=self._change_file)
        self._wrap(Coordinator, "check_owner", before=self._at("between change files and sink"))
        self._wrap(
            Repository,
            "commit",
            before=self._at("between sink and manifest"),
            after=self._at("right after the manifest"),
        )
        name = "between the manifest's content and its name"
        self._wrap(os, "link", before=self._at(name))

    def reached(self, point: str) -> None:
        if (point, self._now) == (self._point, self._epoch):
            die()

    def _enter(self, runner: LocalRunner, *_: object) -> None:
        self._now, self._seen = runner.coordinator.epoch, 0

    def _change_file(self, *_: object) -> None:
        self._seen += 1
        if self._seen == 1:
            self.reached("before change files")
        else:
            self.reached("between change files of two shards")

    def _at(self, point: str) -> Callable[..., None]:
        return lambda *_: self.reached(point)

    @staticmethod
    def _wrap(
        owner: Any,
        name: str,
        *,
        before: Callable[..., None] = lambda *_: None,
        after: Callable[..., None] = lambda *_: None,
    ) -> None:
        inner = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before(*args)
            result = inner(*args, **kwargs)
            after(*args)
            return result

        setattr(owner, name, wrapped)


def run_and_die(place: str, backend: Any, parallelism: int, point: str, epoch: int) -> None:
    switch = Switch(point, epoch)
    switch.install()
    run_job(Path(place), backend, parallelism, switch)


def run_job(place: Path, backend: Any, parallelism: int, switch: Switch) -> None:
    """The whole job; its sink writes one file per epoch number, over what was there."""
    sink = place / "out"
    sink.mkdir(parents=True, exist_ok=True)

    def write(records: list[Any], epoch: int) -> None:
        text = json.dumps(records)
        with (sink / f"{epoch}.json").open("w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            switch.reached("in the middle of the sink")
            file.write(text[len(text) // 2 :])

    tally_job(GROUPS).run(
        {"records": RECORDS},
        outputs={"outputs": write},
        checkpoint=place / "checkpoint",
        parallelism=parallelism,
        epoch_size=SIZE,
        backend=backend,
        working_directory=place / "local",
    )


def outputs_in(place: Path) -> dict[int, list[list[Any]]]:
    """What the sink holds per epoch, in an order that parallelism has no part in."""
    files = (place / "out").iterdir()
    return {int(file.stem): sorted(json.loads(file.read_text())) for file in files}


NEVER = Switch("never", -1)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run ended that nothing interrupted."""
    place = tmp_path_factory.mktemp("calm")
    run_job(place, "memory", 2, NEVER)
    return place


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, calm: Path, point: str, backend: str
) -> None:
    place = tmp_path / "place"
    repository = Repository(place / "checkpoint")
    # Twice at the same step, then an epoch later and with other parallelism.
    for ahead, parallelism in ((0, 2), (0, 2), (1, 3)):
        before = repository.latest_epoch()
        epoch = ahead if before is None else before + 1 + ahead
        arguments = (str(place), backend, parallelism, point, epoch)
        assert exit_code(run_and_die, *arguments) == -9
        committed = epoch if point == "right after the manifest" else epoch - 1
        assert repository.latest_epoch() == (None if committed < 0 else committed)
    run_job(place, backend, 2, NEVER)

    expected = {
        epoch: sorted(map(list, plain_outputs(RECORDS)[epoch * SIZE : (epoch + 1) * SIZE]))
        for epoch in range(len(RECORDS) // SIZE)
    }
    assert outputs_in(place) == outputs_in(calm) == expected
    rows = committed_rows(repository, GROUPS)
    undisturbed = committed_rows(Repository(calm / "checkpoint"), GROUPS)
    assert comparable(rows) == comparable(undisturbed)
    model = plain_state(RECORDS)
    harness = Harness(tally, checkpoint=place / "checkpoint")
    assert state_of(harness, model) == model
    if backend == "rocksdb":
        coordinator = Coordinator.open(tally_job().plan, repository)
        assert copied_rows(coordinator, DiskCopies(place / "local")) == rows


def test_killed_run_leaves_only_files_that_no_manifest_names(tmp_path: Path) -> None:
    place = tmp_path / "place"
    point = "between sink and manifest"
    assert exit_code(run_and_die, str(place), "memory", 2, point, 1) == -9
    repository = Repository(place / "checkpoint")
    named = {
        ref.path
        for epoch in repository.epochs()
        for operator in repository.manifest(epoch).operators.values()
        for shard in operator.shards
        for ref in shard.files
    }
    stored = set(repository.names("data/tally"))
    assert named < stored
    run_job(place, "memory", 2, NEVER)
    assert stored < set(repository.names("data/tally"))  # written once, never changed
