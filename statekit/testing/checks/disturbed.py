"""Disturbed runs: with crashes, faults, other shards, epochs, orders, processes and hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, groupby, islice
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from statekit.checkpoint.manifest import ShardPlan, ShardPlans
from statekit.checkpoint.repository import Repository
from statekit.errors import StatekitError, StateTypeError
from statekit.functions.process import Process
from statekit.job.windows.aggregated_result import AggregatedResult
from statekit.testing.checks.property import Property, RunDifference, alone, between, compared
from statekit.testing.checks.redistribution import check_redistribution, wrong_pieces
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.drivers.memory_directory import memory_directory
from statekit.testing.faults import Fault, Faults, FaultyCopies, faulty
from statekit.testing.runs.comparison import emitted_in_any_order, exactly, in_any_order, is_same
from statekit.testing.runs.new_processes import (
    PLACES,
    called_in_new_process,
    found_there,
    run_in_many,
    run_there,
)
from statekit.testing.runs.observed import Observed, Step
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import AT_ONCE, Subject
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, MemoryCopies, WorkingCopies, WorkingCopy
from statekit.working_copy.uploader import uploader


def again(subject: Subject, history: History, _: None) -> Observed:
    return subject.run(history)


def crashed(subject: Subject, history: History, before: set[int]) -> Observed:
    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number in before:
            harness.crash()
        return harness

    return subject.run(history, disturb)


def replayed(subject: Subject, history: History, before: set[int]) -> Observed:
    """Run some epochs twice, as after a crash right before their commit. The result has the records
    of the first time, which a sink may have published.
    """

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number in before and number < len(history):
            first.append((number, harness.attempt(history[number])))
        return harness

    first: list[tuple[int, dict[str, list[Any]]]] = []
    observed = subject.run(history, disturb)
    for number, emitted in first:
        observed.epochs[number] = emitted
    return observed


def processes(subject: Subject, history: History, _: None) -> RunDifference | None:
    """Compare two other processes with each other. This process is neither of them: its hashes
    differ at each start, so that a difference would come and go.
    """
    if subject.not_sent is not None:
        return alone(subject.not_sent, Observed())
    subject.count_run(history)
    first, second = PLACES
    titles = first.title, second.title
    one = _outcome(first.call, run_there, subject.pickled, history)
    other = _outcome(second.call, run_in_many, subject.pickled, history)
    if isinstance(one, StatekitError):
        if not isinstance(other, StatekitError):
            return RunDifference(f"the first run fails: {one}", titles, (Observed(), other))
        subject.failed.append(one)
    elif isinstance(other, StatekitError):
        return RunDifference(f"the second run fails: {other}", titles, (one, None))
    elif (what := exactly(one, other)) is not None:
        return RunDifference(what, titles, (one, other))
    return None


def _outcome(call: Call, *arguments: Any) -> Observed | StatekitError:
    """Return the result of a run in another process, or its error."""
    try:
        result: Observed = _called(call, *arguments)
    except NotThereError:
        raise
    except StatekitError as error:
        return error
    return result


class NotThereError(StateTypeError):
    """The error that another process cannot import the function."""


Call = Callable[..., Any]
"""A function that calls a function with arguments in another process."""


def _called(call: Call, *arguments: Any) -> Any:
    """Call a function in another process, and return its result.

    Raises:
        NotThereError: the process cannot import a module to which the job refers.
    """
    try:
        return call(*arguments)
    except ImportError as error:
        raise NotThereError(
            f"another process cannot import what the function uses ({error}), and neither can a "
            "worker of Spark: put the directory of the module on PYTHONPATH, or install the module"
        ) from error


def found_in_new_processes(
    subject: Subject, checked: Property, history: History, argument: Any
) -> RunDifference | None:
    """Return the difference for a history in processes that crashes kill; None if there is none.

    Raises:
        NotThereError: another process cannot have the job.
    """
    arguments = subject.pickled, checked.find, history, argument
    found: RunDifference | None = _called(called_in_new_process, found_there, *arguments)
    return found


def on_disk(subject: Subject, history: History, _: None) -> Observed:
    with _directory() as directory:
        return subject.run(history, harness=subject.harness(1, DiskCopies(directory)))


def sharded(subject: Subject, history: History, shards: int) -> Observed:
    return subject.run(history, harness=subject.harness(shards))


def _rescaled(subject: Subject, history: History, shards: list[int], wrong: list[str]) -> Observed:
    """Run with other shards in each epoch.

    Parameters:
        wrong: gets a message for each operator state that is wrong after a rescale.
    """

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number < len(shards) and shards[number] != harness.parallelism:
            before = _local_states(subject, harness)
            harness.rescale(shards[number])
            after = _local_states(subject, harness)
            wrong.extend(_misplaced(subject, before, after, number))
        return harness

    return subject.run(history, disturb)


def _local_states(subject: Subject, harness: JobHarness) -> dict[tuple[str, str], list[Any]]:
    """Return the operator states of all shards, by operator and name."""
    return {
        (operator, spec.name): harness.operator_state(operator, spec.name)
        for operator, spec in subject.local_states
    }


def _misplaced(
    subject: Subject,
    before: dict[tuple[str, str], list[Any]],
    after: dict[tuple[str, str], list[Any]],
    number: int,
) -> Iterator[str]:
    """Yield a message for each operator state that is wrong after a rescale.

    Parameters:
        before, after: the operator states of all shards.
        number: the number of the epoch that follows.
    """
    for operator, spec in subject.local_states:
        assert spec.redistribute is not None
        held, moved = before[operator, spec.name], after[operator, spec.name]
        if spec.default is not None and any(is_same(spec.default, each) for each in held):
            continue  # of a default nobody knows whether it was stored
        if (what := wrong_pieces(spec.redistribute, held, moved)) is not None:
            yield f"operator state {spec.name!r} of {operator} before epoch {number}: {what}"


def rescaling(subject: Subject, history: History, shards: list[int]) -> RunDifference | None:
    """Compare a history with one that is rescaled between epochs. The operator states of several
    shards differ from those of one: after a rescale, each element must be in the shard that the
    rule gives. The states of one shard must survive a split and a merge.
    """
    one, wrong = subject.plain_run(history), list[str]()
    if one is None:
        return None
    second = partial(_rescaled, subject, history, shards, wrong)
    found = between(one, second, f"shards by epoch: {shards}", in_any_order)
    return found or alone((*wrong, _not_redistributed(subject, one, shards))[0], one)


def _not_redistributed(subject: Subject, one: Observed, shards: list[int]) -> str | None:
    """Return the first operator state that a split into so many shards and a merge change; None if
    there is none.
    """
    into = [each for each in shards if each > 1]
    for operator, spec in subject.local_states:
        rule = spec.redistribute
        values = [each.operator_states[operator, spec.name][0] for each in one.contents]
        held = [value for value in values if value is not None]
        if into and held and rule is not None and rule.split is not None:
            try:
                check_redistribution(rule, held, into)
            except AssertionError as error:
                return f"operator state {spec.name!r} of {operator}: {error}"
    return None


def recut(subject: Subject, history: History, sizes: list[int]) -> Observed:
    """Run the same records in other epochs."""
    waiting: dict[str, Iterator[Any]] = {}
    for source in subject.job.plan.sources:
        waiting[source.name] = iter(
            [record for epoch in history for record in epoch.get(source.name, ())]
        )
    cut: History = []
    for size in [*sizes, None]:
        cut.append({name: list(islice(records, size)) for name, records in waiting.items()})
    return subject.run(cut, every=AT_ONCE)


def _reordered(subject: Subject, history: History, order: str) -> Observed:
    """Run the records of each epoch in another order. Records of the same instant keep theirs."""
    return subject.run(
        [
            {name: _moved(subject, name, records, order) for name, records in epoch.items()}
            for epoch in history
        ]
    )


def arrival(subject: Subject, history: History, order: str) -> RunDifference | None:
    """Compare a history with one in another order. The stored records of a window may be in any
    order, as long as its result is the same.
    """
    only_windows = all(map(is_window, subject.functions))
    compare = emitted_in_any_order if only_windows else in_any_order
    find = compared(
        _reordered, lambda order: f"records of epochs {order}", compare, when_late=False
    )
    return find(subject, history, order)


def _moved(subject: Subject, source: str, records: list[Any], order: str) -> list[Any]:
    """Return the records of a source in another order."""
    time_of = subject.times_of(source)
    by_time = sorted(records, key=time_of)
    if order == "by time":
        return by_time
    found: list[Any] = []
    for _, same in groupby(by_time, time_of):
        found[:0] = same
    return found


def is_window(declared: Process[Any, Any, Any]) -> bool:
    """Return whether a function is a window that fires once, by event time."""
    made_of = declared.traits.made_of
    if not isinstance(made_of, AggregatedResult) or made_of.window is None:
        return False
    fires_once = declared.traits.fires is not None and made_of.early is None
    return fires_once and made_of.clock == "event"


# ------------------------------------------------------------------------- faults and other hosts

_ATTEMPTS_MAX = 50
"""Maximum number of attempts of an epoch with faults. Each fault happens once."""


def _with_restarts(
    step: Step, started: Callable[[], JobHarness], harness: JobHarness | None, observed: Observed
) -> JobHarness:
    """Run an epoch until it is committed. After the first error the process continues with its
    working copies; after every second error the job is started again.
    """
    number, published = len(observed.epochs), dict[str, list[Any]]()
    for attempt in count(1):
        try:
            if harness is None:
                harness = started()
            if harness.epoch is None or harness.epoch < number:
                if step.has_nothing_to_do(harness):
                    break
                step.run(harness, published)
            observed.add(dict(published), harness)
            break
        except StatekitError:
            if attempt > _ATTEMPTS_MAX:
                raise
            if attempt % 2 == 0:
                harness = None
    assert harness is not None
    return harness


def with_faults(subject: Subject, history: History, planned: list[Fault]) -> Observed:
    """Run on a store and on working copies that fail."""
    return _run_with_faults(subject, history, planned, MemoryCopies(), [1])


def _run_with_faults(
    subject: Subject,
    history: History,
    planned: list[Fault],
    copies: WorkingCopies,
    numbers: list[int],
) -> Observed:
    """Run on a store and on working copies that fail.

    Parameters:
        copies: the working copies without faults.
        numbers: the number of shards, epoch by epoch, of which the last one stays.
    """
    faults, observed = Faults(*planned, lasting=True), Observed()
    store, failing = faulty(Repository.in_memory(), faults), FaultyCopies(copies, faults)
    harness: JobHarness | None = None
    shards = 1
    for step in subject.steps(history, observed):
        wanted = numbers[min(len(observed.epochs), len(numbers) - 1)]
        if subject.undivided is None and shards != wanted:
            harness, shards = None, wanted
        started = partial(subject.harness, shards, failing, store)
        harness = _with_restarts(step, started, harness, observed)
    return observed


HOSTS = 2


class SeveralHosts:
    """The local copies of several hosts. In each epoch, a shard runs on one of them.

    Parameters:
        hosts: the copies of each.
        places: the number of the host, epoch by epoch and shard by shard; then again from the
            first on.
    """

    def __init__(self, hosts: Sequence[WorkingCopies], places: Sequence[int]) -> None:
        self._hosts = hosts
        self._places = places or [0]

    def obtain(self, plan: ShardPlan, states: Sequence[str], repository: Repository) -> WorkingCopy:
        """Return a copy of the plan's shard on the host of its epoch."""
        place = self._places[(plan.epoch + plan.shard) % len(self._places)]
        return self._hosts[place % len(self._hosts)].obtain(plan, states, repository)

    def tidy(self, plans: ShardPlans) -> None:
        """Make room on all hosts."""
        for host in self._hosts:
            host.tidy(plans)

    def forget(self, checkpoint_id: str) -> None:
        """Remove the copies of a checkpoint from all hosts."""
        for host in self._hosts:
            host.forget(checkpoint_id)


