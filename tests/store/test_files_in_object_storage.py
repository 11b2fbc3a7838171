"""A source of files in a bucket of a real S3 server."""

from __future__ import annotations

import gzip
import json
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statekit as sk
from statekit.checkpoint.store import Store
from statekit.errors import ConnectorError
from statekit.records.union import records_of
from statekit.sources import FileSource
from tests.support.s3_server import FAULTS, FaultyProxy


class Line(NamedTuple):
    number: int


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"number":%d}\n' % number for number in numbers)


def epoch(source: FileSource, start: Any, limit: int = 1000) -> tuple[Any, list[int]]:
    end = json.loads(json.dumps(source.latest(start, limit, 0.0)))
    if end == start:
        return end, []
    decode = source.decoder(records_of(Line, where="lines"), "lines")
    batches = source.read("all", start["all"], end["all"])
    return end, [record.number for batch in batches for record in decode("all", batch).records]


def test_new_objects_are_read_once_in_the_order_of_their_names(s3: str) -> None:
    store = Store(f"{s3}/in")
    store.replace("b.jsonl", lines(3, 4, 5))
    store.replace("day=1/c.jsonl.gz", gzip.compress(lines(6)))
    store.replace("a.jsonl", lines(1, 2))
    store.replace("_staged/x.jsonl", lines(99))
    source = sk.sources.json_lines(f"{s3}/in")
    source.open(reads_here=True)
    at, first = epoch(source, source.earliest(), 4)
    source.close()
    again = sk.sources.json_lines(f"{s3}/in")
    again.open(reads_here=True)
    at, second = epoch(again, at)
    assert (first, second) == ([1, 2, 3, 4], [5, 6])
    store.replace("day=2/a.jsonl", lines(7))
    again.close()
    at, third = epoch(again, at)
    assert third == [7]
    again.close()


def test_patterns_single_objects_and_parquet_are_read(s3: str) -> None:
    store = Store(f"{s3}/in")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"number": range(100_000)}), sink, row_group_size=10_000)
    store.replace("x/a.parquet", sink.getvalue().to_pybytes())
    store.replace("x/a.txt", b"other")
    for path in ("in/*/*.parquet", "in/x/a.parquet"):
        source = sk.sources.parquet(f"{s3}/{path}")
        source.open(reads_here=True)
        at, first = epoch(source, source.earliest(), 70_000)
        _, second = epoch(source, at, 70_000)
        source.close()
        assert first + second == list(range(100_000))


def test_an_object_that_changes_and_a_missing_bucket_are_errors(s3: str) -> None:
    store = Store(f"{s3}/in")
    store.replace("a.jsonl", lines(1, 2, 3))
    source = sk.sources.json_lines(f"{s3}/in")
    source.open(reads_here=False)
    at, _ = epoch(source, source.earliest(), 2)
    store.replace("a.jsonl", lines(1, 2, 3, 4))
    with pytest.raises(ConnectorError, match=r"a\.jsonl has changed since it was read"):
        epoch(source, at)
    with pytest.raises(ConnectorError, match="none-such"):
        sk.sources.json_lines("s3://none-such/in").open(reads_here=True)


def test_faults_that_pass_are_not_seen_and_a_poll_asks_for_what_is_new(
    s3: str, proxy: FaultyProxy
) -> None:
    store = Store(f"{s3}/in")
    for number in range(8):
        store.replace(f"{number}.jsonl", lines(number))
    source = sk.sources.json_lines(f"{s3}/in")
    source.open(reads_here=True)
    proxy.__dict__.update(rate=0.2, kinds=[kind for kind in FAULTS if kind != "hang"])
    at, numbers = epoch(source, source.earliest())
    assert numbers == list(range(8))
    assert proxy.done
    proxy.rate = 0.0
    source.close()
    proxy.requests.clear()
    assert epoch(source, at) == (at, [])
    ((method, path),) = proxy.requests
    assert method == "GET"
    assert "start-after" in path
    assert path.endswith("7.jsonl")
    source.close()
