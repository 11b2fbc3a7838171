"""What people who come from other stream processors expect, by the ids of the case collection.

Cases with timers, event time, TTL or windows are tested with those features. `SP` is from Spark's
arbitrary stateful processing, `B` from Beam, `W` from bytewax, `Q` from quix-streams, `F` from
Flink.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest

import statekit as sk
from statekit.backend.change_file import read_changes
from statekit.testing import Harness
from tests.support.mutations import Delete, mutations_of

Backend = Literal["memory", "rocksdb"]
BACKENDS: list[Backend] = ["memory", "rocksdb"]


class Word(NamedTuple):
    key: str
    text: str = ""


class Score(NamedTuple):
    key: str
    score: float
    preset: bool = False


class Number(NamedTuple):
    key: str
    value: int
    preset: bool = False


@sk.process(key="key")
def running_count(word: Number, count: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
    if word.preset:
        count.update(word.value)
        return
    count.update((count.get() or 0) + 1)
    yield word.key, count.get() or 0


def top_k(limit: int) -> sk.Process[Score, ..., tuple[str, float]]:
    @sk.process(key="key")
    def top(score: Score, best: sk.ListState[float]) -> Iterator[tuple[str, float]]:
        if score.preset:
            best.append(score.score)
            return
        best.update(sorted([*best, score.score], reverse=True)[:limit])
        yield from ((score.key, held) for held in best)

    return top


@sk.process(key="key")
def word_frequency(
    word: Word, frequencies: sk.MapState[str, int]
) -> Iterator[tuple[str, str, int]]:
    text, _, preset = word.text.partition("=")
    frequencies[text] = int(preset) if preset else frequencies.get(text, 0) + 1
    yield word.key, text, frequencies[text]


def rows(key: str, count: int) -> list[Number]:
    return [Number(key, 0)] * count


# ---------------------------------------------------------------------------------------- Spark


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_running_count_continues_from_batch_to_batch(backend: Backend) -> None:
    """SP1: each batch goes on counting per key; a key without rows has no state."""
    harness = Harness(running_count, parallelism=2, backend=backend)
    assert harness.send(*rows("k1", 1)) == [("k1", 1)]
    assert harness.send(*rows("k2", 2)) == [("k2", 1), ("k2", 2)]
    assert harness.send(*rows("k3", 1)) == [("k3", 1)]
    assert harness.send(*rows("k1", 3)) == [("k1", 2), ("k1", 3), ("k1", 4)]
    assert [harness.state("count", key) for key in ("k1", "k2", "k4")] == [4, 2, None]


def test_a_preset_value_is_counted_on_from() -> None:
    """SP3: a value that is 5 before the batch is 6 after one row."""
    harness = Harness(running_count)
    harness.send(Number("k", 5, preset=True))
    assert harness.send(*rows("k", 1)) == [("k", 6)]
    assert harness.state("count", "k") == 6


def test_preset_lists_keep_the_best() -> None:
    """SP5: lists hold the two largest scores; a key without rows has an empty list."""
    harness = Harness(top_k(2), parallelism=3)
    harness.send(*(Score(k, s, preset=True) for k, s in [("a", 6), ("a", 5), ("b", 8), ("b", 7)]))
    harness.send(Score("a", 10), Score("b", 7.5), Score("c", 1))
    found = [harness.state("best", key) for key in "abcd"]
    assert found == [[10, 6], [8, 7.5], [1], []]


def test_preset_maps_count_words() -> None:
    """SP7: maps count words on from what they hold, each user apart."""
    harness = Harness(word_frequency, parallelism=3)
    harness.send(Word("u1", "hello=5"), Word("u1", "world=3"), Word("u2", "spark=10"))
    harness.send(Word("u1", "hello"), Word("u1", "goodbye"), Word("u2", "spark"), Word("u3", "new"))
    assert [harness.state("frequencies", user) for user in ("u1", "u2", "u3", "u4")] == [
        {"hello": 6, "world": 3, "goodbye": 1},
        {"spark": 11},
        {"new": 1},
        {},
    ]


def test_initial_state_is_there_before_any_input() -> None:
    """SP9: what a first epoch puts in can be read at once; keys without it start at nothing."""
    harness = Harness(running_count)
    harness.send(Number("a", 10, preset=True), Number("b", 20, preset=True))
    assert harness.state("count", "a") == 10
    assert harness.send(*rows("a", 1)) == [("a", 11)]
    assert harness.send(*rows("c", 1)) == [("c", 1)]
    assert harness.state("count", "b") == 20


@sk.process(key="key")
def keeper(
    number: Number,
    value: sk.ValueState[int],
    items: sk.ListState[int],
    entries: sk.MapState[int, int],
) -> None:
    if number.value == 0:
        value.clear()
        items.clear()
        entries.clear()
    else:
        value.update(number.value)
        items.append(number.value)
        entries[number.value] = number.value


@pytest.mark.parametrize("backend", BACKENDS)
def test_deleting_the_state_of_one_key_leaves_the_others(backend: Backend) -> None:
    """SP11: value, list and map of k1 are deleted, those of k2 stay."""
    harness = Harness(keeper, backend=backend)
    harness.send(Number("k1", 10), Number("k2", 20))
    harness.send(Number("k1", 0))
    assert [harness.state(name, "k1") for name in ("value", "items", "entries")] == [None, [], {}]
    assert [harness.state(name, "k2") for name in ("value", "items", "entries")] == [
        20,
        [20],
        {20: 20},
    ]


def test_an_accumulator_is_created_once_per_key_and_then_kept() -> None:
    """SP13: what initialises runs once for two calls; state goes 1, then 2."""
    created: list[int] = []

    def create() -> int:
        created.append(1)
        return 0

    adding: sk.Aggregate[int, int, int] = sk.Aggregate(
        create, lambda held, added: held + added, lambda held: held
    )

    @sk.process(key="key")
    def initialised(
        number: Number, sums: Annotated[sk.AggregatingState[int, int, int], adding]
    ) -> Iterator[int]:
        sums.add(1)
        yield sums.get() or 0

    harness = Harness(initialised)
    assert harness.send(Number("k", 0)) == [1]
    assert harness.send(Number("k", 0)) == [2]
    assert created == [1]


class Pair(NamedTuple):
    id1: int
    id2: int
    value: int


def test_state_keyed_by_two_fields_adds_up() -> None:
    """SP23: (0,1) starts at 789 and gets 123 and 46, (1,2) gets 146 and 346: 958 and 492."""

    @sk.process(key=("id1", "id2"))
    def add(pair: Pair, total: sk.ValueState[int]) -> None:
        total.update((total.get() or 0) + pair.value)

    harness = Harness(add, parallelism=2)
    harness.send(Pair(0, 1, 789))
    harness.send(Pair(0, 1, 123), Pair(0, 1, 46), Pair(1, 2, 146), Pair(1, 2, 346))
    assert (harness.state("total", (0, 1)), harness.state("total", (1, 2))) == (958, 492)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_batches_equal_an_oracle_in_memory(backend: Backend) -> None:
    """SP27: five batches of 200 rows over ten keys give what plain Python gives, per batch."""
    chance = random.Random(27)
    counting = Harness(running_count, parallelism=3, backend=backend)
    best = Harness(top_k(10), parallelism=3, backend=backend)
    words = Harness(word_frequency, parallelism=3, backend=backend)
    counts: Counter[str] = Counter()
    scores: dict[str, list[float]] = defaultdict(list)
    frequencies: dict[str, Counter[str]] = defaultdict(Counter)
    for _ in range(5):
        keys = [f"k{chance.randrange(10)}" for _ in range(200)]
        expected: dict[str, list[Any]] = {"counts": [], "best": [], "words": []}
        given: list[tuple[Number, Score, Word]] = []
        for key in keys:
            number, word = float(chance.randrange(100)), f"w{chance.randrange(9)}"
            given.append((Number(key, 0), Score(key, number), Word(key, word)))
            counts[key] += 1
            expected["counts"].append((key, counts[key]))
            scores[key] = sorted([*scores[key], number], reverse=True)[:10]
            expected["best"] += [(key, held) for held in scores[key]]
            frequencies[key][word] += 1
            expected["words"].append((key, word, frequencies[key][word]))
        assert Counter(counting.send(*(g[0] for g in given))) == Counter(expected["counts"])
        assert Counter(best.send(*(g[1] for g in given))) == Counter(expected["best"])
        assert Counter(words.send(*(g[2] for g in given))) == Counter(expected["words"])


# ----------------------------------------------------------------------------------------- Beam


def test_a_value_reads_as_absent_after_clear_in_the_same_call() -> None:
    """B5: clear, then write what is read and the input: always `None:` and the input."""

    @sk.process(key="key")
    def rewrite(number: Number, text: sk.ValueState[str]) -> Iterator[str]:
        text.clear()
        text.update(f"{text.get()}:{number.value}")
        yield text.get() or ""

    harness = Harness(rewrite)
    assert harness.send(*(Number("k", n) for n in (1, 3, 5))) == ["None:1", "None:3", "None:5"]


def test_a_set_can_be_cleared_and_filled_in_one_call() -> None:
    """B9, without its timer: with the fifth element the set becomes just 100."""

    @sk.process(key="key")
    def fifth(number: Number, seen: sk.MapState[int, None]) -> None:
        seen[number.value] = None
        if len(seen) == 5:
            seen.clear()
            seen[100] = None

    harness = Harness(fifth)
    harness.send(*(Number("k", n) for n in range(4)))
    assert harness.state("seen", "k") == dict.fromkeys(range(4))
    harness.send(Number("k", 4))
    assert harness.state("seen", "k") == {100: None}


def test_a_reducing_state_can_join_lists() -> None:
    """B11, without its timer: 1, 2, 3 read as 123, and after 4 as 1234."""

    @sk.process(key="key")
    def buffer(
        number: Number,
        held: Annotated[sk.ReducingState[list[int]], sk.Reduce(lambda old, new: old + new)],
    ) -> Iterator[str]:
        held.add([number.value])
        yield "".join(map(str, held.get() or ()))

    harness = Harness(buffer)
    assert harness.send(Number("k", 1), Number("k", 2), Number("k", 3))[-1] == "123"
    assert harness.send(Number("k", 4)) == ["1234"]


# -------------------------------------------------------------------------------------- bytewax


@sk.process(key="key")
def pairs(number: Number, last: sk.ValueState[int]) -> Iterator[tuple[str, int | None, int]]:
    yield number.key, last.get(), number.value
    last.update(number.value)


class Crash(Exception):
    """Stands for a process that dies."""


def numbered(values: Iterable[int]) -> list[Number]:
    return [Number("k", value) for value in values]


def run_pairs(
    path: Path, values: Iterable[int], size: int, sink: Callable[[list[Any], int], None]
) -> None:
    job = sk.Job("pairs")
    job.source("numbers", Number).process(pairs).sink("pairs")
    job.run(
        {"numbers": numbered(values)}, checkpoint=path, epoch_size=size, outputs={"pairs": sink}
    )


def test_a_crash_before_the_first_commit_replays_from_the_start(tmp_path: Path) -> None:
    """W1: the first run wrote 0, 1, 2 and crashed; the second writes 0 to 4.

    An epoch is written as a whole, and the replay has its number: a sink can replace it.
    """
    calls: list[tuple[int, list[int]]] = []

    def sink(records: list[Any], epoch: int) -> None:
        calls.append((epoch, [value for _, _, value in records]))
        if len(calls) == 1:
            raise Crash

    with pytest.raises(sk.ProcessError, match="Crash"):
        run_pairs(tmp_path, range(3), 5, sink)
    run_pairs(tmp_path, range(5), 5, sink)
    assert calls == [(0, [0, 1, 2]), (0, [0, 1, 2, 3, 4])]


def test_a_run_after_a_clean_stop_continues(tmp_path: Path) -> None:
    """W3: after 0, 1, 2 the second run writes 3, 4; the third and fourth write nothing."""
    runs = []
    for stop in (3, 5, 5, 5):
        written: list[int] = []
        run_pairs(tmp_path, range(stop), 2, lambda r, _, w=written: w.extend(v for *_, v in r))  # type: ignore[misc]
        runs.append(written)
    assert runs == [[0, 1, 2], [3, 4], [], []]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_number_of_shards_may_change_at_every_restart(tmp_path: Path, backend: Backend) -> None:
    """W5: keeping the maximum over 3, then 5, then 1 shards."""

    @sk.process(key="key")
    def keep_max(
        number: Number, most: Annotated[sk.ReducingState[int], sk.Reduce(max)]
    ) -> Iterator[tuple[str, int]]:
        most.add(number.value)
        yield number.key, most.get() or 0

    first = Harness(keep_max, parallelism=3, backend=backend)
    assert sorted(first.send(Number("a", 4), Number("b", 4))) == [("a", 4), ("b", 4)]
    first.checkpoint(tmp_path / "1")
    second = Harness.restore(keep_max, tmp_path / "1", parallelism=5, backend=backend)
    assert sorted(second.send(Number("a", 1), Number("b", 5))) == [("a", 4), ("b", 5)]
    second.checkpoint(tmp_path / "2")
    third = Harness.restore(keep_max, tmp_path / "2", parallelism=1, backend=backend)
    assert sorted(third.send(Number("a", 8), Number("b", 1))) == [("a", 8), ("b", 5)]


def test_each_key_continues_by_itself_after_a_crash() -> None:
    """W7: each output pairs the last item of its key with the new one, over a crash too."""
    harness = Harness(pairs)
    outputs = harness.send(Number("a", 1), Number("b", 1))
    assert sorted(outputs, key=str) == [("a", None, 1), ("b", None, 1)]
    harness.crash()
    outputs = harness.send(Number("a", 2), Number("b", 2))
    assert sorted(outputs) == [("a", 1, 2), ("b", 1, 2)]


# ---------------------------------------------------------------------------------------- Flink


class Command(NamedTuple):
    key: str
    do: str
    values: tuple[int, ...] = ()


def rows_kept(harness: Harness) -> int:
    """Rows in the working copies in memory, over all shards and states."""
    kept = harness._runner.copies.kept.values()  # type: ignore[attr-defined]
    return sum(size.rows for _, backend in kept for size in backend.sizes().values())


def test_empty_lists_are_absent_and_leave_no_rows() -> None:
    """F1: add, replace and clear lists; an empty list is absent; cleared keys leave no rows."""

    @sk.process(key="key")
    def lists(command: Command, items: sk.ListState[int]) -> Iterator[tuple[int, ...] | None]:
        match command.do:
            case "add":
                items.extend(command.values)
            case "update":
                items.update(command.values)
            case "clear":
                items.clear()
        yield tuple(items) if items else None

    harness = Harness(lists, parallelism=2)

    def send(key: str, *steps: tuple[str, tuple[int, ...]]) -> Any:
        return harness.send(*(Command(key, do, values) for do, values in steps))[-1]

    assert send("def", ("add", (17,)), ("add", (11,))) == (17, 11)
    assert send("def", ("update", ())) is None
    assert send("def", ("update", (10, 16))) == (10, 16)
    assert send("g", ("add", ())) is None
    assert send("g", ("add", (3, 4)), ("add", ()), ("add", (5, 6))) == (3, 4, 5, 6)
    assert send("g", ("update", (1, 2))) == (1, 2)
    assert send("g", ("add", (3, 2, 1))) == (1, 2, 3, 2, 1)
    assert rows_kept(harness) == 7
    harness.send(Command("def", "clear"), Command("g", "clear"))
    assert rows_kept(harness) == 0


def test_reduced_values_are_absent_after_clear_and_other_keys_stay() -> None:
    """F3: 17+11 is 28, 1+2 goes on to 9 while the other key is cleared; then no rows are left."""

    @sk.process(key="key")
    def sums(
        command: Command, total: Annotated[sk.ReducingState[int], sk.Reduce(sum)]
    ) -> Iterator[int | None]:
        if command.do == "clear":
            total.clear()
        for value in command.values:
            total.add(value)
        yield total.get()

    harness = Harness(sums)
    assert harness.send(Command("def", "add", (17, 11))) == [28]
    assert harness.send(Command("g", "add", (1, 2))) == [3]
    assert harness.send(Command("def", "clear")) == [None]
    assert harness.send(Command("g", "add", (3, 2, 1))) == [9]
    assert harness.state("total", "def") is None
    harness.send(Command("g", "clear"))
    assert rows_kept(harness) == 0


def test_snapshots_of_restored_state_are_complete_without_touching_it(tmp_path: Path) -> None:
    """F7: save, restore, save again without a record, restore: all three keys are there."""
    harness = Harness(keeper, parallelism=2)
    harness.send(*(Number(key, 5) for key in ("foo", "bar", "hello world")))
    harness.checkpoint(tmp_path / "1")
    second = Harness.restore(keeper, tmp_path / "1", parallelism=3)
    second.checkpoint(tmp_path / "2")
    second.send()
    second.checkpoint(tmp_path / "3")
    for path in ("2", "3"):
        third = Harness.restore(keeper, tmp_path / path)
        for key in ("foo", "bar", "hello world"):
            assert [third.state(name, key) for name in ("value", "items", "entries")] == [
                5,
                [5],
                {5: 5},
            ]


def remade(name: str, annotation: Any, key_type: Any = str) -> sk.Process[Any, ..., Any]:
    """The same operator with another type of its state, or of its key."""
    record = NamedTuple("record", [("key", key_type)])  # noqa: UP014

    def stateful(row, state) -> None: ...  # type: ignore[no-untyped-def]

    stateful.__annotations__ |= {"row": record, "state": annotation}
    stateful.__name__ = name
    return sk.process(key="key")(stateful)


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (sk.ValueState[int], sk.ValueState[str]),
        (sk.ListState[int], sk.ListState[str]),
        (sk.MapState[str, int], sk.MapState[int, int]),
        (sk.MapState[str, int], sk.MapState[str, str]),
        (
            Annotated[sk.ReducingState[int], sk.Reduce(sum)],
            Annotated[sk.ReducingState[str], sk.Reduce(sum)],
        ),
        (sk.ValueState[int], sk.ListState[int]),
    ],
    ids=str,
)
def test_a_state_of_another_type_is_refused_at_start(
    tmp_path: Path, stored: Any, declared: Any
) -> None:
    """F9: restoring with another type of a value, list, map or reduced value fails, at once."""
    first = remade("op", stored)
    Harness(first, checkpoint=tmp_path).send(first.record_type.cls("a"))
    with pytest.raises(sk.StateSchemaError, match=r"'state' of operator 'op'(.|\n)*stored"):
        Harness(remade("op", declared), checkpoint=tmp_path)


def test_a_key_of_another_type_is_refused_at_start(tmp_path: Path) -> None:
    """F9: restoring with another type of the key fails, at once."""
    first = remade("op", sk.ValueState[int])
    Harness(first, checkpoint=tmp_path).send(first.record_type.cls("a"))
    with pytest.raises(sk.StateSchemaError, match="keys cannot change their types"):
        Harness(remade("op", sk.ValueState[int], key_type=int), checkpoint=tmp_path)


def test_key_groups_come_from_the_checkpoint(tmp_path: Path) -> None:
    """F11: the stored number of key groups holds when none is given; another one is refused."""
    Harness(keeper, key_groups=16, checkpoint=tmp_path).send(Number("a", 1))
    assert Harness(keeper, checkpoint=tmp_path).key_groups == 16
    with pytest.raises(sk.RescaleError, match="16 key groups, the job asks for 32"):
        Harness(keeper, key_groups=32, checkpoint=tmp_path)
    with pytest.raises(sk.RescaleError, match="from 1 to 16"):
        Harness(keeper, parallelism=17, checkpoint=tmp_path)


STRIDED = """
import json, os, signal, sys, threading
from collections.abc import Iterator
from typing import NamedTuple
import statekit as sk

