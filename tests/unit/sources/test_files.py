"""Sources of files: every record once, and in order, however files come and grow."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import json
import logging
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.errors import ConnectorError, StateTypeError
from statekit.records.union import records_of
from statekit.sources import FileSource, Source


class Order(NamedTuple):
    number: int
    customer: str = "ada"


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"number":%d}\n' % number for number in numbers)


def write(path: Path, content: bytes) -> Path:
    """Write a file as a careful writer does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"_{path.name}")
    draft.write_bytes(content)
    return draft.rename(path)


_OPENED: list[Source] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _OPENED:
        _OPENED.pop().close()


class Reader:
    """Reads a source epoch by epoch, with offsets that go through JSON."""

    def __init__(self, source: Source, *, reads_here: bool = True) -> None:
        self.source, self.reads_here = source, reads_here
        _OPENED.append(source)
        source.open(reads_here=reads_here)
        self.offsets = source.earliest()
        self.decode = source.decoder(records_of(Order, where="orders"), "orders")
        self.bad: list[Any] = []

    def epoch(self, limit: int = 1_000_000) -> list[Any]:
        """The records of the next epoch; none if there is no new one."""
        end = json.loads(json.dumps(self.source.latest(self.offsets, limit, 0.0)))
        if end == self.offsets:
            return []
        source = self.source if self.reads_here else pickle.loads(pickle.dumps(self.source))
        records = []
        for batch in source.read("all", self.offsets["all"], end["all"]):
            decoded = self.decode("all", batch)
            records += decoded.records
            self.bad += decoded.bad
        again = pickle.loads(pickle.dumps(self.source))
        count = sum(b.num_rows for b in again.read("all", self.offsets["all"], end["all"]))
        assert count == len(records) + len(self.bad), "read again with the same offsets"
        self.offsets = end
        return records

    def numbers(self, limit: int = 1_000_000) -> list[int]:
        return [record.number for record in self.epoch(limit)]

    def restarted(self) -> Reader:
        """Another run from the same offsets."""
        self.source.close()
        other = Reader(pickle.loads(pickle.dumps(self.source)), reads_here=self.reads_here)
        other.offsets = self.offsets
        return other


