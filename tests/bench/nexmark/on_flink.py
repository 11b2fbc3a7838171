"""Nexmark on Flink SQL: each query beside the job of statekit on Spark and in one process, in CPU
of all processes.

What lives here: who takes part, checking results and the benchmarks. What does not: the text of
the queries (`flink_sql`), the files that both read (`streams`), and how the two take turns
(`tests.bench.peers.versus`).

Results are compared with plain SQL over the same events, in a run before those that count, which
put results nowhere.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.nexmark.queries import QUERIES
from tests.bench.nexmark.results import Answers, are_same, rows_of_files
from tests.bench.nexmark.sql import answers
from tests.bench.nexmark.streams import KINDS, Streams
from tests.bench.peers import versus
from tests.bench.peers.environments import NotAvailable
from tests.bench.peers.processes import Spent
from tests.bench.peers.versus import ROUNDS, START_EVENTS, Contender, Match, Turns, all_compared
from tests.bench.report import STATEKIT_DURABLE, Row

__all__ = ["BENCHMARKS", "FLINK_SQL", "IN_PROCESS", "STATEKIT", "check", "remaining"]

EVENTS = int(os.environ.get("STATEKIT_BENCH_FLINK_EVENTS", "2_000_000"))
PER_BATCH = 500_000

_WITHOUT_BIDS = 5
"""How many times as many events there are in all, and in a batch, for queries that take no bids: of
50 events four are of persons and auctions.
"""

EVERY_S = "10"

STATEKIT = Contender("statekit on Spark", "nexmark_job", STATEKIT_DURABLE)
IN_PROCESS = Contender("statekit in process", "nexmark_local_job", STATEKIT_DURABLE)
FLINK_SQL = Contender(
    "Flink SQL",
    "nexmark_flink_job",
    f"RocksDB, an incremental checkpoint every {EVERY_S} s and at the end, on the local disk",
    (EVERY_S,),
    versus.FLINK.environment,
)


def _results(side: Contender, number: int, streams: Streams) -> Answers:
    """What a side comes to for a query."""
    with side.named(), tempfile.TemporaryDirectory() as home:
        side.spent(streams.home, str(number), Path(home), "files")
        return _READ[side](number, Path(home) / "out")


def _of_flink(_: int, out: Path) -> Answers:
    return remaining(_lines(out.glob("part-*")))  # files that are not committed begin with a dot


def _lines(paths: Iterable[Path]) -> Iterator[str]:
    """The lines of files, which together may not fit in memory."""
    for path in paths:
        with path.open() as file:
            yield from file


def remaining(changes: Iterable[str]) -> Answers:
    """The rows that are left after changes, as Debezium writes them.

    Raises:
        NotAvailable: more is taken back than was emitted.
    """
    left: Counter[tuple[Any, ...]] = Counter()
    for change in map(json.loads, changes):
        for when, by in (("before", -1), ("after", 1)):
            if (row := change[when]) is not None:
                left[tuple(map(_value, row.values()))] += by
    if any(times < 0 for times in left.values()):
        raise NotAvailable("it took back rows that it had not emitted")
    return list(left.elements())


def _value(told: Any) -> Any:
    """Instants are texts that begin with a year."""
    if isinstance(told, str) and told[:2] == "20" and "T" in told:
        return dt.datetime.fromisoformat(told).replace(tzinfo=dt.UTC)
    return told


_READ = {STATEKIT: rows_of_files, IN_PROCESS: rows_of_files, FLINK_SQL: _of_flink}


def check(side: Contender, number: int, streams: Streams, expected: Answers) -> None:
    """Compare what a side comes to with plain SQL.

    Raises:
        NotAvailable: that is something else.
    """
    found = _results(side, number, streams)
    if not are_same(found, expected):
        counts = f"{len(found):,} rows, where {len(expected):,} are right"
        raise NotAvailable(f"{side.name}: it gave wrong results: {counts}")


def _kinds(number: int) -> tuple[str, ...]:
    """The streams that a query takes."""
    taken = {f"{front.kind}s" for front in QUERIES[number].fronts.values()}
    return tuple(kind for kind in KINDS if kind in taken)


def _times(number: int) -> int:
    return 1 if "bids" in _kinds(number) else _WITHOUT_BIDS


def measured(number: int, events: int = EVENTS, rounds: int = ROUNDS) -> list[Row]:
    """A query over the first events of a seed."""
    times = _times(number)
    count, per_batch = times * events, times * PER_BATCH
    matches = [
        Match(ours, FLINK_SQL, _note(number), count, wanted="") for ours in (STATEKIT, IN_PROCESS)
    ]
    title = f"one core, Nexmark query {number}, {QUERIES[number].asks}, {count:,} events"
    with tempfile.TemporaryDirectory() as home:

        def turns() -> Turns:
            whole = Streams(Path(home) / "whole", count, per_batch, _kinds(number)).write()
            start = Streams(Path(home) / "start", START_EVENTS, per_batch, _kinds(number)).write()
            expected = answers(number, whole.tables())
            for side in _READ:
                check(side, number, whole, expected)
            return lambda side: (_turn(side, number, whole), _turn(side, number, start))

        return all_compared(title, matches, turns, rounds)


def _turn(side: Contender, number: int, streams: Streams) -> Spent:
    with side.named(), tempfile.TemporaryDirectory() as home:
        return side.spent(streams.home, str(number), Path(home), "nowhere")


def _note(number: int) -> str:
    read = " and ".join(_kinds(number))
    return (
        f"Flink SQL runs in the JVM and calls no Python; statekit calls it for "
        f"{QUERIES[number].calls}. All read {read} from the same JSON lines, on two cores or, "
        f"without Spark, on one; statekit in batches of "
        f"{_times(number) * PER_BATCH:,} events of all kinds."
    )


def benchmark(number: int) -> Callable[[], list[Row]]:
    return lambda: measured(number)


BENCHMARKS = {f"nexmark-flink-q{number}": benchmark(number) for number in QUERIES}
