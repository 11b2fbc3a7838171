"""Running in this process: epochs, exactly-once over crashes, independence of how it is cut."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.sealed_json import FileRef
from statekit.job.progress import Run
from statekit.working_copy.uploader import uploader
from tests.support.timeouts import PATIENCE_S


class Event(NamedTuple):
    user: str
    value: int


class Total(NamedTuple):
    user: str
    value: int


class Crash(Exception):
    """Stands for a process that dies."""


@sk.process(key="user")
def totals(
    event: Event,
    total: Annotated[sk.ReducingState[int], sk.Reduce(sum)],
    values: sk.MapState[int, int],
) -> Iterator[Total]:
    total.add(event.value)
    values[event.value] = values.get(event.value, 0) + 1
    yield Total(event.user, event.value)


@sk.process(key="value")
def by_value(total: Total, users: sk.MapState[str, int]) -> Iterator[tuple[int, str, int]]:
    users[total.user] = users.get(total.user, 0) + 1
    yield total.value, total.user, users[total.user]


def job() -> sk.Job:
    made = sk.Job("sums")
    stream = made.source("events", Event).process(totals)
    stream.sink("totals")
    stream.process(by_value).sink("counts")
    return made


def events(count: int) -> list[Event]:
    return [Event(f"u{number % 7}", number % 5) for number in range(count)]


# ----------------------------------------------------------------------------- cut into epochs


def test_inputs_are_cut_into_epochs() -> None:
    seen: list[tuple[int, int]] = []
    done = job().run(
        {"events": iter(events(25))},
        epoch_size=10,
        outputs={"totals": lambda records, epoch: seen.append((epoch, len(records)))},
    )
    assert seen == [(0, 10), (1, 10), (2, 5)]
    assert (done.epochs, done.last_epoch) == (3, 2)
    assert list(done.outputs) == ["counts"]
    assert len(done["counts"]) == 25


def test_no_input_makes_no_epoch() -> None:
    done = job().run({"events": []})
    assert (done.epochs, done.last_epoch, done["totals"]) == (0, None, [])


def test_inputs_are_read_lazily() -> None:
    def endless() -> Iterator[Event]:
        for number in range(10**9):
            if number == 50:
                raise Crash
            yield Event("a", number)

    epochs: list[int] = []
    with pytest.raises(sk.ProcessError) as failed:
        job().run(
            {"events": endless()},
            epoch_size=10,
            outputs={"totals": lambda records, epoch: epochs.append(epoch)},
        )
    assert isinstance(failed.value.__cause__, Crash)
    assert epochs == [0, 1, 2, 3, 4]


def test_dicts_become_records() -> None:
    done = job().run({"events": [{"user": "a", "value": 1}]})
    assert done["totals"] == [Total("a", 1)]


def test_several_sources_end_each_at_its_own_time() -> None:
    made = sk.Job("two")
    made.source("left", Event).process(totals, name="left-totals").sink("left")
    made.source("right", Event).process(totals, name="right-totals").sink("right")
    done = made.run({"left": events(25), "right": events(5)}, epoch_size=10)
    assert (len(done["left"]), len(done["right"]), done.epochs) == (25, 5, 3)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({}, None),
        ({"events": [], "more": []}, None),
        ({"event": []}, None),
        ({"events": []}, {"nowhere": lambda records, epoch: None}),
    ],
)
def test_inputs_and_outputs_must_be_sources_and_sinks(inputs: Any, outputs: Any) -> None:
    with pytest.raises(sk.StateTypeError, match=r"job 'sums' has the (sources|sinks)"):
        job().run(inputs, outputs=outputs)


def test_an_epoch_has_at_least_one_record() -> None:
    with pytest.raises(sk.StateTypeError, match="epoch_size=0"):
        job().run({"events": events(1)}, epoch_size=0)


@pytest.mark.parametrize("parallelism", [-1, 129, 1.5])
def test_a_parallelism_that_cannot_be_is_refused(parallelism: Any) -> None:
    with pytest.raises(sk.RescaleError, match="parallelism"):
        job().run({"events": events(1)}, parallelism=parallelism)


# -------------------------------------------------------------------------------- exactly once


class Sink:
    """A sink that is idempotent by epoch, as the docs ask for, and may crash."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Any]] = {}
        self.calls: list[int] = []
        self.crash_at: int | None = None

    def __call__(self, records: list[Any], epoch: int) -> None:
        self.calls.append(epoch)
        self.epochs[epoch] = list(records)
        if epoch == self.crash_at:
            raise Crash

    def everything(self) -> Counter[Any]:
        return Counter(record for records in self.epochs.values() for record in records)