def test_files_are_read_in_the_order_of_their_names_and_new_ones_follow(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", lines(3, 4))
    write(tmp_path / "a.jsonl", lines(1, 2))
    write(tmp_path / "day=1" / "c.jsonl", lines(5))
    for hidden in ("_draft.jsonl", ".hidden", "x.tmp", "y~", "_staged/z.jsonl"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(lines(99))
    reader = Reader(sk.sources.json_lines(tmp_path))
    assert reader.numbers() == [1, 2, 3, 4, 5]
    assert reader.numbers() == []
    write(tmp_path / "day=2" / "a.jsonl", lines(6))
    assert reader.restarted().numbers() == [6]


@pytest.mark.parametrize("reads_here", [True, False])
def test_files_are_split_over_epochs(tmp_path: Path, reads_here: bool) -> None:
    write(tmp_path / "a", lines(*range(10)))
    write(tmp_path / "b", lines())
    write(tmp_path / "c", lines(10, 11))
    reader = Reader(sk.sources.json_lines(tmp_path), reads_here=reads_here)
    assert reader.numbers(4) == [0, 1, 2, 3]
    assert reader.offsets["all"]["at"] == len(lines(0, 1, 2, 3))
    assert reader.restarted().numbers(4) == [4, 5, 6, 7]
    assert [reader.numbers(4), reader.numbers(4)] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert reader.numbers(4) == []


@pytest.mark.parametrize("suffix", [".gz", ".zst", ""])
def test_compressed_files_are_read_and_split(tmp_path: Path, suffix: str) -> None:
    content = lines(*range(1000))
    packed = {".gz": gzip.compress, ".zst": zstd, "": gzip.compress}[suffix](content)
    write(tmp_path / f"a.jsonl{suffix}", packed)
    reader = Reader(sk.sources.json_lines(tmp_path))
    assert reader.numbers(300) == list(range(300))
    assert reader.restarted().numbers() == list(range(300, 1000))
    for cut in (len(packed) - 4, 12, 0):
        (tmp_path / f"a.jsonl{suffix}").unlink(missing_ok=True)
        write(tmp_path / f"b.jsonl{suffix}", packed[:cut])
        if suffix or cut:
            with pytest.raises(ConnectorError, match=r"b\.jsonl.*cannot be read as json"):
                Reader(sk.sources.json_lines(tmp_path)).epoch()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def test_blank_lines_a_byte_order_mark_and_a_missing_last_end_are_fine(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"number":1}\r\n\r\n\n{"number":2}\nnonsense\r\n{"number":3}'
    write(tmp_path / "a.jsonl", content)
    reader = Reader(sk.sources.json_lines(tmp_path / "a.jsonl"))
    assert reader.numbers() == [1, 2, 3]
    (bad,) = reader.bad
    assert bad.value == b"nonsense"
    assert json.loads(bad.offset) == {"byte": content.index(b"nonsense"), "file": "a.jsonl"}


def test_long_lines_are_read(tmp_path: Path) -> None:
    long = b'{"number":1,"customer":"%s"}\n' % (b"x" * 5_000_000)
    write(tmp_path / "a.jsonl", lines(0) + long + lines(2))
    assert [len(of.customer) for of in Reader(sk.sources.json_lines(tmp_path)).epoch()] == [
        3,
        5_000_000,
        3,
    ]


@pytest.mark.parametrize("partly", [True, False])
def test_a_file_that_changes_after_it_was_read_is_refused(tmp_path: Path, partly: bool) -> None:
    path = write(tmp_path / "a.jsonl", lines(1, 2, 3))
    reader = Reader(sk.sources.json_lines(tmp_path))
    reader.numbers(2 if partly else 9)
    before = path.stat()
    with path.open("ab") as file:
        file.write(lines(4))
    with pytest.raises(ConnectorError, match=r"a\.jsonl has changed since it was read"):
        reader.restarted().epoch()
    path.write_bytes(lines(1, 2, 3))
    with pytest.raises(ConnectorError, match="as it was, with") as refused:
        reader.restarted().epoch()
    (size, modified), *_ = re.findall(
        r"with (\d+) bytes .* modification (\S+),", str(refused.value)
    )
    assert int(size) == before.st_size
    os.utime(path, (0, dt.datetime.fromisoformat(modified).timestamp()))
    assert len(reader.restarted().epoch()) == (1 if partly else 0)


def test_a_file_that_is_gone_before_it_was_read_to_its_end_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(1, 2, 3))
    reader = Reader(sk.sources.json_lines(tmp_path))
    reader.numbers(2)
    path.unlink()
    with pytest.raises(ConnectorError, match=r"a\.jsonl was removed before it was read"):
        reader.restarted().epoch()


def test_a_complete_file_may_be_removed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(1))
    reader = Reader(sk.sources.json_lines(tmp_path))
    assert reader.numbers() == [1]
    path.unlink()
    write(tmp_path / "b.jsonl", lines(2))
    assert reader.restarted().numbers() == [2]


def test_a_file_that_sorts_before_others_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "b.jsonl", lines(2))
    reader = Reader(sk.sources.json_lines(tmp_path))
    assert reader.numbers() == [2]
    write(tmp_path / "a.jsonl", lines(1))
    with caplog.at_level(logging.WARNING, "statekit.sources"):
        while not caplog.records:  # a listing is used for some milliseconds
            assert reader.numbers() == []
        assert reader.numbers() == []
    (record,) = caplog.records
    assert "1 file is not read, a.jsonl: it appeared after b.jsonl was read" in record.getMessage()


def test_files_that_appear_before_the_last_one_while_no_job_runs_are_reported_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at(write(tmp_path / "m", lines(1)), 1000)
    at(write(tmp_path / "c", lines(2)), 1005)
    reader = Reader(sk.sources.json_lines(tmp_path))
    assert reader.numbers() == [2, 1]
    at(write(tmp_path / "n", lines(3)), 1003)
    reader = reader.restarted()
    assert reader.numbers() == [3]
    for number, name in enumerate(("a", "b", "z"), start=4):
        at(write(tmp_path / name, lines(number)), 1006)
    with caplog.at_level(logging.WARNING, "statekit.sources"):
        reader = reader.restarted()
        assert reader.numbers() == [6]
        reader.numbers()
    (record,) = caplog.records
    assert "2 files are not read, such as a: they appeared after n was read" in (
        record.getMessage()
    )


