"""Processors of Spark run in the harness without a JVM."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

import statekit as sk
from statekit.checkpoint.repository import Repository
from statekit.spark.tws.sql_values import parsed_schema
from statekit.testing import Harness, JobHarness, check
from statekit.testing.processors import InitialState, as_process
from tests.support.instants import at
from tests.support.places import ROOT
from tests.support.tws_processors import Frames, columns

CLICKS = columns(user="string", page="string", at="timestamp")
TOLD = columns(user="string", told="string")
IN_TIME: dict[str, Any] = {"time_mode": "eventTime", "watermark": ("at", "10 seconds")}


class Visits(StatefulProcessor):
    """Keeps the pages of a visit in states of all kinds; a minute without a page ends it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", columns(ends="long"))
        self.pages = handle.getListState("pages", columns(page="string"))
        self.counts = handle.getMapState("counts", columns(page="string"), columns(n="integer"))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (n,) = self.counts.getValue((row.page,)) or (0,)
            self.counts.updateValue((row.page,), (n + 1,))
            self.pages.appendValue((row.page,))
            ends = int(row.at.timestamp() * 1000) + 60_000
            if (last := self.last.get()) is not None:
                ends = max(ends, last[0])
                self.handle.deleteTimer(last[0])
            self.last.update((ends,))
            self.handle.registerTimer(ends)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        pages = [page for (page,) in self.pages.get()]
        counts = {page: n for (page,), (n,) in self.counts.iterator()}
        yield Row(told=repr((pages, counts)), user=key.user)
        for state in (self.last, self.pages, self.counts):
            state.clear()

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.pages.appendValue((initialState.seen,))


def visits(**options: Any) -> sk.Process[Any, Any, Any]:
    return as_process(CLICKS, "user", Visits(), TOLD, **{**IN_TIME, **options})


def click(user: str, page: str, seconds: int) -> dict[str, Any]:
    return {"user": user, "page": page, "at": at(seconds)}


def test_states_of_all_kinds_and_timers_are_kept_through_crashes_and_other_parallelism() -> None:
    harness = Harness(visits(), parallelism=3)
    assert harness.send(click("ada", "/", 100), Row(user="ada", page="/buy", at=at(120))) == []
    harness.crash()
    harness.rescale(2)
    assert harness.send(("ada", "/", at(110)), click("bob", "/", 130)) == []
    assert harness.state("last", "ada").ends == 180_000
    assert [timer.at for timer in harness.timers("ada")] == [at(180)]
    (row,) = harness.advance_watermark(at(185))
    assert row == Row(user="ada", told=repr((["/", "/buy", "/"], {"/": 2, "/buy": 1})))
    assert row.user == "ada"  # by the names of the schema, whatever the order of what was yielded
    assert harness.state("counts", "ada") == {}
    assert [timer.at for timer in harness.timers("bob")] == [at(190)]


def test_a_row_behind_the_watermark_of_the_batch_before_is_late() -> None:
    harness = Harness(visits())
    harness.send(click("ada", "/", 100))
    harness.send(click("ada", "/buy", 50), click("ada", "/", 200))  # the watermark was not known
    harness.send(click("ada", "/late", 90), click("ada", "/in-time", 91))
    assert [row.page for row in harness.late] == ["/late"]
    assert [of.page for of in harness.state("counts", "ada")] == ["/", "/buy", "/in-time"]


class Seen(StatefulProcessor):
    """Yields the rows of a key as it gets them."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", columns(n="integer"))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (n,) = self.count.get() or (0,)
            self.count.update((n + 1,))
            yield Row(told=repr(row), user=repr(key))


def seen(schema: StructType, *keys: str, **options: Any) -> Harness:
    return Harness(as_process(schema, keys, Seen(), TOLD, **options))


def test_a_row_without_event_time_is_never_late() -> None:
    harness = seen(columns(user="string", at="timestamp"), "user", **IN_TIME)
    harness.send(("ada", at(100)))
    harness.send(("ada", at(200)))
    assert [row.told for row in harness.send({"user": "ada"})] == ["Row(user='ada', at=None)"]
    assert harness.late == []


class Expiring(StatefulProcessor):
    """Counts the rows of a key, and forgets them ten seconds after the last one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", columns(n="integer"), 10_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.count.get() or (0,)
        self.count.update((n + len(list(rows)),))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 4_000)
        yield Row(user=key[0], told=f"{self.count.get()[0]} rows")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(user=key[0], told=f"timer at {expiredTimerInfo.getExpiryTimeInMs()}")


