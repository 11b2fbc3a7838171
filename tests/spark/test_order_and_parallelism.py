"""Results on Spark do not depend on batches or shards, and equal those of a run in one process."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import statekit as sk
from statekit.errors import UnsortedError
from statekit.job.chaining import Pass
from statekit.keygroup import key_group
from statekit.spark import epoch as epochs
from statekit.spark.frames.key_columns import PassOptions, by_one_number
from statekit.spark.worker.rows import ARRIVAL, FIRST_MARK, GROUP, INPUT
from tests.support.effort import SOAK
from tests.support.spark_job import (
    EVENT_SCHEMA,
    Event,
    by_word,
    count,
    counted,
    counting_job,
    events,
)
from tests.support.spark_runs import Runs, pieces

STATES = ("seen", "numbers", "digits", "most")


def _check(runs: Runs, given: list, outputs: list) -> None:  # type: ignore[type-arg]
    expected, states = counted(given)
    assert by_word(outputs) == by_word(expected)
    for name in STATES:
        held = runs.state("count", name)
        if name == "digits":
            held = {
                word: {int(digit): n for digit, n in dict(found).items()}
                for word, found in held.items()
            }
        assert held == states[name], name


@pytest.mark.parametrize(
    ("parallelism", "batch_size"),
    [(1, 60), (2, 200), (3, 67), (5, 100), (5, 7)] if SOAK else [(1, 60), (3, 67)],
)
def test_each_key_sees_its_records_in_the_order_of_arrival(
    runs: Runs, parallelism: int, batch_size: int
) -> None:
    given = events(seed=parallelism, size=min(200, batch_size * 4))
    for piece in pieces(given, batch_size):
        runs.feed("events", [event._asdict() for event in piece])
    sink = sk.sinks.parquet(runs.home / "out")
    query = runs.finish(
        counting_job(),
        {"events": runs.stream("events", EVENT_SCHEMA)},
        outputs={"counted": sink},
        parallelism=parallelism,
    )
    assert query.epoch == -(-len(given) // batch_size) - 1
    _check(runs, given, runs.parquet("out"))
    local = counting_job().run({"events": given}, parallelism=parallelism, epoch_size=batch_size)
    assert by_word(local["counted"]) == by_word(runs.parquet("out"))


def test_state_survives_every_change_of_parallelism(runs: Runs) -> None:
    given = events(seed=7, size=150)
    stream = runs.stream("events", EVENT_SCHEMA)
    sink = sk.sinks.parquet(runs.home / "out")
    for parallelism, piece in zip([2, 5, 1, 3, 3], pieces(given, 30), strict=True):
        runs.feed("events", [event._asdict() for event in piece])
        runs.finish(
            counting_job(), {"events": stream}, outputs={"counted": sink}, parallelism=parallelism
        )
    _check(runs, given, runs.parquet("out"))


def test_a_key_whose_records_fill_several_arrow_batches_keeps_its_order(
    runs: Runs, spark: SparkSession
) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name) or ""
    given = events(seed=3, size=90, words=2)
    spark.conf.set(name, "4")
    try:
        df = spark.createDataFrame([tuple(event) for event in given], EVENT_SCHEMA)
        sink = sk.sinks.parquet(runs.home / "out")
        runs.finish(counting_job(), {"events": df}, outputs={"counted": sink}, parallelism=2)
    finally:
        spark.conf.set(name, before)
    _check(runs, given, runs.parquet("out"))


def test_input_in_many_partitions_keeps_the_order_of_the_partitions(runs: Runs) -> None:
    given = events(seed=4, size=120)
    rows = runs.spark.sparkContext.parallelize([tuple(event) for event in given], 7)
    df = runs.spark.createDataFrame(rows, EVENT_SCHEMA)
    sink = sk.sinks.parquet(runs.home / "out")
    runs.finish(counting_job(), {"events": df}, outputs={"counted": sink}, parallelism=3)
    _check(runs, given, runs.parquet("out"))


class Visit(NamedTuple):
    page: int
    number: int


@sk.process(key="page")
def numbers_seen(visit: Visit, seen: sk.ListState[int]) -> Iterator[tuple[int, list[int]]]:
    seen.append(visit.number)
    yield visit.page, list(seen)


SHARDS = [(13, 13), (7, 32767), (13, 64), (64, 64)]


@pytest.mark.parametrize(("shards", "groups"), SHARDS if SOAK else SHARDS[:2])
def test_a_task_runs_several_shards_each_with_its_own_keys_in_order(
    runs: Runs, shards: int, groups: int
) -> None:
    """Keys of all sizes: what they are sorted by is cut, to 38 bits and more."""
    cut = [37, 45, 47, 48, 57]
    edges = [0, *(2**bits + more for bits in cut for more in (-2, -1, 0)), 2**62, 2**63 - 1]
    pages = sorted({page for edge in edges for page in (edge, -edge, -edge - 1, edge // 3)})
    visits = [Visit(page, number) for number, page in enumerate(pages * 3)]
    random.Random(shards).shuffle(visits)
    job = sk.Job("pages", key_groups=groups)
    job.source("visits", Visit).process(numbers_seen)
    df = runs.spark.createDataFrame(visits, "page bigint, number int")
    for epoch in range(2):  # the second one has few records before it, and so fewer tasks
        query = runs.finish(job, {"visits": df}, parallelism=shards)
        assert query.epoch == epoch
    expected = {page: 2 * [v.number for v in visits if v.page == page] for page in pages}
    assert runs.state("numbers_seen", "seen") == expected


class Sorted:
    """How the frames of epochs were sorted, in turn: by one number, or by all columns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_number: list[bool] = []
        monkeypatch.setattr(epochs, "PassOptions", self._options)

    def _options(self, each: Pass, shards: int, groups: int, by_number: bool) -> PassOptions:
        self.by_number.append(by_number)
        return PassOptions(each, shards, groups, by_number)