def test_a_crash_between_sink_and_commit_replays_the_epoch_with_its_number(tmp_path: Path) -> None:
    sink = Sink()
    sink.crash_at = 1

    def run() -> Run:
        return job().run(
            {"events": events(30)}, epoch_size=10, checkpoint=tmp_path, outputs={"counts": sink}
        )

    with pytest.raises(sk.ProcessError, match=r"sink 'counts' failed in epoch 1 with Crash"):
        run()
    sink.crash_at = None
    assert run().epochs == 2
    assert sink.calls == [0, 1, 1, 2]
    assert sink.everything() == Counter(job().run({"events": events(30)})["counts"])


def test_a_run_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    first = job().run({"events": events(15)}, checkpoint=tmp_path, epoch_size=10)
    second = job().run({"events": events(40)}, checkpoint=tmp_path, epoch_size=10)
    third = job().run({"events": events(40)}, checkpoint=tmp_path, epoch_size=10)
    assert (first.last_epoch, second.last_epoch, third.last_epoch) == (1, 4, 4)
    assert (second.epochs, third.epochs) == (3, 0)
    whole = job().run({"events": events(40)})
    assert Counter(first["counts"] + second["counts"]) == Counter(whole["counts"])


@pytest.mark.parametrize("given", [0, 7, 14])
def test_an_input_with_fewer_records_than_were_taken_of_it_is_refused_and_not_skipped(
    tmp_path: Path, given: int
) -> None:
    job().run({"events": events(15)}, checkpoint=tmp_path, epoch_size=10)
    with pytest.raises(sk.RestoreError, match=f"'events' has {given} records, and 15 of it are"):
        job().run({"events": iter(events(given))}, checkpoint=tmp_path)
    assert job().run({"events": iter(events(16))}, checkpoint=tmp_path).epochs == 1


def spoiled(records: list[Any], place: int, kind: str) -> list[Any]:
    """The records with one that makes the function, or the reading of the input, fail."""
    wrong = {"function": Event("u1", 2**70), "input": "no record"}
    return [*records[:place], wrong[kind], *records[place + 1 :]] if kind in wrong else records


@settings(max_examples=8, deadline=None)
@given(
    crashes=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["function", "sink", "input"]))),
    sizes=st.lists(st.integers(1, 12), min_size=1),
    parallelism=st.lists(st.integers(1, 5), min_size=1),
    backend=st.sampled_from(["memory", "rocksdb"]),
)
def test_results_do_not_depend_on_crashes(
    tmp_path_factory: pytest.TempPathFactory,
    crashes: list[tuple[int, str]],
    sizes: list[int],
    parallelism: list[int],
    backend: Literal["memory", "rocksdb"],
) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    sink, records = Sink(), events(30)

    def run(turn: int, given_records: list[Any]) -> None:
        job().run(
            {"events": given_records},
            checkpoint=path,
            outputs={"counts": sink},
            backend=backend,
            epoch_size=sizes[turn % len(sizes)],
            parallelism=parallelism[turn % len(parallelism)],
        )

    for turn, (place, kind) in enumerate(crashes):
        sink.crash_at = place if kind == "sink" else None
        with contextlib.suppress(Crash, sk.StatekitError):
            run(turn, spoiled(records, 4 * place, kind))
    sink.crash_at = None
    run(len(crashes), records)
    assert sink.everything() == Counter(job().run({"events": records})["counts"])


def test_a_run_over_a_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    job().run({"events": events(3)}, checkpoint=tmp_path)
    other = sk.Job("other")
    other.source("events", Event).process(totals)
    with pytest.raises(sk.RestoreError, match="checkpoint of job 'sums', not of 'other'"):
        other.run({"events": []}, checkpoint=tmp_path)


