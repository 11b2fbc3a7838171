"""Operator state in Spark's workers: kept from batch to batch, and across parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import statekit as sk
from statekit.keygroup import key_group, shard_of_group
from statekit.query.rows.reader import CheckpointReader
from tests.support.spark_runs import Runs, pieces

SCHEMA = "word string, number long"


class Line(NamedTuple):
    word: str
    number: int


class Longest:
    """A plain object: the longest words of a shard."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def snapshot_state(self) -> list[str]:
        return self.words

    def restore_state(self, state: list[str]) -> None:
        self.words = state

    def take(self, word: str) -> None:
        self.words = sorted({*self.words, word}, key=lambda held: (-len(held), held))[:3]

    @staticmethod
    def split_state(state: list[str], n: int) -> list[list[str]]:
        return [state[part::n] for part in range(n)]

    @staticmethod
    def merge_states(states: list[list[str]]) -> list[str]:
        every = {word for state in states for word in state}
        return sorted(every, key=lambda held: (-len(held), held))[:3]


@sk.process(key="word")
def keyed(
    line: Line,
    total: sk.ValueState[int],
    seen: Annotated[sk.OperatorListState[int], sk.Redistribute("even")],
    longest: Longest,
) -> Iterator[tuple[str, int]]:
    total.update((total.get() or 0) + line.number)
    seen.append(line.number)
    longest.take(line.word)
    yield line.word, total.get() or 0


@sk.process()
def unkeyed(
    line: Line,
    ctx: sk.Context,
    count: Annotated[
        sk.OperatorState[int],
        sk.Default(0),
        sk.Redistribute(split=lambda held, n: [held] + [0] * (n - 1), merge=sum),
    ],
) -> Iterator[tuple[int, int]]:
    count.update((count.get() or 0) + 1)
    yield line.number, ctx.shard


def build_job() -> sk.Job:
    job = sk.Job("lines")
    lines = job.source("lines", Line)
    lines.process(keyed).sink("totals")
    lines.process(unkeyed).sink("dealt")
    return job


def test_operator_state_lives_through_batches_and_changes_of_parallelism(runs: Runs) -> None:
    given = [Line("x" * (1 + n % 7), n) for n in range(90)]
    stream = runs.stream("lines", SCHEMA)
    sinks = {name: sk.sinks.parquet(runs.home / name) for name in ("totals", "dealt")}
    sent: list[Line] = []
    for parallelism, piece in zip([2, 4, 3], pieces(given, 30), strict=True):
        for part in pieces(piece, 15):
            runs.feed("lines", [line._asdict() for line in part])
        runs.finish(build_job(), {"lines": stream}, outputs=sinks, parallelism=parallelism)
        sent += piece
        reader = CheckpointReader(runs.checkpoint)
        seen = reader.operator_state("keyed", "seen")
        assert sorted(number for held in seen for number in held) == [n.number for n in sent]
        counts = reader.operator_state("unkeyed", "count")
        assert sum(counts) == len(sent)
        assert len(counts) == len(seen) == parallelism
    first = reader.repository.manifest(0).operators["keyed"].shards
    assert len(first) == 2
    held = reader.operator_state("keyed", "longest")
    assert "x" * 7 in [word for words in held for word in words]
    assert runs.state("keyed", "total") == dict(_totals(given))
    dealt = runs.parquet("dealt")
    assert sorted(row["_1"] for row in dealt) == list(range(90))
    assert set(Counter(row["_2"] for row in dealt)) == {0, 1, 2, 3}


def test_operator_state_counts_the_records_of_the_shards_keys(runs: Runs) -> None:
    given = [Line(f"w{n % 11}", n) for n in range(60)]
    runs.feed("lines", [line._asdict() for line in given])
    runs.finish(
        build_job(),
        {"lines": runs.stream("lines", SCHEMA)},
        outputs={name: sk.sinks.parquet(runs.home / name) for name in ("totals", "dealt")},
        parallelism=3,
    )
    owned: list[list[int]] = [[], [], []]
    for line in given:
        owned[shard_of_group(key_group(line.word), 3)].append(line.number)
    seen = CheckpointReader(runs.checkpoint).operator_state("keyed", "seen")
    assert [sorted(held) for held in seen] == owned
    counts = CheckpointReader(runs.checkpoint).operator_state("unkeyed", "count")
    assert sum(counts) == 60


def _totals(given: list[Line]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for line in given:
        totals[line.word] += line.number
    return totals