@pytest.fixture
def has_sorted(monkeypatch: pytest.MonkeyPatch) -> Sorted:
    return Sorted(monkeypatch)


def _check_pages(
    runs: Runs, count: int, partitions: int, first_page: int, *, writes: str = "noop"
) -> None:
    """Run a job over visits of ten pages, in turn, and look at what it holds."""
    job = sk.Job("pages")
    job.source("visits", Visit).process(numbers_seen, name="pages_seen").sink("out")
    page = f"{first_page} + id % 10 as page"
    df = runs.spark.range(0, count, 1, partitions).selectExpr(page, "cast(id as int) as number")
    sink = sk.sinks.writer(writes, path=runs.home / "out")
    runs.finish(job, {"visits": df}, outputs={"out": sink}, parallelism=3)
    expected = {first_page + at: list(range(at, count, 10)) for at in range(10)}
    assert runs.state("pages_seen", "seen") == expected


def test_rows_are_sorted_by_one_number_where_keys_fit(runs: Runs, has_sorted: Sorted) -> None:
    _check_pages(runs, 60, partitions=5, first_page=-5)
    assert has_sorted.by_number == [True]


def test_keys_that_do_not_fit_into_the_number_are_sorted_by_the_worker(
    runs: Runs, has_sorted: Sorted
) -> None:
    _check_pages(runs, 60, partitions=5, first_page=2**62)
    assert has_sorted.by_number == [True]


class Page(NamedTuple):
    site: str
    number: int
    on: dt.date | None
    text: str


@sk.process(key=("site", "number", "on"))
def lengths_seen(page: Page, seen: sk.ListState[int]) -> None:
    seen.append(len(page.text))


def _check_lengths(runs: Runs, df: DataFrame) -> None:
    """Run a job over pages, and look at whether it saw those of each key in their order."""
    job = sk.Job("pages", key_groups=1)
    job.source("pages", Page).process(lengths_seen)
    runs.finish(job, {"pages": df}, parallelism=1)
    expected: dict[Any, list[int]] = {}
    for site, number, on, text in df.collect():
        day = on and on.isoformat()
        expected.setdefault((site, number, day), []).append(len(text))
    assert runs.state("lengths_seen", "seen") == expected


def test_keys_of_several_fields_are_sorted_by_the_worker(runs: Runs, has_sorted: Sorted) -> None:
    rows = runs.spark.range(0, 300, 1, 4).selectExpr(
        "concat('site-', id % 7) as site",
        "cast(5 - id % 11 as int) as number",
        "if(id % 3 = 0, null, date'1970-01-01' - cast(id % 2 as int)) as on",
        "repeat('x', cast(id as int)) as text",
    )
    _check_lengths(runs, rows)
    assert has_sorted.by_number == [True]


