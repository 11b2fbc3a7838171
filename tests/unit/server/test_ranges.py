"""Ranges of keys and of map keys, read in every way, against a list in plain Python.

A job has two stores. A replica, a server, both clients and the commands read the same ranges with
the same arguments as `KVStore.scan` and `KVStore.count`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statekit as sk
from statekit.query import AsyncClient, Client
from tests.support.effort import SOAK
from tests.support.invoked import invoked
from tests.support.served import Sale, sell, server

EXAMPLES = 1_000 if SOAK else 60
KINDS = ["", "a", "ab", "b"]
NUMBERS = [-(2**63), -1, 0, 1, 2, 2**63 - 1]
CELLS = [(kind, number) for kind in KINDS for number in (0, 7, 2**63 - 1)]
CLOSED = ["left", "right", "both", "none"]


class Fact(NamedTuple):
    number: int
    cell: tuple[str, int]
    value: int


FACTS = [Fact(number, cell, at) for number in NUMBERS for at, cell in enumerate(CELLS)]


def ranges_job() -> tuple[sk.Job, list[Any]]:
    job = sk.Job("ranges")
    facts = job.source("facts", Fact)
    last = job.add(sk.KVStore("last", key=int, value=int))
    last.put(facts, key="number", value="value")
    cells = job.add(sk.KVStore("cells", key=int, sort=tuple[str, int], value=int))
    cells.put(facts, key="number", sort="cell", value="value")
    by_cell = job.add(sk.KVStore("by_cell", key=tuple[str, int], sort=bytes, value=int))
    by_cell.put(
        facts,
        key=lambda fact: fact.cell,
        sort=lambda fact: fact.number.to_bytes(8, signed=True),
        value="value",
    )
    return job, [store.function for store in (last, cells, by_cell)]


class Reads(NamedTuple):
    """Everything that reads the state of the job."""

    address: str
    checkpoint: str
    plain: sk.Replica
    typed: sk.Replica
    functions: list[Any]


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reads]:
    place = str(tmp_path_factory.mktemp("ranges") / "checkpoint")
    job, functions = ranges_job()
    job.run({"facts": FACTS}, checkpoint=place, parallelism=3)
    with (
        server({"ranges": place}) as address,
        sk.Replica(place) as plain,
        sk.Replica(place, functions=functions) as typed,
    ):
        yield Reads(address, place, plain, typed, functions)


class Range(NamedTuple):
    """A range of keys and the part of it to read."""

    start: Any = None
    end: Any = None
    prefix: Any = None
    closed: Any = "left"
    reverse: bool = False
    limit: int | None = None
    offset: int = 0

    def of(self, keys: list[Any]) -> list[Any]:
        """The keys that are read, in order."""
        within = [key for key in sorted(keys) if self._has(key)]
        ordered = within[::-1] if self.reverse else within
        return list(islice(ordered[self.offset :], self.limit))

    def _has(self, key: Any) -> bool:
        if self.start is not None and key < self.start:
            return False
        if self.end is not None and key > self.end:
            return False
        if key == self.start and self.closed in ("right", "none"):
            return False
        if key == self.end and self.closed in ("left", "none"):
            return False
        return self.prefix is None or begins(key, self.prefix)

    @property
    def selection(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("start", "end", "prefix", "closed")}

    @property
    def whole(self) -> Range:
        """The range without what selects a part of it."""
        return self._replace(reverse=False, limit=None, offset=0)


def begins(key: Any, prefix: Any) -> bool:
    return bool(key[: len(prefix)] == prefix)


def ranges(keys: list[Any], prefixes: list[Any]) -> st.SearchStrategy[Range]:
    bound = st.none() | st.sampled_from(keys)
    return st.builds(
        Range,
        start=bound,
        end=bound,
        prefix=st.none() | st.sampled_from(prefixes) if prefixes else st.none(),
        closed=st.sampled_from(CLOSED),
        reverse=st.booleans(),
        limit=st.none() | st.integers(1, 12),
        offset=st.integers(0, 4),
    )


OF_NUMBERS = ranges([*NUMBERS, 5], [])
OF_CELLS = ranges([*CELLS, ("a", 5)], [(), ("",), ("a",), ("a", 7), ("c",)])
OF_BYTES = ranges(
    [number.to_bytes(8, signed=True) for number in NUMBERS] + [b"", b"\xff"],
    [b"", b"\x00", b"\xff", b"\xff\xff", b"\x80"],
)


def sent(of: Range) -> dict[str, str]:
    """The range as parameters of an address."""
    given = {name: own for name, own in of.selection.items() if own is not None}
    texts = {name: json.dumps(shown(own)) for name, own in given.items() if name != "closed"}
    found = texts | {"closed": of.closed, "offset": str(of.offset)}
    found |= {"reverse": "true"} if of.reverse else {}
    return found | ({} if of.limit is None else {"limit": str(of.limit)})


def shown(key: Any) -> Any:
    if isinstance(key, tuple):
        return [shown(part) for part in key]
    return key.hex() if isinstance(key, bytes) else key


def plain(keys: list[Any]) -> list[Any]:
    """Keys as a replica without the functions has them."""
    found = map(shown, keys)
    return [tuple(key) if isinstance(key, list) else key for key in found]


def keys_of(items: Any) -> list[Any]:
    return [tuple(key) if isinstance(key, list) else key for key, _ in items]


# ----------------------------------------------------------------------------------- replicas


@settings(max_examples=EXAMPLES, deadline=None)
@given(numbers=OF_NUMBERS, cells=OF_CELLS, raw=OF_BYTES)
def test_a_replica_reads_and_counts_ranges(
    reads: Reads, numbers: Range, cells: Range, raw: Range
) -> None:
    for replica, form in ((reads.typed, list), (reads.plain, plain)):
        with replica.at() as view:
            for state, of, keys in (("last", numbers, NUMBERS), ("by_cell", cells, CELLS)):
                own = view.state(state, "values" if state == "by_cell" else "value")
                given = of._asdict()
                assert keys_of(own.scan(**given)) == form(of.of(keys))
                rows = len(of.whole.of(keys)) * (len(NUMBERS) if state == "by_cell" else 1)
                assert own.count(**of.selection) == rows
                assert paged(own, given) == form(of.of(keys))
            entries, key = view.state("by_cell", "values"), CELLS[4]
            expected = [number.to_bytes(8, signed=True) for number in NUMBERS]
            assert keys_of(entries.entries(key, **raw._asdict())) == form(raw.of(expected))
            assert entries.count_of(key, **raw.selection) == len(raw.whole.of(expected))


def paged(state: Any, given: dict[str, Any]) -> list[Any]:
    """The keys of the same scan, read in pages of three."""
    found: list[Any] = []
    cursor, offset, limit = None, given.pop("offset"), given.pop("limit")
    while True:
        own = {"offset": offset} if cursor is None else {"cursor": cursor}
        page = state.page(**given, **own, limit=3)
        found += keys_of(page.items)
        cursor = page.cursor
        if cursor is None:
            return found[:limit]


# ----------------------------------------------------------------------------- HTTP and clients


@settings(max_examples=EXAMPLES, deadline=None)
@given(numbers=OF_NUMBERS, cells=OF_CELLS, raw=OF_BYTES)
def test_a_server_reads_and_counts_ranges(
    reads: Reads, numbers: Range, cells: Range, raw: Range
) -> None:
    with httpx.Client(base_url=f"{reads.address}/ranges", timeout=30) as http:

        def value(path: str, params: dict[str, str]) -> Any:
            answer = http.get(path, params=params)
            assert answer.status_code == 200, answer.text
            return answer.json()["value"]

        for path, of, keys, each in (
            ("/last/value", numbers, NUMBERS, 1),
            ("/by_cell/values", cells, CELLS, len(NUMBERS)),
        ):
            assert keys_of(value(path, sent(of))["items"]) == plain(of.of(keys))
            counted = value(path, sent(of.whole) | {"count": "true"})
            assert counted == each * len(of.whole.of(keys))
        expected = [number.to_bytes(8, signed=True) for number in NUMBERS]
        key = {"key": json.dumps(CELLS[4])}
        found = value("/by_cell/values", key | sent(raw))
        assert keys_of(found) == plain(raw.of(expected))
        counted = value("/by_cell/values", key | sent(raw.whole) | {"count": "true"})
        assert counted == len(raw.whole.of(expected))


@settings(max_examples=EXAMPLES, deadline=None)
@given(numbers=OF_NUMBERS, cells=OF_CELLS, page=st.sampled_from([1, 2, 1_000]))
def test_both_clients_read_and_count_ranges_in_pages_of_any_size(
    reads: Reads, numbers: Range, cells: Range, page: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statekit.query.client._PAGE_ROWS", page)
        for functions, form in (([], plain), (reads.functions, list)):
            with Client(reads.address, functions=functions) as client:
                of_numbers = client.scan("ranges", "last", "value", **numbers._asdict())
                assert keys_of(of_numbers) == form(numbers.of(NUMBERS))
                entries = client.entries("ranges", "cells", "values", 0, **cells._asdict())
                assert keys_of(entries) == form(cells.of(CELLS))
                place = ("ranges", "cells", "values")
                counted = client.count(*place, key=0, **cells.selection)
                assert counted == (len(cells.whole.of(CELLS)), 0)
                rows = client.count("ranges", "last", "value", **numbers.selection).value
                assert rows == len(numbers.whole.of(NUMBERS))
        asyncio.run(read_in_a_loop(reads, numbers, cells))


async def read_in_a_loop(reads: Reads, numbers: Range, cells: Range) -> None:
    async with AsyncClient(reads.address, functions=reads.functions) as client:
        found = client.scan("ranges", "last", "value", **numbers._asdict())
        assert keys_of([item async for item in found]) == numbers.of(NUMBERS)
        entries = client.entries("ranges", "cells", "values", 0, **cells._asdict())
        assert [item async for item in entries] == [
            (cell, CELLS.index(cell)) for cell in cells.of(CELLS)
        ]
        counted = await client.count("ranges", "cells", "values", key=0, **cells.selection)
        assert counted.value == len(cells.whole.of(CELLS))


# ------------------------------------------------------------------------------------- commands


def printed(*words: str) -> list[Any]:
    done = invoked(*words)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def options(of: Range) -> list[str]:
    """The range as options of a command."""
    bounds = {name: own for name, own in of.selection.items() if own is not None}
    words = [f"--closed={bounds.pop('closed')}"]
    for name, own in bounds.items():
        text = shown(own)
        words.append(f"--{name}={text if isinstance(text, str) else json.dumps(text)}")
    return words


def part(of: Range) -> list[str]:
    limit = [] if of.limit is None else [f"--limit={of.limit}"]
    return [*limit, f"--offset={of.offset}"]


@settings(max_examples=max(5, EXAMPLES // 6), deadline=None)
@given(numbers=OF_NUMBERS, cells=OF_CELLS, raw=OF_BYTES)
def test_scan_prints_and_counts_ranges(
    reads: Reads, numbers: Range, cells: Range, raw: Range
) -> None:
    place = ("scan", reads.checkpoint)
    whole = printed(*place, "last", "value", *options(numbers), "--json")
    keys = [row["key"] for row in whole]
    assert sorted(keys) == numbers.whole.of(NUMBERS)
    some = printed(*place, "last", "value", *options(numbers), *part(numbers), "--json")
    limit = None if numbers.limit is None else numbers.offset + numbers.limit
    assert some == whole[numbers.offset : limit]
    assert printed(*place, "last", "value", *options(numbers), "--count") == [len(keys)]
    of_cell = (*place, "by_cell", "values", "--key", json.dumps(CELLS[4]), *options(raw))
    expected = raw.whole.of([number.to_bytes(8, signed=True) for number in NUMBERS])
    assert printed(*of_cell, "--count") == [len(expected)]
    of_number = (*place, "cells", "values", "--key", "7", *options(cells))
    assert printed(*of_number, "--count") == [0], "there is no such key"


@settings(max_examples=max(5, EXAMPLES // 6), deadline=None)
@given(numbers=OF_NUMBERS, cells=OF_CELLS, raw=OF_BYTES)
def test_query_prints_and_counts_ranges(
    reads: Reads, numbers: Range, cells: Range, raw: Range
) -> None:
    def command(state: tuple[str, str], of: Range, *key: str) -> list[str]:
        return ["query", reads.address, "ranges", *state, *key, *options(of)]

    def reverse(of: Range) -> list[str]:
        of = of if of.limit is not None else of._replace(limit=100)  # else it prints the whole map
        return [*part(of), *(["--reverse"] if of.reverse else [])]

    of_numbers = command(("last", "value"), numbers)
    assert keys_of(printed(*of_numbers, *reverse(numbers))) == numbers.of(NUMBERS)
    assert printed(*of_numbers, "--count") == [len(numbers.whole.of(NUMBERS))]
    of_cells = command(("cells", "values"), cells, "-1")
    assert keys_of(printed(*of_cells, *reverse(cells))) == cells.of(CELLS)
    assert printed(*of_cells, "--count") == [len(cells.whole.of(CELLS))]
    of_bytes = command(("by_cell", "values"), raw, json.dumps(CELLS[4]))
    expected = [number.to_bytes(8, signed=True) for number in NUMBERS]
    assert keys_of(printed(*of_bytes, *reverse(raw))) == plain(raw.of(expected))


# ---------------------------------------------------------------------------------- refused values


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/last/value?closed=yes", "closed: Input should be 'left', 'right', 'both' or 'none'"),
        ("/last/value?closed=", "closed: Input should be 'left'"),
        ("/last/value?offset=-1", "offset: Input should be greater than or equal to 0"),
        ("/last/value?offset=10001", "offset: Input should be less than or equal to 10000"),
        ("/last/value?offset=1e3", "offset: Input should be a valid integer"),
        ("/last/value?limit=0", "limit: Input should be greater than or equal to 1"),
        ("/last/value?count=maybe", "count: Input should be a valid boolean"),
        ("/last/value?count=true&limit=1", "leave limit=, offset= and reverse= out"),
        ("/last/value?count=true&cursor=x", "cursor"),
        ("/last/value?start=null&closed=right", "is not a key"),
        ("/last/value?start=1.5", "is not a key"),
        ('/last/value?prefix="1"', "prefix"),
        ("/last/value?key=1&count=true", "are for maps and lists"),
        ("/last/value?key=1&closed=both", "are for maps and lists"),
        ('/cells/values?key=1&entry=["a",7]&offset=1', "entry= reads one entry"),
        ('/cells/values?key=1&start=["a"]', "is not a key"),
        ("/cells/values/1?closed=open", "closed: Input should be 'left'"),
        ("/cells/values/1?offset=-1", "greater than or equal to 0"),
    ],
)
def test_a_wrong_range_is_refused_with_what_is_expected(
    reads: Reads, path: str, message: str
) -> None:
    answer = httpx.get(f"{reads.address}/ranges{path}")
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["detail"]


def test_an_offset_with_a_cursor_is_refused(reads: Reads) -> None:
    first = httpx.get(f"{reads.address}/ranges/last/value?limit=1&offset=1").json()["value"]
    place = f"{reads.address}/ranges/last/value?limit=1&cursor={first['cursor']}"
    assert httpx.get(place).json()["value"]["items"][0][0] == NUMBERS[2]
    assert "leave one of them out" in httpx.get(f"{place}&offset=1").json()["detail"]
    with reads.plain.at() as view:
        state = view.state("last", "value")
        cursor = state.page(limit=1).cursor
        with pytest.raises(sk.QueryError, match="Leave one of them out"):
            state.page(cursor=cursor, offset=1)
        with pytest.raises(sk.QueryError, match="another start or end, prefix or closed="):
            state.page(NUMBERS[0], cursor=cursor, closed="right")


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "closed": ({"closed": "yes"}, sk.StateTypeError, "use one of left, right, both, none"),
    "closed of another type": ({"closed": ["left"]}, sk.StateTypeError, "use one of left"),
    "limit": ({"limit": -1}, sk.StatekitError, "limit=-1: give a number"),
    "limit as text": ({"limit": "5"}, sk.StatekitError, "limit='5': give a number"),
    "offset": ({"offset": -1}, sk.StatekitError, "offset=-1: give a number"),
    "offset of another type": ({"offset": True}, sk.StatekitError, "offset=True: give a number"),
    "start": ({"start": "one"}, sk.StatekitError, "is not a key"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_replicas_and_clients_refuse_wrong_ranges(reads: Reads, case: str) -> None:
    given, error, message = WRONG[case]
    with reads.plain.at() as view, Client(reads.address) as client:
        own = view.state("last", "value")
        scans: list[Callable[[], Any]] = [
            lambda: own.scan(**given),
            lambda: own.page(**given),
            lambda: list(client.scan("ranges", "last", "value", **given)),
        ]
        for scan in scans:
            with pytest.raises(error, match=message):
                scan()


def test_huge_limits_and_offsets_are_no_faults(reads: Reads) -> None:
    with reads.plain.at() as view:
        own = view.state("last", "value")
        assert len(list(own.scan(limit=10**30))) == len(NUMBERS)
        assert not list(own.scan(offset=10**30))
        cells = view.state("cells", "values")
        assert len(list(cells.entries(0, limit=10**30))) == len(CELLS)
        assert not list(cells.entries(0, offset=10**30))


def test_null_is_no_bound_that_closed_changes(tmp_path: Path) -> None:
    @sk.process(key="name")
    def last(fact: dict[str, Any], value: sk.ValueState[int]) -> None:
        value.update(fact["at"])

    job = sk.Job("names")
    job.source("facts", dict).process(last)
    facts = [{"name": None, "at": 1}, {"name": "a", "at": 2}]
    job.run({"facts": facts}, checkpoint=tmp_path / "names")
    with server({"names": tmp_path / "names"}) as address:

        def read(query: str) -> Any:
            answer = httpx.get(f"{address}/names/last/value?{query}")
            return answer.json().get("value", answer.json().get("detail"))

        assert read("end=null") == {"items": [], "cursor": None}
        assert read("end=null&count=true") == 0
        assert read("start=null&count=true") == 2
        assert "null, which is before all other keys" in read("start=null&closed=right")
        assert "null, which is before all other keys" in read("end=null&closed=both")


def test_the_commands_refuse_options_that_do_not_fit(reads: Reads) -> None:
    scan = ("scan", reads.checkpoint, "last", "value")
    query = ("query", reads.address, "ranges", "last", "value")
    for words, message in (
        ((*scan, "--closed", "open"), "left"),
        ((*scan, "--count", "--limit", "1"), "leave --limit, --offset and --column out"),
        ((*query, "--count", "--offset", "1"), "leave --limit, --offset and --reverse out"),
        ((*query, "--follow", "--start", "1"), "leave the rest out"),
        ((*query, "--follow", "--limit", "1"), "leave the rest out"),
        ((*query, "--closed", "open"), "left"),
    ):
        done = invoked(*words, env={**os.environ, "COLUMNS": "200"})
        assert done.exit_code == 2
        assert message in done.output.replace("\n", " ")


def test_ranges_may_be_of_an_earlier_epoch(tmp_path: Path) -> None:
    home = tmp_path / "sales"
    records = [Sale("rome", "tea", 400), Sale("rome", "pot", 2100), Sale("oslo", "cup", 900)]
    sell(home, records[:1])
    with server({"shop": home}) as address, Client(address) as client:
        keys, items = ("shop", "sales", "total"), ("shop", "sales", "items", "rome")
        first = client.get(*keys, "rome").epoch
        sell(home, records)
        last = client.count(*keys, min_epoch=first + 2, wait=10).epoch
        assert list(client.scan(*keys)) == [("oslo", 900), ("rome", 2500)]
        for epoch, total, of_rome in (
            (first, 400, {"tea": 400}),
            (first + 1, 2500, {"tea": 400, "pot": 2100}),
        ):
            assert list(client.scan(*keys, epoch=epoch)) == [("rome", total)]
            assert client.count(*keys, epoch=epoch) == (1, epoch)
            assert dict(client.entries(*items, epoch=epoch)) == of_rome
            words = ("query", address, *keys, "--epoch", str(epoch))
            assert printed(*words) == [["rome", total]]
        reads: list[Callable[[], Any]] = [
            lambda: list(client.scan(*keys, epoch=last + 1)),
            lambda: list(client.entries(*items, epoch=last + 1)),
            lambda: client.count(*keys, epoch=last + 1),
        ]
        for read in reads:
            with pytest.raises(sk.QueryError, match="cannot be read yet"):
                read()
        with pytest.raises(sk.QueryError, match="elements of a list are read"):
            list(client.entries("shop", "sales", "log", "rome"))
        with pytest.raises(sk.QueryError, match="are for maps and lists"):
            list(client.entries(*keys, "rome"))
        assert client.count("shop", "sales", "log", key="rome").value == 2


def test_the_events_of_a_prefix_are_printed(reads: Reads) -> None:
    words = ("query", reads.address, "ranges", "by_cell", "values", "--follow", "--prefix", '["b"]')
    command = [sys.executable, "-m", "statekit.cli", *words]
    rows = len(NUMBERS) * sum(kind == "b" for kind, _ in CELLS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        events = [json.loads(line) for line in islice(running.stdout, rows + 2)]
        running.kill()
    assert [event["event"] for event in events] == ["reset", *["row"] * rows, "epoch"]
    assert {event["key"][0] for event in events[1:-1]} == {"b"}
