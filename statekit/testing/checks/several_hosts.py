"""Runs on several hosts, each with local copies of its own, of which some are stale; alone, and
together with other disturbances.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import NonNegativeInt, PositiveInt

from statekit.checkpoint.manifest import ShardPlan, ShardPlans
from statekit.checkpoint.repository import Repository
from statekit.testing.checks.disturbed import with_restarts
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.faults import Fault, Faults, FaultyCopies, faulty, safe_faults
from statekit.testing.runs.observed import Observed
from statekit.testing.runs.source_records import History
from statekit.testing.runs.subject import Subject
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import DiskCopies, WorkingCopies, WorkingCopy
from statekit.working_copy.uploader import uploader

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_HOSTS = 2


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


def hosts() -> SearchStrategy[Moves]:
    """Return a strategy of moves between hosts."""
    from hypothesis import strategies as st

    places = st.lists(st.integers(0, _HOSTS - 1), min_size=2, max_size=5)
    return st.tuples(places, st.sets(st.integers(0, 4), max_size=2))


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
    with tempfile.TemporaryDirectory(prefix="statekit-hosts-") as directory:
        try:
            yield directory
        finally:
            uploader().give_up(directory)


_OFTEN = BaseOptions(replay_seconds=0, uploaded_per_changed=1_000_000)
_NEVER = BaseOptions(bases=False)  # uploads beside a run would move the faults


def _disks(directory: str, bases: BaseOptions) -> list[WorkingCopies]:
    """Return copies in RocksDB for each host, below a directory."""
    return [DiskCopies(f"{directory}/{number}", bases=bases) for number in range(_HOSTS)]


def together() -> SearchStrategy[Together]:
    """Return a strategy of disturbances in one run."""
    from hypothesis import strategies as st

    shards = st.lists(st.integers(1, 4), min_size=1, max_size=5)
    places = st.lists(st.integers(0, _HOSTS - 1), min_size=1, max_size=5)
    return st.tuples(safe_faults(most=3, until=100), shards, places)


def with_all_together(subject: Subject, history: History, drawn: Together) -> Observed:
    """Run on a store and disks that fail, with other shards in each epoch, on several hosts."""
    planned, numbers, places = drawn
    faults, observed = Faults(*planned, lasting=True), Observed()
    store = faulty(Repository.in_memory(), faults)
    with _directory() as directory:
        copies = FaultyCopies(SeveralHosts(_disks(directory, _NEVER), places), faults)
        harness: JobHarness | None = None
        shards = 0
        for step in subject.steps(history, observed):
            wanted = numbers[min(len(observed.epochs), len(numbers) - 1)]
            if subject.undivided is None and shards != wanted:
                harness, shards = None, wanted
            started = _starts(subject, shards, copies, store)
            harness = with_restarts(step, started, harness, observed)
    return observed


def _starts(
    subject: Subject, shards: int, copies: WorkingCopies, store: Repository
) -> Callable[[], JobHarness]:
    """Return a function that starts the job with so many shards, or 1 for 0."""
    return lambda: subject.harness(shards or 1, copies, store)