def test_a_ttl_and_timers_by_processing_time_follow_the_clock_of_the_harness() -> None:
    process = as_process(
        columns(user="string"), "user", Expiring(), TOLD, "update", "processingTime"
    )
    harness = Harness(process)

    def told(rows: list[Row]) -> list[str]:
        return [row.told for row in rows]

    assert told(harness.send(("ada",), ("ada",))) == ["2 rows"]
    assert told(harness.advance_processing_time(at(9))) == ["timer at 4000"]
    assert told(harness.send(("ada",))) == ["3 rows"]
    assert told(harness.advance_processing_time(at(19))) == ["timer at 13000"]
    assert told(harness.send(("ada",))) == ["1 rows"]


BEFORE = InitialState(
    columns(who="string", seen="string"), "who", [("ada", "/old"), Row(who="bob", seen="/x")]
)


def test_initial_state_is_handled_once_and_before_all_rows() -> None:
    harness = Harness(visits(initial_state=BEFORE), parallelism=2)
    harness.send(click("ada", "/", 100))
    harness.crash()
    harness.send(click("ada", "/buy", 101))
    assert [of.page for of in harness.state("pages", "ada")] == ["/old", "/", "/buy"]
    assert [of.page for of in harness.state("pages", "bob")] == ["/x"]


def test_an_epoch_that_fails_handles_the_initial_state_again() -> None:
    harness = Harness(visits(initial_state=BEFORE))
    with pytest.raises(sk.ProcessError, match="NoneType"):
        harness.send({"user": "ada", "page": "/"})  # the processor needs a time
    assert harness.epoch is None
    harness.send()
    assert [of.page for of in harness.state("pages", "ada")] == ["/old"]


def test_a_processor_takes_frames_of_pandas() -> None:
    pytest.importorskip("pandas")
    schema = columns(name="string", id="long", value="double", at="timestamp", small="integer")
    initial = InitialState(columns(id="long", held="double"), ["id"], [(0, 1.5), (0, 2.5)])
    process = as_process(
        schema,
        ["id"],
        Frames(),
        columns(key="string", told="string", count="long", total="double"),
        initial_state=initial,
        time_mode="eventTime",
        watermark=("at", "1 second"),
    )
    harness = Harness(process)
    given = ("a", 0, 1, at(3), 7), ("b", 0, 0.5, at(4), None), (None, 1, 2, at(4), 1)
    rows = sorted(harness.send(*given), key=lambda row: row.key)
    assert {(row.key, row["count"], row.total) for row in rows} == {
        ("(0,)", 202, 5.5),
        ("(1,)", 1, 2.0),
    }
    types = ["datetime64[ns]", "float64", "float64", "int64", "object"]
    assert rows[0].told == repr(([2], ["name", "id", "value", "at", "small"], types))
    assert [row.told for row in harness.advance_watermark(at(8))] == [
        repr(("timer", 8000, (202, 5.5)))
    ]


# ------------------------------------------------------------------------------- rows and keys


def test_rows_have_the_values_that_spark_would_pass() -> None:
    schema = columns(
        user="string",
        d="double",
        m=MapType(StringType(), IntegerType()),
        x=columns(p="integer", q=ArrayType(StringType())),
        n="timestamp_ntz",
        amount="decimal(6,2)",
        absent="integer",
    )
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    row = {"user": "ada", "d": 1, "m": {"a": 1}, "x": Row(p=1, q=["b"]), "n": noon}
    (found,) = seen(schema, "user").send({**row, "amount": Decimal("1.5")})
    assert found.told == (
        "Row(user='ada', d=1.0, m=[('a', 1)], x={'p': 1, 'q': ['b']}, "
        "n=datetime.datetime(2026, 1, 1, 12, 0), amount=Decimal('1.50'), absent=None)"
    )


def test_instants_without_a_time_zone_are_in_local_time_as_on_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Echo(Seen):
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            return (Row(user=row.user, at=row.at, told=row.at.isoformat()) for row in rows)

    process = as_process(
        CLICKS, "user", Echo(), columns(user="string", at="timestamp", told="string")
    )
    noon = dt.datetime(2026, 1, 1, 12)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        (row,) = Harness(process).send({"user": "ada", "at": noon})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert row == Row(user="ada", at=noon, told="2026-01-01T03:00:00+00:00")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"usr": "ada"}, "has 'usr', and rows have the columns user, n"),
        (Row(user="ada", m=1), "has 'm', and rows have the columns user, n"),
        ({"user": "ada", "n": "x"}, "does not fit .*, column 'n' of type int: Arrow"),
        (("ada",), "is no row with the columns user, n"),
        (7, "7 is no row with the columns user, n"),
    ],
)
def test_a_row_that_does_not_fit_the_schema_is_an_error(row: Any, told: str) -> None:
    with pytest.raises(sk.ProcessError, match=told):
        seen(columns(user="string", n="integer"), "user").send(row)


def test_an_output_that_does_not_fit_the_schema_is_an_error() -> None:
    process = as_process(
        columns(user="string"), "user", Seen(), columns(user="integer", told="string")
    )
    with pytest.raises(sk.ProcessError, match="does not fit the output schema"):
        Harness(process).send(("ada",))