Moves = tuple[list[NonNegativeInt], set[NonNegativeInt]]
"""The number of the host, epoch by epoch and then again from the first on; and the epochs that fail
before their commit and are run again, with local copies that stay on the disk.
"""

Together = tuple[list[Fault], list[PositiveInt], list[NonNegativeInt]]
"""The faults of the store and of the disks; the number of shards, epoch by epoch, of which the last
one stays; and the host of each shard, as for `SeveralHosts`.
"""


def on_several_hosts(subject: Subject, history: History, moves: Moves) -> Observed:
    """Run on hosts with RocksDB, which take bases as often as possible."""
    places, failed = moves

    def disturb(harness: JobHarness, number: int) -> JobHarness:
        if number in failed and number < len(history):
            harness.attempt(history[number])
        return harness

    with _directory() as directory:
        copies = SeveralHosts(_disks(directory, _OFTEN), places)
        return subject.run(history, disturb, harness=subject.harness(1, copies))


@contextlib.contextmanager
def _directory() -> Iterator[str]:
    """Return a directory for the copies of all hosts. Uploads from it are given up at the end."""
    with memory_directory("hosts") as directory:
        try:
            yield directory
        finally:
            uploader().give_up(directory)


_OFTEN = BaseOptions(replay_seconds=0, uploaded_per_changed=1_000_000)
_NEVER = BaseOptions(bases=False)  # uploads beside a run would move the faults


def _disks(directory: str, bases: BaseOptions) -> list[WorkingCopies]:
    """Return copies in RocksDB for each host, below a directory."""
    return [DiskCopies(f"{directory}/{number}", bases=bases) for number in range(HOSTS)]


def with_all_together(subject: Subject, history: History, drawn: Together) -> Observed:
    """Run on a store and disks that fail, with other shards in each epoch, on several hosts."""
    planned, numbers, places = drawn
    with _directory() as directory:
        copies = SeveralHosts(_disks(directory, _NEVER), places)
        return _run_with_faults(subject, history, planned, copies, numbers)