@pytest.mark.parametrize(
    "site", ["concat('site-', 6 - id % 7)", "collate(if(id % 2 = 0, 'Abc', 'abc'), 'UTF8_LCASE')"]
)
def test_a_key_group_that_no_worker_has_memory_for_is_sorted_by_spark(
    runs: Runs, has_sorted: Sorted, site: str
) -> None:
    """By the bytes of texts, even if Spark compares them in another way."""
    rows = runs.spark.range(0, 90, 1, 3).selectExpr(
        f"{site} as site",
        "1 as number",
        "date'1970-01-01' as on",
        "repeat('x', cast(1000000 - id as int)) as text",
    )
    _check_lengths(runs, rows)
    assert has_sorted.by_number == [True, False]


class Seen(NamedTuple):
    site: str | None
    text: str


class Sold(NamedTuple):
    site: str | None
    text: str


class Banner(NamedTuple):
    number: int


@sk.process(key="site")
def histories(
    event: Seen | Sold, lengths: sk.ListState[int], banners: sk.BroadcastState[int, int]
) -> Iterator[tuple[str | None]]:
    lengths.append(len(event.text) * (1 if isinstance(event, Seen) else -1))
    lengths.append(sum(at * number for at, number in banners.items()))
    yield (event.site,)


@histories.on_broadcast
def shown(banner: Banner, banners: sk.BroadcastState[int, int]) -> None:
    banners[len(banners)] = banner.number


SITES = ["concat('site-', id % 7)", "cast(id % 7 as string)", "if(id % 2 = 0, null, 'b')"]