def test_keys_within_columns_and_of_several_types_are_those_of_spark() -> None:
    schema = columns(
        k=columns(name="string", amount="decimal(6,2)"), d="double", n="timestamp_ntz", day="date"
    )
    harness = seen(schema, "k.name", "k.amount", "d", "n", "day")
    half, day = dt.datetime(2020, 1, 1, 0, 0, 1, 500_000), dt.date(2020, 1, 2)
    row = {"name": "ada", "amount": Decimal("0.5")}, 0.0, half, day
    assert len(harness.send(row, (row[0], -0.0, half, day))) == 2
    stored = ("ada", "0.50", "0.0", "2020-01-01 00:00:01.5", day)
    assert harness.state("count", stored).n == 2


def test_a_key_that_only_spark_computes_is_refused() -> None:
    with pytest.raises(sk.StateTypeError, match="grouped by a of type array<int>, and only Spark"):
        seen(columns(a=ArrayType(IntegerType())), "a").send(([1],))


# --------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize("initial", [None, BEFORE])
def test_a_processor_is_checked_with_rows_of_its_schema(initial: InitialState | None) -> None:
    excused = {} if initial is None else {"leftovers": "users without a visit stay"}
    check(visits(initial_state=initial), excused=excused, depth="quick")


def test_rows_of_all_types_are_made() -> None:
    schema = columns(
        k=columns(b="decimal(5,2)"),
        t="byte",
        s="short",
        i="integer",
        l="long",
        f="float",
        d="double",
        c="decimal(5,2)",
        x="string",
        r="binary",
        o="boolean",
        day="date",
        at="timestamp",
        n="timestamp_ntz",
        v=DayTimeIntervalType(),
        a=ArrayType(IntegerType()),
        m=MapType(StringType(), DoubleType()),
        e=columns(p="integer"),
        z="void",
    )
    check(as_process(schema, ["k.b", "l", "d", "n"], Seen(), TOLD), depth="quick")


def test_a_column_whose_values_cannot_be_made_is_named() -> None:
    process = as_process(columns(user="string", v="variant"), "user", Seen(), TOLD)
    with pytest.raises(sk.StateTypeError, match=r"no values of .*VariantType"):
        check(process)
    check(process, events=[{"user": "ada"}, {"user": "bob"}], holds=["repeats"], depth="quick")


