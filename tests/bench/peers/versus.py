"""Each of the other systems against one shard of ours, in turn: events per second and core.

What lives here: who takes part, with what is durable and what has to be known of it, and the
benchmarks. What does not: the programs (`jobs`), and how they are run (`processes`).

What counts is the CPU time of all processes, less that of the same job with 1,000 events, for that
is what it takes to start. It is a right result or none: what jobs emit is added up and checked.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.peers.environments import Environment, NotAvailable
from tests.bench.peers.inputs import WORKLOADS, Input
from tests.bench.peers.processes import Spent, run
from tests.bench.report import SPARK_DURABLE, STATEKIT_DURABLE, Arm, Row

__all__ = [
    "BENCHMARKS",
    "START_EVENTS",
    "Contender",
    "Match",
    "Turns",
    "all_compared",
    "compared",
    "measured",
]

EVENTS, PER_EPOCH, START_EVENTS = 300_000, 100_000, 1_000
ROUNDS = 3


@dataclass(frozen=True)
class Contender:
    """A job that takes part.

    Parameters:
        job: the module in `jobs`.
        durable: what of its state would outlive a crash.
        arguments: behind those that all jobs have.
        environment: what it runs in; None for that of statekit.
    """

    name: str
    job: str
    durable: str
    arguments: tuple[str, ...] = ()
    environment: Environment | None = None

    def python(self) -> Path:
        with self.named():
            return self._python()

    def _python(self) -> Path:
        return Path(sys.executable) if self.environment is None else self.environment.python()

    def run(self, events: Input, workload: str) -> Spent:
        """Run it over some events.

        Raises:
            NotAvailable: it cannot be run, or gave a wrong result.
        """
        does = "entries" if workload == "entries" else "count"
        with self.named(), tempfile.TemporaryDirectory() as home:
            spent = self.spent(events.home, does, Path(home))
            told, of = spent.told["check"], spent.told["of"]
            if of != "nothing" and told != (right := events.checks[of]):
                raise NotAvailable(f"it gave wrong results: {told} in all, where {right} is right")
        return spent

    def spent(self, events: Path, does: str, home: Path, *more: str) -> Spent:
        """Run it, and look at nothing that it emits.

        Parameters:
            does: what it does with the events.
            home: its scratch directory.
            more: arguments of this run alone.
        """
        given = (str(events), does, str(home), *self.arguments, *more)
        return run(self._python(), f"tests.bench.peers.jobs.{self.job}", given)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Say who it is that is not available."""
        try:
            yield
        except NotAvailable as why:
            raise NotAvailable(f"{self.name}: {why}") from why

    def arm(self, spent: Sequence[tuple[Spent, Spent]], events: int) -> Arm:
        """What it took in the median, less what it took to start."""
        seconds = statistics.median(whole.cpu_s - start.cpu_s for whole, start in spent)
        if seconds <= 0:
            raise NotAvailable(f"{self.name}: it took no longer than its start: too few events")
        peaks = [whole.memory for whole, _ in spent if whole.memory is not None]
        return Arm(
            self.name,
            seconds,
            self.durable,
            events - START_EVENTS,
            written=spent[-1][0].told["written"],
            memory=max(peaks) if peaks else None,
        )


@dataclass(frozen=True)
class Match:
    """Two that take turns.

    Parameters:
        note: what has to be known to read the ratio.
        events: how many each is given.
        workloads: by their names in `WORKLOADS`.
    """

    ours: Contender
    theirs: Contender
    note: str = ""
    events: int = EVENTS
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    wanted: str = "more than 1"


Turns = Callable[[Contender], tuple[Spent, Spent]]
"""A turn of a contender: over all events, and over as few as it takes to start."""


def measured(match: Match, workload: str, rounds: int = ROUNDS) -> Row:
    """A workload as one row."""
    title = f"one core, {WORKLOADS[workload].title}, {match.events:,} events"
    with tempfile.TemporaryDirectory() as home:

        def turns() -> Turns:
            whole = Input(Path(home) / "whole", WORKLOADS[workload], match.events).write()
            start = Input(Path(home) / "start", WORKLOADS[workload], START_EVENTS).write()
            return lambda side: (side.run(whole, workload), side.run(start, workload))

        return compared(title, match, turns, rounds)


def compared(title: str, match: Match, turns: Callable[[], Turns], rounds: int = ROUNDS) -> Row:
    """One row; without numbers, and with the reason, where there are none.

    Parameters:
        turns: writes the events, if both can run at all.
    """
    (row,) = all_compared(title, [match], turns, rounds)
    return row


def all_compared(
    title: str, matches: Sequence[Match], turns: Callable[[], Turns], rounds: int = ROUNDS
) -> list[Row]:
    """A row for each match. All have the same events, and each contender takes its turns once.

    Parameters:
        turns: as for `compared`.
    """
    sides = list(dict.fromkeys(side for match in matches for side in (match.ours, match.theirs)))
    try:
        for side in sides:
            side.python()
        turn = turns()
        spent = [[turn(side) for side in sides] for _ in range(rounds)]
        taken = dict(zip(sides, zip(*spent, strict=True), strict=True))
    except NotAvailable as why:
        return [_without_numbers(title, match, why) for match in matches]
    return [_row(title, match, taken) for match in matches]