def test_files_that_were_read_are_not_reported_at_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at(write(tmp_path / "a", lines(1)), 1009)
    at(write(tmp_path / "b", lines(2)), 1000)
    reader = Reader(sk.sources.json_lines(tmp_path))
    assert reader.numbers() == [1, 2]
    at(write(tmp_path / "c", lines(3)), 1001)
    reader = reader.restarted()
    assert reader.numbers() == [3]
    with caplog.at_level(logging.WARNING, "statekit.sources"):
        assert reader.restarted().numbers() == []
    assert not caplog.records


@pytest.mark.parametrize("names", [["a", "b", "c"], ["b", "c", "d"]], ids=" ".join)
def test_files_that_appear_in_the_order_of_their_names_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str]
) -> None:
    if names[0] > "a":
        write(tmp_path / "a", lines(0))
    reader = Reader(sk.sources.json_lines(tmp_path))
    reader.numbers()
    with caplog.at_level(logging.WARNING, "statekit.sources"):
        for number, name in enumerate(names):
            write(tmp_path / name, lines(number))
            while not (read := reader.numbers()):  # a listing is used for some milliseconds
                continue
            assert read == [number]
            reader.numbers()
    assert not caplog.records


@pytest.mark.parametrize("writes", [sk.sinks.json_lines, sk.sinks.delta], ids=["files", "delta"])
def test_a_relative_path_is_that_of_the_process_that_declared_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Callable[[str], Any]
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "orders").mkdir(parents=True)
    elsewhere.mkdir()
    write(home / "orders" / "a", lines(1))
    monkeypatch.chdir(home)
    stored = pickle.dumps((sk.sources.json_lines("orders"), writes("results")))
    monkeypatch.chdir(elsewhere)  # a worker of Spark, whose JVM was started here
    source, sink = pickle.loads(stored)
    assert Reader(source).numbers() == [1]
    assert sink.path == str(home / "results")
    assert sk.sources.json_lines("orders").path == "orders"  # as documents and messages have it


def at(path: Path, second: float) -> Path:
    os.utime(path, (second, second))
    return path


def test_by_time_late_files_are_read_within_the_look_back(tmp_path: Path) -> None:
    source = sk.sources.json_lines(tmp_path, order="time", look_back=dt.timedelta(seconds=10))
    at(write(tmp_path / "z", lines(1)), 1000)
    at(write(tmp_path / "a", lines(2)), 1005)
    reader = Reader(source)
    assert reader.numbers() == [1, 2]
    at(write(tmp_path / "m", lines(3)), 996)  # late
    assert reader.restarted().numbers() == [3]
    at(write(tmp_path / "n", lines(4)), 994)  # too late
    at(write(tmp_path / "b", lines(5)), 1020)
    reader = reader.restarted()
    assert reader.numbers() == [3, 5]
    assert [of[0] for of in reader.offsets["all"].get("recent", [])] == []
    at(write(tmp_path / "b", lines(5, 6)), 1021)
    with pytest.raises(ConnectorError, match="b has changed"):
        reader.restarted().epoch()


def test_a_growing_file_is_followed_by_complete_lines(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(lines(1) + b'{"num')
    reader = Reader(sk.sources.json_lines(path, tail=True))
    assert reader.numbers() == [1]
    assert reader.numbers() == []
    with path.open("ab") as file:
        file.write(b'ber":2}\n' + lines(3))
    assert reader.numbers(1) == [2]
    assert reader.restarted().numbers() == [3]


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(lines(1, 2))
    reader = Reader(sk.sources.json_lines(path, tail=True))
    assert reader.numbers(1) == [1]
    with path.open("ab") as file:
        file.write(lines(3))
    path.rename(tmp_path / "app.log.1")
    assert reader.restarted().numbers(1) == [2], "though no new file is there yet"
    path.write_bytes(lines(4))
    before = reader.offsets
    assert reader.restarted().numbers() == [2, 3, 4]
    assert reader.numbers() == [2, 3, 4]
    (tmp_path / "app.log.1").rename(tmp_path / "app.log.2")
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(lines(5))
    assert reader.restarted().numbers() == [5]
    again = pickle.loads(pickle.dumps(reader.source)).read(
        "all", before["all"], reader.offsets["all"]
    )
    assert sum(batch.num_rows for batch in again) == 3, "an old epoch is still the same"


def test_a_growing_file_that_is_truncated_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(lines(1, 2))
    reader = Reader(sk.sources.json_lines(path, tail=True))
    assert reader.numbers() == [1, 2]
    os.truncate(path, 3)
    with pytest.raises(ConnectorError, match="3 bytes, and 26 were read"):
        reader.epoch()


def test_files_that_grow_in_a_directory_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "1.log").write_bytes(lines(1))
    reader = Reader(sk.sources.json_lines(tmp_path, tail=True))
    assert reader.numbers() == [1]
    with (tmp_path / "1.log").open("ab") as file:
        file.write(lines(2))
    (tmp_path / "2.log").write_bytes(lines(3)[:-1])
    assert reader.restarted().numbers() == [2]