def test_undeclared_state_must_be_dropped_explicitly(tmp_path: Path) -> None:
    job().run({"events": events(3)}, checkpoint=tmp_path)
    smaller = sk.Job("sums")
    smaller.source("events", Event).process(totals).sink("totals")
    with pytest.raises(sk.StateSchemaError, match=r"'by_value'.*allow_dropped_state"):
        smaller.run({"events": events(6)}, checkpoint=tmp_path)
    done = smaller.run({"events": events(6)}, checkpoint=tmp_path, allow_dropped_state=True)
    assert len(done["totals"]) == 3


# ------------------------------------------------------------------------ independence of cuts


def outcome(done: Run) -> Counter[Any]:
    return Counter(done["counts"]) + Counter(done["totals"])


@settings(max_examples=40, deadline=None)
@given(
    records=st.lists(
        st.builds(Event, st.sampled_from(["a", "b", "c", "", "é"]), st.integers(-3, 3)), max_size=40
    ),
    parallelism=st.integers(1, 5),
    epoch_size=st.integers(1, 45),
)
def test_results_do_not_depend_on_parallelism_or_epoch_size(
    records: list[Event], parallelism: int, epoch_size: int
) -> None:
    expected = outcome(job().run({"events": records}))
    done = job().run({"events": records}, parallelism=parallelism, epoch_size=epoch_size)
    assert outcome(done) == expected


@settings(max_examples=6, deadline=None)
@given(parallelism=st.integers(1, 5), epoch_size=st.integers(5, 45))
def test_results_do_not_depend_on_the_backend(parallelism: int, epoch_size: int) -> None:
    expected = outcome(job().run({"events": events(45)}))
    done = job().run(
        {"events": events(45)}, parallelism=parallelism, epoch_size=epoch_size, backend="rocksdb"
    )
    assert outcome(done) == expected


def test_the_rocksdb_backend_keeps_its_copies_in_the_working_directory(tmp_path: Path) -> None:
    job().run({"events": events(5)}, backend="rocksdb", working_directory=tmp_path)
    assert list(tmp_path.rglob("clean"))


def test_a_callback_gets_the_records_of_its_sink_only() -> None:
    taken: dict[str, list[Any]] = {"totals": [], "counts": []}

    def take(name: str) -> Callable[[list[Any], int], None]:
        return lambda records, epoch: taken[name].extend(records)

    done = job().run({"events": events(9)}, outputs={name: take(name) for name in taken})
    assert done.outputs == {}
    assert all(isinstance(record, Total) for record in taken["totals"])
    assert len(taken["totals"]) == len(taken["counts"]) == 9


# ------------------------------------------------------------------------------ uploads at the end


@pytest.mark.parametrize("has_directory", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_run_removes_no_files_that_it_is_uploading(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_directory: bool,
    fails: bool,
) -> None:
    begun, lost = threading.Event(), list[Path]()
    assert uploader().drain(PATIENCE_S)  # files of tests before this one would be endless, too

    def endless(_: Repository, path: str, file: Path, going: Callable[[], None]) -> FileRef:
        begun.set()
        while True:
            going()
            if not file.exists():
                lost.append(file)
                raise FileNotFoundError(file)
            time.sleep(0.001)

    def published(records: list[Any], epoch: int) -> None:
        if epoch == 3:
            assert begun.wait(PATIENCE_S)
            if fails:
                raise Crash

    monkeypatch.setattr(Repository, "put_path", endless)
    with pytest.raises(sk.ProcessError) if fails else contextlib.nullcontext():
        job().run(
            {"events": events(50)},
            outputs={"totals": published},
            checkpoint=tmp_path / "c",
            backend="rocksdb",
            working_directory=tmp_path / "local" if has_directory else None,
            bases=sk.BaseOptions(replay_seconds=0, uploaded_per_changed=100),
            epoch_size=10,
            keep_copies=False,
        )
    uploader().give_up(str(tmp_path))  # a run that failed keeps its copies, and uploads on
    assert uploader().drain(PATIENCE_S)
    assert (lost, caplog.text) == ([], "")
