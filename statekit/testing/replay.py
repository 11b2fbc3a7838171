"""`replay`: run recorded records of an epoch again, against the states of the epoch before."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from statekit.checkpoint.manifest import ShardPlan
from statekit.checkpoint.object_store import (
    FileBytes,
    FilePage,
    Objects,
    RemoteObjects,
    Stored,
    StoreOptions,
)
from statekit.checkpoint.paths import BEGUN, EPOCHS
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import check_epoch
from statekit.checkpoint.shard_layout import standing
from statekit.checkpoint.store import Store
from statekit.errors import QueryError, RestoreError, StateTypeError
from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.keygroup import key_group
from statekit.recording.recorder import Recorder
from statekit.recording.recording import Recorded, recorded
from statekit.records.keyed_batch import KeyedBatch
from statekit.runtime.shard import reporting, run_shard
from statekit.runtime.shard_input import ShardInput
from statekit.shown import shown
from statekit.state.list_state import ListState
from statekit.state.map_state import MapState
from statekit.state.single_row_states import ValueState
from statekit.testing.drivers.driver import Backend
from statekit.testing.drivers.harness import states
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.written_test import CodeWriter
from statekit.timestamp import instant
from statekit.watermark import END

_FILLED = (ValueState, ListState, MapState)
"""States whose contents `update` can set."""

_EPOCH = re.compile(rf"(?:{EPOCHS}|{BEGUN})/([0-9]{{20}})\b.*")


class Replay:
    """Recorded records of an operator in one epoch, and the states of the epoch before.

    Nothing of the checkpoint changes, and no sink is written.

    Parameters:
        job: the job with the operator. Its code may differ from the code that recorded the records.
        checkpoint: a directory, an object store URL or an open repository.
        epoch: the number of the epoch to run again. A failed epoch has the number after the last
            committed one.
        recorded_at: the path of the `Recorder`.
        operator: its name; None if the job has only one.
        key: run the records of this key only.
        shard: run this shard only.
        backend: where the rows of a shard are kept: "rocksdb" for those larger than memory.

    Attributes:
        records: the records that are run, in the order in which the function gets them.

    Raises:
        QueryError: there are no such records, or the checkpoint has not kept the epoch before.
        StateTypeError: the job has no such operator, or `key` is no key of it.
    """

    def __init__(
        self,
        job: Job,
        checkpoint: str | Path | Repository,
        *,
        epoch: int,
        recorded_at: str | Path | Recorder,
        operator: str | None = None,
        key: Any = None,
        shard: int | None = None,
        backend: Backend = "memory",
    ) -> None:
        if not isinstance(job, Job):
            raise StateTypeError(f"Replay() takes the job that recorded, not {shown(job, 100)}")
        check_epoch("epoch", epoch)
        self.operator = operator_of(job, operator)
        self.epoch, self.key = epoch, key
        self._repository = _kept(Repository.of(checkpoint), epoch)
        self._recorded_at = str(
            recorded_at.path if isinstance(recorded_at, Recorder) else recorded_at
        )
        try:
            store = Store(self._recorded_at, create=False)
        except RestoreError:
            raise QueryError(
                f"there are no records at {self._recorded_at}: give the path of the Recorder, as "
                "recorded_at= or --recorded-at"
            ) from None
        attempts = recorded(store, self._process, self.operator.name, epoch)
        self._attempts = [each for each in attempts if shard in (None, each.shard)]
        if not self._attempts:
            raise QueryError(
                f"no records of shard {shard} of {self.operator.name} are kept of epoch {epoch}: "
                f"only those of {', '.join(str(each.shard) for each in attempts)}"
            )
        self._harness = JobHarness(job, attempts[0].shards, backend, self._repository)
        if key is not None:
            self._harness.shard_of(self.operator.name, key)  # checks it
        self.records = [record for each in self._attempts for record in self._records_of(each)]
        if key is not None and not (self.records or self._harness.timers(self.operator.name, key)):
            raise QueryError(
                f"no record of {self.operator.name} in epoch {epoch} has the key {shown(key)}, and "
                "it has no timers: its records may be in a shard that is not recorded"
            )

    @property
    def _process(self) -> Any:
        return self.operator.declared

    @property
    def at(self) -> dt.datetime:
        """The processing time of the epoch."""
        return instant(self._attempts[0].processing_time_us)

    def before(self, key: Any) -> dict[str, Any]:
        """Return the states of a key before the epoch, as plain Python.

        Raises:
            StateTypeError: it is no key of the operator.
        """
        shard = self._harness.shard_of(self.operator.name, key)
        plan = self._at_key(self._planned(shard, self._attempts[0]), key)
        return self._harness.states_of(self.operator, key, plan)

    def run(self) -> list[Any]:
        """Run the records, and return the emitted records, as sinks get them.

        Raises:
            ProcessError: the function fails.
        """
        outputs: list[Any] = []
        for attempt in self._attempts:
            for emitted in self._emitted(attempt):
                outputs += emitted
        return outputs

    def as_test(self) -> str:
        """Return a test that calls the function with the records of the key, and with the states
        that the key had before. It does not need the checkpoint.

        If calls alone do not give the same result, the test runs the records again as `replay`
        does: for an `async` function, one with due timers, in order of time, or of an aggregate.
        """
        name = f"{self.operator.name}_in_epoch_{self.epoch}"
        outputs: list[Any] = []
        held, writer = self._held_for_calls(), CodeWriter()
        body = [] if held is None else list(self._calls(writer, held, outputs))
        if not body or (outputs and not body[-1].startswith(" ") and outputs != self.run()):
            writer, body = CodeWriter(), [self._call_of_replay()]
        return "\n".join(writer.test(name, body, ["replay", "states"]))

    def _held_for_calls(self) -> Mapping[str, Any] | None:
        """Return the states of the key before the epoch; None if calls of the function with the
        records are not the same as the epoch.
        """
        process, key = self._process, self.key
        if key is None or process.takes_runs or process.ordered is not None or not self.records:
            return None
        if process.traits.combiner is not None or process.traits.fires is not None:
            return None
        if process.is_async:
            return None
        if any(spec.kind.is_local for spec in process.states):
            return None
        held = self.before(key)
        kinds = {spec.name: spec.state_class for spec in process.states}
        can_fill = all(kinds[name] in _FILLED or not value for name, value in held.items())
        return held if can_fill else None

    def _calls(
        self, writer: CodeWriter, held: Mapping[str, Any], outputs: list[Any]
    ) -> Iterator[str]:
        """Yield lines that call the function with each record.

        Parameters:
            writer: of the test.
            held: the states of the key before.
            outputs: gets the records that the calls emit.
        """
        process, given = self._process, states(self._process, self.key, at=self.at)
        function = writer.name_of(process, process.fn)
        yield f"given = states({function}, {writer.source_of(self.key)}, at={self.at!r})"
        for spec in self._process.states:
            value = held[spec.name]
            if value or (value is not None and spec.state_class is ValueState):
                given[spec.name].update(value)
                yield f"given[{spec.name!r}].update({writer.source_of(value)})"
        for record in self.records:
            call = f"list({function}({writer.source_of(record)}, **given))"
            try:
                emitted = list(self._process(record, **given))
                outputs += emitted
                yield f"assert {call} == {writer.source_of(emitted)}"
            except Exception as error:  # noqa: BLE001 - of the user's function
                raised = writer.name_of(type(error))
                yield f"with pytest.raises({raised}):  # as it was: say what is right"
                yield f"    {call}"
                return

    def _call_of_replay(self) -> str:
        chosen = f", operator={self.operator.name!r}"
        if self.key is not None:
            chosen += f", key={self.key!r}"
        where = f"{self._repository.url!r}, epoch={self.epoch}, recorded_at={self._recorded_at!r}"
        return f"assert replay(job, {where}{chosen}) == [...]  # say what is right"

    def _emitted(self, attempt: Recorded) -> Iterator[list[Any]]:
        """Yield the records that a shard emits, in lists."""
        plan = self._planned(attempt.shard, attempt)
        if self.key is not None:
            plan = self._at_key(plan, self.key)
        running = run_shard(
            self._process,
            plan,
            ShardInput(attempt.broadcast, self._batches(attempt)),
            self._repository,
            self._harness.copies,
        )
        for emitted in reporting(running, []):
            yield self._process.output_type.stored(emitted)

    def _planned(self, shard: int, attempt: Recorded) -> ShardPlan:
        """Return the plan of a shard, with the clocks of an attempt."""
        coordinator = self._harness.coordinator
        coordinator.begin(
            what="drain" if attempt.watermark_us == END else "records",
            to={self.operator.name: attempt.watermark_us},
            at_us=attempt.processing_time_us,
        )
        plan: ShardPlan = coordinator.plans(self.operator.name)[shard]
        return plan

    def _at_key(self, plan: ShardPlan, key: Any) -> ShardPlan:
        """Return the plan of the key group of a key alone: its rows are few, and other timers do
        not fire. A function with operator state needs that of its whole shard.
        """
        last = self._harness.coordinator.last
        if last is None or any(spec.kind.is_local for spec in self._process.states):
            return plan
        group = key_group(key, self._harness.key_groups)
        return replace(plan, base=standing(last, self.operator.name, group, group))

    def _batches(self, attempt: Recorded) -> Iterator[KeyedBatch]:
        """Yield the batches of an attempt, with the records of the key alone if there is one."""
        for batch in attempt.batches:
            if self.key is None:
                yield batch
            elif any(chosen := [key == self.key for key in batch.keys]):
                yield batch.chosen(chosen, of_columns=self._process.traits.takes_columns)

    def _records_of(self, attempt: Recorded) -> Iterator[Any]:
        """Yield the records of an attempt; for columns, their rows."""
        if self.key is None:
            for _, records in attempt.broadcast:
                yield from records
        for batch in self._batches(attempt):
            if self._process.traits.takes_columns:
                yield from zip(*batch.records, strict=True)
            else:
                yield from batch.records


def replay(
    job: Job,
    checkpoint: str | Path | Repository,
    *,
    epoch: int,
    recorded_at: str | Path | Recorder,
    operator: str | None = None,
    key: Any = None,
    shard: int | None = None,
    backend: Backend = "memory",
) -> list[Any]:
    """Run recorded records of an epoch again, and return the emitted records.

    Parameters:
        job, checkpoint, epoch, recorded_at, operator, key, shard, backend: as for `Replay`.

    Raises:
        ProcessError: the function fails, as it did when the records were recorded.
        QueryError: there are no such records, or the checkpoint has not kept the epoch before.
        StateTypeError: the job has no such operator, or `key` is no key of it.

    >>> import tempfile
    >>> from collections.abc import Iterator
    >>> import statekit as sk
    >>> @sk.process(key="word")
    ... def count(record: dict, seen: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield record["word"], seen.get() or 0
    >>> job = sk.Job("words")
    >>> _ = job.source("words", dict).process(count).sink("counts")
    >>> place = tempfile.TemporaryDirectory()
    >>> recorder, words = sk.Recorder(f"{place.name}/records"), [{"word": "a"}, {"word": "a"}]
    >>> checkpoint = f"{place.name}/checkpoint"
    >>> run = job.run({"words": words}, checkpoint=checkpoint, record=recorder, epoch_size=1)
    >>> replay(job, checkpoint, epoch=1, recorded_at=recorder)
    [('a', 2)]
    >>> place.cleanup()
    """
    return Replay(
        job,
        checkpoint,
        epoch=epoch,
        recorded_at=recorded_at,
        operator=operator,
        key=key,
        shard=shard,
        backend=backend,
    ).run()


def operator_of(job: Job, name: str | None) -> Operator:
    """Return the operator of that name, or the only one.

    Raises:
        StateTypeError: there is no such operator, or there are several.
    """
    names = [operator.name for operator in job.plan.operators]
    if name is None and len(names) == 1:
        return job.plan.operators[0]
    if name not in names:
        what = "say which operator" if name is None else f"there is no operator {shown(name)}"
        raise StateTypeError(f"job {job.name!r}: {what}; it has {', '.join(names)}")
    return job.plan.operators[names.index(name)]


def _kept(repository: Repository, epoch: int) -> Repository:
    """Return the checkpoint as it was before an epoch.

    Raises:
        QueryError: the checkpoint has not kept the epoch before.
    """
    epochs = repository.epochs()
    if epoch < 0 or epoch > (epochs[-1] + 1 if epochs else 0):
        last = epochs[-1] if epochs else None
        failed = 0 if last is None else last + 1
        raise QueryError(
            f"{repository.url} has begun no epoch {epoch}: the last one that is committed is "
            f"{last}. Give its number, or {failed} if the next one has failed"
        )
    if epoch > 0 and epoch - 1 not in epochs:
        kept = f"it has the epochs {epochs[0]} to {epochs[-1]}" if epochs else "it has no epoch"
        raise QueryError(
            f"{repository.url} has no states from before epoch {epoch}: {kept}. Give the job a "
            "retention that keeps epochs for as long as their records are wanted"
        )
    return repository.through(lambda objects: _PastObjects(objects, epoch - 1))


# --------------------------------------------------------------------- a checkpoint of the past


class _PastObjects:
    """Objects of a store without the epochs after a given one. Writes to them stay in memory.

    Parameters:
        inner: the objects of the store.
        epoch: the last epoch that they have; -1 for none.
    """

    keeps_order = False

    def __init__(self, inner: Objects, epoch: int) -> None:
        self._inner = inner
        self._epoch = epoch
        self._own: Objects = RemoteObjects("memory://", StoreOptions())

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        return self._of(path).get(path, start, size)

    def head(self, path: str) -> Stored:
        return self._of(path).head(path)

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        self._own.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        if not self._is_hidden(path) and _has(self._inner, path):
            raise FileExistsError(path)
        self._own.create(path, data)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        files = self._own.page(under, behind).files
        after: str | None = behind
        while True:
            page = self._inner.page(under, after)
            files += [file for file in page.files if not self._is_hidden(file.path)]
            if (after := page.behind) is None:
                return FilePage(files, None)

    def names(self, under: str) -> list[str]:
        names = [name for name in self._inner.names(under) if not self._is_hidden(name)]
        return [*names, *self._own.names(under)]

    def delete(self, paths: Sequence[str]) -> None:
        self._own.delete(paths)

    def move(self, path: str, target: str) -> None:
        self._own.move(path, target)

    def sync_folder(self, folder: str) -> None:
        """Do nothing: the objects end with the process."""

    def _of(self, path: str) -> Objects:
        """Return the objects that a file is read from."""
        return self._own if self._is_hidden(path) or _has(self._own, path) else self._inner

    def _is_hidden(self, path: str) -> bool:
        """Return whether a file belongs to a later epoch."""
        match = _EPOCH.fullmatch(path)
        return match is not None and int(match[1]) > self._epoch


def _has(objects: Objects, path: str) -> bool:
    try:
        objects.head(path)
    except FileNotFoundError:
        return False
    return True