def _check_histories(runs: Runs, site: str, length: str, shards: int, groups: int) -> None:
    """Run a job over two inputs and a broadcast one.

    One key comes after the other, and each sees its rows input by input.
    """
    job = sk.Job("sites", key_groups=groups)
    seen, sold = job.source("seen", Seen), job.source("sold", Sold)
    banners = job.source("banners", Banner)
    seen.union(sold).process(histories, broadcast=banners).sink("sites")
    text = f"repeat('x', cast({length} as int)) as text"
    rows = [
        runs.spark.range(0, 75, 1, partitions).selectExpr(f"{site} as site", text)
        for partitions in (3, 4)
    ]
    numbers = runs.spark.range(0, 40, 1, 5).selectExpr("cast(100 - id as int) as number")
    inputs = {"seen": rows[0], "sold": rows[1], "banners": numbers}
    sink = sk.sinks.parquet(runs.home / "sites")
    runs.finish(job, inputs, outputs={"sites": sink}, parallelism=shards)
    all_shown = sum(at * (100 - at) for at in range(40))
    expected: dict[Any, list[int]] = {}
    for df, sign in zip(rows, (1, -1), strict=True):
        for name, found in df.collect():
            expected.setdefault(name, []).extend((sign * len(found), all_shown))
    assert runs.state("histories", "lengths") == expected
    in_turn = [name for name, _ in groupby(row["_1"] for row in runs.parquet("sites"))]
    assert sorted(in_turn, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("site", SITES)
def test_rows_of_several_inputs_are_sorted_by_the_worker(
    runs: Runs, has_sorted: Sorted, site: str
) -> None:
    _check_histories(runs, site, "id", shards=2, groups=5)
    assert has_sorted.by_number == [True]


def test_keys_of_all_sizes_come_input_by_input(runs: Runs, has_sorted: Sorted) -> None:
    edges = [0, *(2**bits + more for bits in (44, 45, 62) for more in (-2, -1, 0))]
    pages = sorted({page for edge in edges for page in (edge, -edge, -edge - 1)})
    visits = [Visit(page, number) for number, page in enumerate(pages * 4)]
    random.Random(1).shuffle(visits)
    job = sk.Job("pages")
    job.source("new", Visit).union(job.source("old", Visit)).process(numbers_seen)
    parts = {"new": visits[::2], "old": visits[1::2]}
    inputs = {
        name: runs.spark.createDataFrame(part, "page bigint, number int")
        for name, part in parts.items()
    }
    runs.finish(job, inputs, parallelism=3)
    come = [*parts["new"], *parts["old"]]
    expected = {page: [v.number for v in come if v.page == page] for page in pages}
    assert runs.state("numbers_seen", "seen") == expected
    assert has_sorted.by_number == [True]


def test_a_key_group_of_several_inputs_that_no_worker_has_memory_for_is_sorted_by_spark(
    runs: Runs, has_sorted: Sorted
) -> None:
    _check_histories(runs, SITES[0], "1000000 - id", shards=1, groups=1)
    assert has_sorted.by_number == [True, False]


def test_rows_whose_outputs_a_writer_might_keep_of_a_failed_attempt_are_sorted_by_all_columns(
    runs: Runs, has_sorted: Sorted
) -> None:
    _check_pages(runs, 60, partitions=5, first_page=2**62, writes="json")
    assert has_sorted.by_number == [False]
    assert runs.spark.read.json(str(runs.home / "out")).count() == 60


def test_an_epoch_that_is_found_unsorted_after_a_sink_is_written_again(runs: Runs) -> None:
    """As when a block of a frame is lost that was kept, and is made again."""
    job = sk.Job("pages")
    seen = job.source("visits", Visit).process(numbers_seen)
    seen.sink("files")
    seen.sink("function")
    epochs_given: list[int] = []

    def fails_once(df: DataFrame, epoch: int) -> None:
        epochs_given.append(epoch)
        if len(epochs_given) == 1:
            raise UnsortedError("the rows of a shard are not in order", "numbers_seen")

    df = runs.spark.range(60).selectExpr("id % 10 as page", "cast(id as int) as number")
    outputs = {"files": sk.sinks.parquet(runs.home / "out"), "function": fails_once}
    runs.finish(job, {"visits": df}, outputs=outputs, parallelism=3)
    assert epochs_given == [0, 0]
    assert len(runs.parquet("out")) == 60


KEYS = [
    0,
    *(sign * (2**bits + more) for bits in (36, 44, 62) for sign in (-1, 1) for more in (-2, 0)),
]


@pytest.mark.parametrize(("shards", "groups"), [(1, 1), (3, 128), (7, 32768)])
def test_the_number_rows_are_sorted_by_follows_group_key_and_partition(
    spark: SparkSession, shards: int, groups: int
) -> None:
    fit = 2 ** (63 - groups.bit_length() - 11) - 2
    whole = [None, *sorted(key for key in KEYS if abs(key) < fit)]
    rows = [
        (group, key, (partition << 33) + row)
        for group in sorted({0, groups // 2, groups - 1})
        for key in whole
        for partition, row in [(0, 0), (0, 9), (1, 3), (1022, 0)]
    ]
    marks = [(-1 - shard, None, None) for shard in range(shards)]
    cut = [(0, key, 0) for key in (-(2**63), -fit - 1, fit + 1, 2**63 - 1)]
    schema = f"{GROUP} int, page bigint, {ARRIVAL} bigint"
    df = spark.createDataFrame([*rows, *marks, *cut], schema)
    order = by_one_number(df, ("page",), shards, groups)
    number = {row[:3]: row[3] for row in map(tuple, df.select("*", order).collect())}
    for row, following in pairwise(rows):  # equal for one key and partition only
        same = row[:2] == following[:2] and row[2] >> 33 == following[2] >> 33
        assert number[row] == number[following] if same else number[row] < number[following]
    for shard, mark in enumerate(marks):
        first = -(-shard * groups // shards)
        assert all((number[mark] < number[row]) == (first <= row[0]) for row in rows)
    lowest, *between, highest = (number[row] for row in cut)
    assert number[rows[0]] < lowest <= between[0] < number[rows[4]]
    assert number[rows[4 * len(whole) - 1]] < between[1] <= highest


@pytest.mark.parametrize("key", [("text",), ("page", "text"), ()])
def test_of_keys_that_no_number_sorts_like_group_and_partition_are_in_the_number(
    spark: SparkSession, key: tuple[str, ...]
) -> None:
    rows = [(group, place << 33) for group in (0, 1, 127) for place in (0, 1, 1022)]
    df = spark.createDataFrame(rows, f"{GROUP} int, {ARRIVAL} bigint")
    df = df.selectExpr("*", "1 as page", f"cast(-{ARRIVAL} as string) as text")
    found = df.select(by_one_number(df, key, 3, 128)).collect()
    assert [row[0] for row in found] == sorted({row[0] for row in found})


@pytest.mark.parametrize(("inputs", "told_apart"), [(2, 6), (3, 9), (1023, 3), (5000, 1)])
def test_rows_of_several_inputs_are_sorted_by_input_before_partition(
    spark: SparkSession, inputs: int, told_apart: int
) -> None:
    numbers = sorted({0, 1, inputs - 1})
    places = [(number, place << 33) for number in numbers for place in (0, 1, 1022)]
    rows: list[tuple[int | None, ...]] = []
    for shard, group in enumerate((0, 43)):  # the first ones of two shards of three
        rows.append((FIRST_MARK - shard, None, None, None))
        rows += [(FIRST_MARK - shard, None, *place) for place in places]
        rows += [(group, key, *place) for key in (None, -7, 2**60) for place in places]
    schema = f"{GROUP} int, page bigint, {INPUT} int, {ARRIVAL} bigint"
    df = spark.createDataFrame(rows, schema)
    order = by_one_number(df, ("page",), 3, 128, inputs=inputs)
    found = [row[0] for row in df.select(order).collect()]
    assert found == sorted(found)
    # The key that is cut has no place for where it came from.
    assert len(set(found)) == 2 * (1 + 3 * told_apart + 1)


def test_more_partitions_than_a_number_can_distinguish(runs: Runs) -> None:
    _check_pages(runs, 1100, partitions=1100, first_page=0)


def test_shards_without_records_report_like_the_others(runs: Runs) -> None:
    # Two words, sixteen shards; once in the sink's own action and once with frames that are kept.
    given = events(seed=5, size=10, words=2)
    df = runs.spark.createDataFrame([tuple(event) for event in given], EVENT_SCHEMA)
    sinks = (sk.sinks.parquet(runs.home / "out"), lambda df, epoch: None)
    for sink in sinks:
        query = runs.finish(
            counting_job(), {"events": df}, outputs={"counted": sink}, parallelism=16
        )
        assert query.last_progress is not None
        assert query.last_progress.records_in == len(given)
    assert sum(runs.state("count", "seen").values()) == 2 * len(given)


@sk.process(key="word")
def only_large(event: Event, seen: sk.ValueState[int]) -> Iterator[Event]:
    seen.update((seen.get() or 0) + 1)
    if event.number >= 1000:
        yield event


@pytest.mark.parametrize("kept", [False, True])
def test_epochs_commit_without_any_record_and_when_an_operator_puts_out_nothing(
    runs: Runs, kept: bool
) -> None:
    # Spark leaves out what it can prove to be empty: before it runs, and between two stages.
    job = sk.Job("sparse")
    job.source("events", Event).process(only_large).process(count).sink("counted")
    sink = (lambda df, epoch: df.collect()) if kept else sk.sinks.parquet(runs.home / "out")
    for given, expected in (([], 0), ([("a", 1)], 1), ([], 1), ([("a", 1000)], 2)):
        df = runs.spark.createDataFrame(given, EVENT_SCHEMA)
        runs.finish(job, {"events": df}, outputs={"counted": sink}, parallelism=3)
        assert sum(runs.state("only_large", "seen").values()) == expected
    assert runs.state("count", "numbers") == {"a": [1000]}
    assert runs.epochs() == [0, 1, 2, 3]


def test_a_job_with_fewer_key_groups_than_cores_starts_by_default(runs: Runs) -> None:
    given = events(seed=6, size=10)
    df = runs.spark.createDataFrame([tuple(event) for event in given], EVENT_SCHEMA)
    sink = sk.sinks.parquet(runs.home / "out")
    runs.finish(counting_job(key_groups=1), {"events": df}, outputs={"counted": sink})
    _check(runs, given, runs.parquet("out"))


class Numbered(NamedTuple):
    number: int | None
    arrival: int


@sk.process(key="number")
def visited(record: Numbered, seen: sk.ValueState[int]) -> Iterator[Numbered]:
    seen.update(record.arrival)
    yield record


def test_keys_are_visited_in_the_order_of_their_rows(runs: Runs, spark: SparkSession) -> None:
    """Numbers of any size and nulls: reads then go through each shard once, from front to back."""
    edges = [0, 2**31, 2**46 - 1, 2**46, 2**46 + 1, 2**47, 2**62, 2**63 - 1]
    numbers = [None, -(2**63), *(sign * edge for edge in edges for sign in (1, -1)), *range(40)]
    draw = random.Random(5)
    given = [Numbered(draw.choice(numbers), arrival) for arrival in range(600)]
    df = spark.createDataFrame([tuple(record) for record in given], "number bigint, arrival int")
    job = sk.Job("visits", key_groups=4)
    job.source("records", Numbered).process(visited).sink("out")
    runs.finish(
        job, {"records": df}, outputs={"out": sk.sinks.parquet(runs.home / "out")}, parallelism=1
    )
    found = [Numbered(row["number"], row["arrival"]) for row in runs.parquet("out")]

    def place(record: Numbered) -> tuple[int, bytes, int]:
        number = record.number
        return key_group(number, 4), visited.key_codec.encode(number), record.arrival

    assert found == sorted(given, key=place)