STEP = 4
checkpoint, sink, parallelism, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

class Tick(NamedTuple):
    index: int

class Out(NamedTuple):
    index: int
    value: int

@sk.process(key="index")
def sequence(tick: Tick, collected: sk.ValueState[int]) -> Iterator[Out]:
    count = collected.get() or 0
    collected.update(count + 1)
    yield Out(tick.index, count * STEP + tick.index)

def write(records: list[Out], epoch: int) -> None:
    with open(f"{sink}/draft", "w") as file:
        json.dump(records, file)
    os.rename(f"{sink}/draft", f"{sink}/{epoch:06d}.json")
    if epoch == last:
        threading.Timer(0.01 * parallelism, die).start()  # somewhere in one of the next epochs
    if epoch == last + 5:
        die()

job = sk.Job("strided")
job.source("ticks", Tick).process(sequence).sink("out")
job.run(
    {"ticks": (Tick(number % STEP) for number in range(10_000))},
    outputs={"out": write}, checkpoint=checkpoint, parallelism=parallelism,
    epoch_size=400, backend="rocksdb", working_directory=checkpoint + "-work",
)
"""


def test_sequences_have_no_gap_and_no_duplicate_after_kills(tmp_path: Path) -> None:
    """F15: four strided sequences of 10,000 numbers go on exactly over SIGKILLs of the process."""
    sink = tmp_path / "sink"
    sink.mkdir()

    def run(parallelism: int, last: int) -> int:
        arguments = [str(tmp_path / "checkpoint"), str(sink), str(parallelism), str(last)]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(STRIDED), *arguments], check=False
        )
        return done.returncode

    for parallelism, last in ((2, 4), (3, 11)):
        assert run(parallelism, last) == -signal.SIGKILL
    assert run(1, -10) == 0
    names = sorted(sink.glob("*.json"))
    assert [int(path.stem) for path in names] == list(range(25))
    collected: dict[int, int] = defaultdict(int)
    for path in names:
        for index, value in json.loads(path.read_text()):
            assert value == collected[index] * 4 + index
            collected[index] += 1
    assert dict(collected) == dict.fromkeys(range(4), 2500)


# ----------------------------------------------------------------------------------------- quix


@sk.process(key="key")
def transact(
    command: Command, value: sk.ValueState[int], entries: sk.MapState[int, int]
) -> Iterator[int | None]:
    match command.do:
        case "set":
            value.update(command.values[0])
            entries[command.values[0]] = 1
        case "delete":
            value.clear()
            for key in list(entries):
                del entries[key]
        case "fail":
            raise Crash
    yield value.get()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_in_an_epoch_writes_nothing_of_it(backend: Backend) -> None:
    """Q19: an error after writes of the same epoch leaves all keys as they were."""
    harness = Harness(transact, backend=backend)
    harness.send(Command("a", "set", (1,)))
    with pytest.raises(sk.ProcessError, match="Crash"):
        harness.send(Command("a", "set", (2,)), Command("b", "set", (2,)), Command("b", "fail"))
    assert [harness.state("value", key) for key in "ab"] == [1, None]
    assert harness.state("entries", "a") == {1: 1}


def data_files(path: Path) -> list[Path]:
    return sorted(path.glob("data/**/*.arrow"))


def test_set_and_delete_in_one_visit_is_one_tombstone_and_reading_writes_no_file(
    tmp_path: Path,
) -> None:
    """Q21: one deletion per row however often it was written before; reads leave no file."""
    harness = Harness(transact, checkpoint=tmp_path)
    steps = [("set", (1,)), ("set", (2,)), ("delete", ()), ("set", (1,)), ("delete", ())]
    harness.send(*(Command("a", do, values) for do, values in steps))
    (written,) = data_files(tmp_path)
    changes = [
        row for batch in read_changes(written.read_bytes(), "x") for row in mutations_of(batch)
    ]
    assert all(isinstance(change, Delete) for change in changes)
    assert Counter(change.state for change in changes) == {"value": 1, "entries": 2}
    assert harness.send(Command("a", "read"), Command("b", "read")) == [None, None]
    assert harness.epoch == 1
    assert data_files(tmp_path) == [written]
