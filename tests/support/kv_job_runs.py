"""A job with a `KVStore` that runs epoch by epoch, crashes and restarts, beside its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.job.options import RunOptions
from statekit.runtime.local import LocalRunner
from statekit.timestamp import datetime_to_micros
from statekit.working_copy.copies import MemoryCopies
from tests.support.instants import after
from tests.support.kv_jobs import HeldLater, Op, Shape, ops, store_job
from tests.support.kv_model import Answer, TimedModel, model_of, plain

Given = dict[str, list[Op]]
"""The operations of an epoch, of each kind."""


def operations_of(seconds: int) -> st.SearchStrategy[list[Any]]:
    """Operations of an epoch, some of them twice: a number instead of the kind of each."""
    return st.lists(st.tuples(st.integers(0, 99), ops(seconds), st.integers(1, 2)), max_size=20)


def given_to(kinds: Sequence[str], operations: list[Any]) -> Given:
    """Give each operation to one of the kinds."""
    given: Given = {kind: [] for kind in kinds}
    for number, op, times in operations:
        given[kinds[number % len(kinds)]] += [op] * times
    return given


class Crash(Exception):
    """Stands for a process that dies."""


class StoreRun:
    """A job and its model.

    Parameters:
        kinds: the operations, in the order of their declaration.
        shape: the declaration of the store.
        parallelism, key_groups: of the checkpoint.
    """

    def __init__(
        self, kinds: Sequence[str], shape: Shape, parallelism: int = 1, key_groups: int = 16
    ) -> None:
        self.kinds = list(kinds)
        self.shape = shape
        self.model = model_of(shape)
        self.repository = Repository.in_memory()
        self.key_groups: int | None = key_groups
        self.removed: set[str] = set()
        """Operations that were removed since the last epoch, perhaps to be declared again."""
        self.restart(parallelism)

    def restart(self, parallelism: int) -> None:
        """Start again from the checkpoint, which fixes the number of key groups."""
        self.parallelism = parallelism
        job = store_job(tuple(self.kinds), self.shape, self.key_groups)
        self.key_groups = None
        options = RunOptions(
            parallelism=parallelism,
            allow_dropped_state=bool(self.removed),
            clock=lambda: datetime_to_micros(self.model.now),
        )
        self.runner = LocalRunner(job.plan, self.repository, MemoryCopies(), options)

    def pass_time(self, seconds: int) -> None:
        """Advance the processing time, by which values of a store without event time expire."""
        self.model.now += after(seconds)

    def evolve(self) -> None:
        """Start again with a class of values that has one more field."""
        self.shape = self.shape._replace(value=HeldLater)
        self.restart(self.parallelism)

    def declare(self, kind: str, place: int) -> None:
        """Start again with one more operation."""
        self.kinds.insert(place, kind)
        self.restart(self.parallelism)

    def reorder(self, kinds: Sequence[str]) -> None:
        """Start again with the operations in another order."""
        self.kinds = list(kinds)
        self.restart(self.parallelism)

    def remove(self, kind: str) -> None:
        """Start again with one operation less, and give its buffered requests up."""
        self.kinds.remove(kind)
        self.removed.add(kind)
        self.restart(self.parallelism)

    def _give_up(self) -> None:
        """Drop what is buffered of operations that are still not declared when an epoch is run."""
        for kind in self.removed.difference(self.kinds):
            self.model.removed(kind)

    def epoch(self, given: Given) -> None:
        """Run an epoch, and check its answers."""
        self._give_up()
        self.check(self.runner.epoch(given), self.model.epoch(self.kinds, given))
        self.removed.clear()

    def crash(self, given: Given, parallelism: int) -> None:
        """Run an epoch that dies before its commit, then once more after a restart.

        The answers of both attempts are the same.
        """
        sinks = {sink.name: sink for sink in self.runner.job.sinks}
        seen: dict[str, list[Any]] = {}

        def callback(name: str) -> Any:
            def take(records: list[Any], epoch: int) -> None:
                seen[name] = records
                if len(seen) == len(sinks):
                    raise Crash

            return take

        before = self.repository.latest_epoch()
        try:
            self.runner.epoch(given, outputs={name: callback(name) for name in sinks})
        except sk.ProcessError as error:
            if not isinstance(error.__cause__, Crash):
                raise
        else:
            raise AssertionError("the callback raises")
        assert self.repository.latest_epoch() == before
        self.restart(parallelism)
        self._give_up()
        expected = self.model.epoch(self.kinds, given)
        self.check(seen, expected)
        self.check(self.runner.epoch(given), expected)
        self.removed.clear()

    def drain(self) -> None:
        """End event time, and check the answers of all buffered operations."""
        assert isinstance(self.model, TimedModel)
        if self.repository.latest_epoch() is not None:
            self._give_up()
            self.check(self.runner.epoch({}, what="drain"), self.model.drain(self.kinds))

    def check(
        self, found: Mapping[str, Sequence[Any]], expected: Mapping[str, Sequence[Answer]]
    ) -> None:
        assert set(found) == set(expected)
        for name, answers in expected.items():
            own = [
                plain(answer if name.startswith("late.multi_get") else tuple(answer))
                for answer in found[name]
            ]
            assert Counter(own) == Counter(answers), name
            if not name.startswith(("multi_get", "late.")):
                for key in {answer[0] for answer in answers}:
                    assert [a for a in own if a[0] == key] == [a for a in answers if a[0] == key]