def _titled(title: str, match: Match) -> str:
    name = "" if match.ours.name == "statekit" else f"{match.ours.name} "
    return f"{title}: {name}against {match.theirs.name}"


def _without_numbers(title: str, match: Match, why: NotAvailable) -> Row:
    reason = f"no number: {why}"
    return Row(_titled(title, match), reason, match.wanted, without=reason, note=match.note)


def _row(title: str, match: Match, taken: Mapping[Contender, Sequence[tuple[Spent, Spent]]]) -> Row:
    try:
        arms = [side.arm(taken[side], match.events) for side in (match.ours, match.theirs)]
    except NotAvailable as why:
        return _without_numbers(title, match, why)
    title = _titled(title, match)
    ours, theirs = (arm.events / arm.seconds for arm in arms)
    told = f"{ours / theirs:.3g} times as many: {ours:,.0f} events/s against {theirs:,.0f}"
    return Row(title, told, match.wanted, tuple(arms), note=match.note)


# ---------------------------------------------------------------------------------- who takes part


def _ours(name: str, per_epoch: int, by: str) -> Contender:
    durable = f"change files and a manifest for each {per_epoch:,} events, on the local disk"
    return Contender(name, "statekit_job", durable, (f"{per_epoch}", by))


FUNCTION = _ours("statekit", PER_EPOCH, "function")
AGGREGATES = _ours("statekit, built-in aggregates", EVENTS, "aggregates")


def _on_spark(name: str, engine: str, durable: str) -> Contender:
    return Contender(name, "spark_job", durable, (f"{PER_EPOCH}", engine))


def _bytewax(every_s: float, name: str) -> Contender:
    return Contender(
        name,
        "bytewax_job",
        f"a snapshot of the keys that changed, in SQLite, every {every_s:g} s",
        (f"{every_s:g}",),
        Environment("bytewax", ("bytewax==0.21.1",)),
    )


QUIX = Contender(
    "Quix Streams' store",
    "quix_job",
    "RocksDB with its log, a transaction for each 100,000 events; no changelog topic",
    (f"{PER_EPOCH}",),
    Environment("quix", ("quixstreams==3.28.1",)),
)
ROCKSDB = Contender(
    "RocksDB by hand",
    "rocks_job",
    "RocksDB with its log, a batch for each 10,000 events; no outputs, nothing to go back to",
    ("10000",),
)
FLINK = Contender(
    "PyFlink, thread mode",
    "flink_job",
    "RocksDB, an incremental checkpoint every 10 s, on the local disk",
    ("10",),
    Environment("pyflink", ("apache-flink==2.3.0", "setuptools<81")),
)
PATHWAY = Contender(
    "Pathway, built-in reducers",
    "pathway_job",
    "a log of the events on the local disk; state is in memory, and computed again from the log",
    environment=Environment("pathway", ("pathway==0.33.0",)),
)

_IN_MEMORY = (
    "Bytewax has all state in memory, as Python objects; a crash takes back all since the last "
    "snapshot, which it takes"
)
_PER_COMMIT = (
    "Pathway's reducers are compiled, have all state in memory and emit one change per key and "
    "commit, here one; a log of the events is stored, from which a start computes everything again."
)
_FUNCTION = "statekit calls a Python function and emits a result for each event."

MATCHES = {
    "peer-bytewax": (
        Match(FUNCTION, _bytewax(10, "Bytewax"), f"{_IN_MEMORY} every 10 s, by default."),
        Match(
            FUNCTION,
            _bytewax(0.4, "Bytewax, frequent snapshots"),
            f"{_IN_MEMORY} about as often here as statekit commits.",
        ),
    ),
    "peer-rocksdb": (
        Match(
            FUNCTION,
            ROCKSDB,
            "A loop over events that keeps rows of two integers in rocksdict itself.",
            wanted="",
        ),
    ),
    "peer-quix": (
        Match(
            FUNCTION,
            QUIX,
            "The store alone: a whole application also sends each change to a Kafka topic.",
        ),
    ),
    "peer-spark": (
        Match(
            _on_spark("statekit on Spark", "StatekitCount", STATEKIT_DURABLE),
            _on_spark("transformWithState (Row)", "SparkCount", SPARK_DURABLE),
            "Two tasks on Spark with its JVM, 100,000 events per batch, after two smaller batches.",
            events=200_000,
            workloads=("count",),
            wanted="20",
        ),
    ),
    "peer-flink": (Match(FUNCTION, FLINK, events=50_000),),
    "peer-pathway": (
        Match(AGGREGATES, PATHWAY, f"{_PER_COMMIT} statekit's aggregates commit once, too."),
        Match(FUNCTION, PATHWAY, f"{_FUNCTION} {_PER_COMMIT}"),
    ),
}


def benchmark(matches: Sequence[Match]) -> Callable[[], list[Row]]:
    return lambda: [measured(match, workload) for match in matches for workload in match.workloads]


BENCHMARKS = {name: benchmark(matches) for name, matches in MATCHES.items()}