class NeverCleared(Visits):
    """Sets a timer for each page, and forgets to delete it."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.pages.appendValue((row.page,))
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + 60_000)
        yield from ()


def test_a_mistake_is_found_and_shown_as_rows() -> None:
    process = as_process(CLICKS, "user", NeverCleared(), TOLD, **IN_TIME)
    with pytest.raises(AssertionError) as failed:
        check(process, depth="quick")
    told = str(failed.value)
    assert "NeverCleared: 'leftovers' does not hold" in told
    assert re.search(r"\{'user': '.*', 'page': '.*', 'at': datetime\.datetime\(", told)
    assert "check(process, history=history, holds={'leftovers': None})" in told


# ------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"watermark": ("when", "1 second")}, "watermark=.*'when'.*: they have user, page, at"),
        ({"time_mode": "wall"}, "time_mode='wall'"),
        ({"output_mode": "upsert"}, "output_mode='upsert'"),
        ({"initial_state": [("ada", "/")]}, "initial_state is list"),
        ({"event_time_column": "when"}, "event_time_column='when'"),
    ],
)
def test_an_option_that_is_not_valid_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(sk.StateTypeError, match=told):
        visits(**options)


def test_a_processor_with_initial_state_has_one_input() -> None:
    process, job = visits(initial_state=BEFORE), sk.Job("site")
    rows: Any = process.record_type
    web, app = (job.source(name, rows) for name in ("web", "app"))
    web.union(app).process(process).sink("visits")
    with pytest.raises(sk.StateTypeError, match="inputs web, app: give it one input"):
        JobHarness(job).send(web=[click("ada", "/", 100)])


def test_ddl_without_a_session_is_an_error_that_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(sk.StateTypeError) as failed:
        as_process("user string", "user", Seen(), TOLD)
    assert str(failed.value) == (
        "schema: only Spark can read the DDL 'user string', and there is no session. Give a "
        "StructType, such as StructType().add('n', 'integer'), or its JSON, or create a "
        "SparkSession before"
    )


def test_a_schema_may_be_json() -> None:
    schema = columns(user="string", at="timestamp")
    assert parsed_schema(schema.json(), "schema") == schema


@pytest.mark.parametrize("schema", ["{}", "{", '{"type": "integer"}', '{"type": "struct"}', 7])
def test_what_is_no_schema_is_an_error(schema: object) -> None:
    with pytest.raises(sk.StateTypeError, match=r"state 'n': .* is no schema: give a StructType"):
        parsed_schema(schema, "state 'n'")


def test_processors_run_where_there_is_no_java(tmp_path: Path) -> None:
    """The other tests of this file, in a process that cannot start a JVM."""
    nowhere = {"JAVA_HOME": str(tmp_path / "java"), "PATH": str(tmp_path)}
    words = ["-m", "pytest", "-q", "--whole", "-p", "no:cacheprovider"]
    others = "not no_java and not all_types"
    done = subprocess.run(
        [sys.executable, *words, "-k", others, __file__],
        cwd=ROOT,
        env={**os.environ, **nowhere, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 deselected" in done.stdout


# ------------------------------------------------------------------------------- names of columns


class Counts(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: Any) -> None:
        self.number = handle.getValueState("number", columns(n="long"))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.number.get() or (0,)
        self.number.update((n + len(list(rows)),))
        yield Row(n=self.number.get()[0])

    def close(self) -> None:
        pass


SALES = columns(
    buyer="string", seller="string", shop=columns(city="string", town="string"), at="timestamp"
)
SOLD = columns(
    customer="string",
    seller="string",
    shop=columns(place="string", town="string"),
    time="timestamp",
)
SALE = {"buyer": "a", "seller": "b", "shop": ("c", "d"), "at": at(100)}
AS_SOLD = {"customer": "a", "seller": "b", "shop": ("c", "d"), "time": at(100)}
NEW_NAMES = {"buyer": "customer", "shop.city": "shop.place", "at": "time"}


def counts(
    schema: StructType, *keys: str, time: str = "at", **options: Any
) -> sk.Process[Any, Any, Any]:
    watermark = time, "10 seconds"
    options |= {"time_mode": "eventTime", "watermark": watermark}
    return as_process(schema, keys, Counts(), columns(n="long"), **options)


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (("buyer", "seller"), ("seller", "buyer")),
        (("buyer",), ("seller",)),
        (("shop.city",), ("shop.town",)),
        (("buyer",), ("shop.town",)),
        (("shop.town",), ("buyer",)),
    ],
)
def test_other_grouping_columns_of_the_same_types_are_refused(
    stored: tuple[str, ...], declared: tuple[str, ...]
) -> None:
    repository = Repository.in_memory()
    Harness(counts(SALES, *stored), checkpoint=repository)
    assert Harness(counts(SALES, *stored), checkpoint=repository).send(SALE) == [Row(n=1)]
    with pytest.raises(sk.StateSchemaError, match="keyed by other fields"):
        Harness(counts(SALES, *declared), checkpoint=repository)


def test_another_column_with_event_time_is_refused() -> None:
    repository, schema = Repository.in_memory(), columns(SALES, seen="timestamp")
    Harness(counts(schema, "buyer"), checkpoint=repository).send({**SALE, "seen": at(9)})
    with pytest.raises(sk.StateSchemaError, match="from 'at' in the checkpoint and from 'seen'"):
        Harness(counts(schema, "buyer", time="seen"), checkpoint=repository)


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        (("buyer", "seller"), ("customer", "seller")),
        (("shop.city", "buyer"), ("shop.place", "customer")),
    ],
)
def test_renamed_columns_are_said_to_be_renamed(
    stored: tuple[str, ...], declared: tuple[str, ...]
) -> None:
    repository = Repository.in_memory()
    names = {old: new for old, new in NEW_NAMES.items() if old in (*stored, "at")}
    Harness(counts(SALES, *stored), checkpoint=repository).send(SALE)
    with pytest.raises(sk.StateSchemaError, match="renamed="):
        Harness(counts(SOLD, *declared, time="time"), checkpoint=repository)
    renamed = counts(SOLD, *declared, time="time", renamed=names)
    assert Harness(renamed, checkpoint=repository).send(AS_SOLD) == [Row(n=2)]


def test_columns_in_another_case_are_the_same_as_on_spark() -> None:
    repository = Repository.in_memory()
    Harness(counts(SALES, "buyer"), checkpoint=repository).send(SALE)
    names = {"buyer": "Buyer", "at": "At"}
    upper_case = columns(**{names.get(of.name, of.name): of.dataType for of in SALES})
    upper = counts(upper_case, "buyer", time="At")
    sale = {"Buyer": "a", "seller": "b", "shop": ("c", "d"), "At": at(100)}
    assert Harness(upper, checkpoint=repository).send(sale) == [Row(n=2)]


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"buyer": "nobody"}, "no such column"),
        ({"seller": "buyer"}, "still has a field 'seller'"),
        ({"shop": 3}, "give a dict of names"),
    ],
)
def test_what_is_no_renaming_of_columns_is_refused(renamed: Any, message: str) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        counts(SALES, "buyer", renamed=renamed)