@pytest.mark.parametrize("reads_here", [True, False])
def test_parquet_and_arrow_are_read_by_rows(tmp_path: Path, reads_here: bool) -> None:
    table = pa.table({"number": range(100), "customer": ["x"] * 100})
    (tmp_path / "p").mkdir()
    (tmp_path / "i").mkdir()
    pq.write_table(table, tmp_path / "p" / "a.parquet", row_group_size=30)
    with pa.ipc.new_file(tmp_path / "i" / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    with pa.ipc.new_stream(tmp_path / "i" / "b.arrows", table.schema) as writer:
        writer.write_table(table.slice(50), max_chunksize=30)
    reader = Reader(sk.sources.parquet(tmp_path / "p"), reads_here=reads_here)
    assert reader.numbers(45) == list(range(45))
    assert reader.restarted().numbers() == list(range(45, 100))
    reader = Reader(sk.sources.arrow(tmp_path / "i"), reads_here=reads_here)
    assert reader.numbers(45) == list(range(45))
    assert reader.restarted().numbers() == [*range(45, 100), *range(50, 100)]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_truncated_tables_are_refused_by_name(tmp_path: Path, format: Any) -> None:
    table = pa.table({"number": range(100)})
    whole = tmp_path / "whole"
    if format == "parquet":
        pq.write_table(table, whole)
    else:
        with pa.ipc.new_file(whole, table.schema) as writer:
            writer.write_table(table)
    for size in (0, 5, whole.stat().st_size // 2, whole.stat().st_size - 5):
        part = tmp_path / f"part-{size}"
        part.write_bytes(whole.read_bytes()[:size])
        with pytest.raises(ConnectorError, match=rf"part-{size} cannot be read as {format}"):
            Reader(sk.sources.files(part, format)).epoch()


@dataclasses.dataclass
class Row:
    code: str
    number: int
    price: float | None
    at: dt.datetime
    note: str | None = None
    tags: list[int] = dataclasses.field(default_factory=list)
    raw: bytes = b""


def rows_of(source: Source, cls: Any) -> tuple[list[Any], list[Any]]:
    source.open(reads_here=True)
    end = source.latest(source.earliest(), 1000, 0.0)["all"]
    decode = source.decoder(records_of(cls, where="rows"), "rows")
    decoded = [decode("all", batch) for batch in source.read("all", None, end)]
    return [r for of in decoded for r in of.records], [b for of in decoded for b in of.bad]


AT = dt.datetime(2026, 1, 31, 6, tzinfo=dt.UTC)


def test_cells_of_csv_have_the_types_of_their_fields(tmp_path: Path) -> None:
    content = (
        "number,code,more,at,price,note,tags,raw\n"
        '1,007,x,2026-01-31T06:00:00Z,1.5,"two\nlines, ""quoted""","[1,2]",ff\n'
        "2,,x,2026-01-31 07:00:00+01:00,,,,\n"
        "x,8,x,2026-01-31T06:00:00Z,,,,\n"
        "3,8,x,2026-01-31T06:00:00,,,,\n"
        '4,NA,x,2026-01-31T06:00:00Z,NaN,"",,\n'
        "5,9\n"
    )
    write(tmp_path / "a.csv", content.encode())
    records, bad = rows_of(sk.sources.csv(tmp_path), Row)
    assert records[:2] == [
        Row("007", 1, 1.5, AT, 'two\nlines, "quoted"', [1, 2], b"\xff"),
        Row("", 2, None, AT),
    ]
    assert (records[2].code, repr(records[2].price), records[2].note) == ("NA", "nan", "")
    assert [of.value.partition(b",")[0] for of in bad] == [b"x", b"3", b"5"]
    assert "no time zone" in bad[1].error
    assert json.loads(bad[0].offset)["byte"] == content.index("x,8")


class Plain(NamedTuple):
    code: str
    number: int | None
    flag: bool
    day: dt.date


def test_plain_columns_of_csv_are_read_quickly_and_split(tmp_path: Path) -> None:
    row = '00{0},{0},true,2026-01-0{0},"a\n{0}"\n'
    content = "code,number,flag,day,text\n" + "".join(row.format(n) for n in range(1, 9))
    write(tmp_path / "a.csv.gz", gzip.compress(content.encode()))
    write(tmp_path / "b.csv", content.encode())
    records, bad = rows_of(sk.sources.csv(tmp_path), Plain)
    assert records == 2 * [Plain(f"00{n}", n, True, dt.date(2026, 1, n)) for n in range(1, 9)]
    assert not bad


@sk.process(key="number")
def passed_on(row: Row) -> Iterator[Row]:
    yield row


def test_a_job_reads_what_sinks_have_written(tmp_path: Path) -> None:
    row = Row("007", 1, float("inf"), AT, 'a,\n"b"', [1], b"\x00")
    other = Row("", 2, None, AT, None, [], b"")
    for name in ("json_lines", "csv", "parquet"):
        out = tmp_path / name
        job = sk.Job("shop")
        job.source("rows", Row).process(passed_on).sink("out")
        job.run({"rows": [row, other]}, outputs={"out": getattr(sk.sinks, name)(out)})
        records, bad = rows_of(getattr(sk.sources, name)(out), Row)
        assert (records, bad) == ([row, other], []), name


def test_patterns_and_hostile_names_are_read(tmp_path: Path) -> None:
    strange = ["a b.jsonl", "ä☃.jsonl", "[x].jsonl", "100%.jsonl", "q?.jsonl", "#1.jsonl"]
    for number, name in enumerate(sorted(strange)):
        write(tmp_path / "in[1]" / name, lines(number))
    assert Reader(sk.sources.json_lines(tmp_path / "in[1]")).numbers() == list(range(6))
    write(tmp_path / "x" / "day=1" / "a.jsonl", lines(1))
    write(tmp_path / "x" / "day=1" / "a.txt", lines(2))
    write(tmp_path / "x" / "y" / "day=2" / "b.jsonl", lines(3))
    for pattern, numbers in {
        "x/*/*.jsonl": [1],
        "x/**/*.jsonl": [1, 3],
        "x/day=[1-9]/?.*": [1, 2],
        "x/day=[!2-9]/*a*l": [1],
        "x?day=1/a.jsonl": [],
        "x[!a]day=1/a.jsonl": [],
        "x/none*": [],
    }.items():
        assert Reader(sk.sources.json_lines(tmp_path / pattern)).numbers() == numbers, pattern


def test_a_missing_path_and_contradictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="there is no such file or directory"):
        sk.sources.json_lines(tmp_path / "none").open(reads_here=True)
    with pytest.raises(StateTypeError, match="tail=True follows lines"):
        sk.sources.parquet(tmp_path, tail=True)
    with pytest.raises(StateTypeError, match="a static table does not grow"):
        sk.sources.json_lines(tmp_path, tail=True, static=True)
    with pytest.raises(StateTypeError, match="password"):
        sk.sources.json_lines("s3://key:secret@bucket/x").open(reads_here=True)
    with pytest.raises(StateTypeError, match="rows of CSV have one type"):
        sk.sources.csv(tmp_path).decoder(records_of(dict, where="rows"), "rows")


def test_waiting_for_a_file_ends_when_there_is_one(tmp_path: Path) -> None:
    source: FileSource = sk.sources.json_lines(tmp_path)
    source.open(reads_here=True)
    start = source.earliest()
    assert source.latest(start, 10, 0.05) == start
    write(tmp_path / "a", lines(1))
    assert source.latest(start, 10, 60.0) != start
    assert not source.is_bounded
    assert sk.sources.json_lines(tmp_path, static=True).is_bounded
