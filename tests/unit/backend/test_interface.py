from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from statekit.backend.interface import Backend, MemoryBackend, prefix_end
from statekit.backend.mutation import Batch
from statekit.backend.range_partitioned import FragmentedBackend
from statekit.backend.read_ahead import SortedReads
from statekit.backend.rocksdb import RocksBackend, link_database
from statekit.backend.rocksdb_options import RocksOptions
from statekit.errors import StatekitError, StorageError
from tests.support.killable_processes import open_to_all
from tests.support.mutations import Delete, DeleteRange, Mutation, Put, batch_of
from tests.support.small_disk import small_disk
from tests.support.timeouts import PATIENCE_S

STATES = ["a", "b", "with space ☃"]
KEYS = st.binary(max_size=3)
END = b"\xff" * 8
MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(Put, st.sampled_from(STATES), KEYS, st.binary(max_size=20)),
    st.builds(Delete, st.sampled_from(STATES), KEYS),
    st.builds(DeleteRange, st.sampled_from(STATES), KEYS, KEYS),
)
SMALL_BUFFER = RocksOptions(write_buffer_bytes=64 * 1024)

Rows = dict[bytes, bytes]


class Plain:
    """What a backend must do, as dicts."""

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {state: {} for state in STATES}

    def apply(self, mutation: Mutation) -> None:
        rows = self.rows[mutation.state]
        match mutation:
            case Put(_, key, value):
                rows[key] = value
            case Delete(_, key):
                rows.pop(key, None)
            case DeleteRange(_, start, end):
                for key in [key for key in rows if start <= key < end]:
                    del rows[key]

    def scan(
        self, state: str, start: bytes, end: bytes, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        found = [(k, v) for k, v in self.rows[state].items() if start <= k < end]
        return sorted(found, reverse=reverse)


class Contract(RuleBasedStateMachine):
    """Any sequence of calls answers as the plain model does."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.model = Plain()
        self.scans: list[tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
        self.backend = self.open()

    def open(self) -> Backend:
        raise NotImplementedError

    @rule(mutations=st.lists(MUTATIONS, max_size=8))
    def write(self, mutations: list[Mutation]) -> None:
        self.backend.write(batch_of(mutations))
        for mutation in mutations:
            self.model.apply(mutation)

    @rule(state=st.sampled_from(STATES), key=KEYS)
    def get(self, state: str, key: bytes) -> None:
        expected = self.model.rows[state].get(key)
        assert self.backend.get(state, key) == self.backend.reader(state).get(key) == expected

    @rule(state=st.sampled_from(STATES), keys=st.lists(KEYS, max_size=6))
    def get_many(self, state: str, keys: list[bytes]) -> None:
        expected = [self.model.rows[state].get(key) for key in keys]
        assert self.backend.get_many(state, keys) == expected
        in_order = sorted(set(keys))
        found = dict(zip(keys, expected, strict=True))
        assert self.backend.reader(state).get_all(in_order) == [found[key] for key in in_order]

    @rule(state=st.sampled_from(STATES), start=KEYS, end=KEYS, reverse=st.booleans())
    def scan(self, state: str, start: bytes, end: bytes, reverse: bool) -> None:
        found = list(self.backend.scan(state, start, end, reverse=reverse))
        assert found == self.model.scan(state, start, end, reverse)
        if not reverse:
            assert list(self.backend.reader(state).scan(start, end)) == found

    @rule(state=st.sampled_from(STATES), bounds=st.sets(KEYS, max_size=6), most=st.integers(1, 3))
    def scan_each(self, state: str, bounds: set[bytes], most: int) -> None:
        ranges = list(pairwise(sorted(bounds)))
        found = map(list, self.backend.reader(state).scan_each(ranges, most))
        expected = [self.model.scan(state, *each, reverse=False)[:most] for each in ranges]
        assert list(found) == expected

    @rule(state=st.sampled_from(STATES), start=KEYS, end=KEYS, reverse=st.booleans())
    def begin_scan(self, state: str, start: bytes, end: bytes, reverse: bool) -> None:
        rows = self.backend.scan(state, start, end, reverse=reverse)
        self.scans.append((rows, self.model.scan(state, start, end, reverse)))

    @precondition(lambda self: self.scans)
    @rule()
    def advance_scan(self) -> None:
        rows, expected = self.scans[-1]
        assert next(rows, None) == (expected.pop(0) if expected else None)

    @precondition(lambda self: self.scans)
    @rule()
    def end_scan(self) -> None:
        rows, expected = self.scans.pop()
        assert list(rows) == expected

    @invariant()
    def every_state_holds_what_the_model_holds(self) -> None:
        for state in STATES:
            found = list(self.backend.scan(state, b"", END))
            assert found == self.model.scan(state, b"", END, reverse=False)

    def teardown(self) -> None:
        self.backend.close()
        self.directory.cleanup()


def fragmented(
    directory: Path, states: Sequence[str], options: RocksOptions | None = None
) -> FragmentedBackend:
    """Three databases, divided where the keys of the tests are."""
    starts = (0, 1, 0x6C00)
    return FragmentedBackend(
        [(first, RocksBackend(directory / str(first), states, options)) for first in starts]
    )


class MemoryContract(Contract):
    def open(self) -> Backend:
        return MemoryBackend(STATES)

    @rule()
    def sizes_are_exact(self) -> None:
        sizes = self.backend.sizes()
        for state, rows in self.model.rows.items():
            assert sizes[state] == (len(rows), sum(len(k) + len(v) for k, v in rows.items()))


class RocksContract(Contract):
    def open(self) -> Backend:
        return RocksBackend(self.directory.name, STATES, SMALL_BUFFER)

    @rule(flush=st.booleans())
    def reopen(self, flush: bool) -> None:
        assert isinstance(self.backend, RocksBackend | FragmentedBackend)
        if flush:
            self.backend.flush()
        self.backend.close()  # a clean close keeps what was not flushed, too
        self.scans.clear()
        self.backend = self.open()

    @initialize()
    def start_empty(self) -> None:
        assert self.backend.sizes().keys() == set(STATES)


class FragmentedContract(RocksContract):
    def open(self) -> Backend:
        return fragmented(Path(self.directory.name), STATES, SMALL_BUFFER)


@pytest.mark.parametrize(
    ("machine", "examples"),
    [(MemoryContract, 100), (RocksContract, 10), (FragmentedContract, 10)],
    ids=["memory", "rocks", "fragments"],
)
def test_any_sequence_of_calls_answers_as_plain_dicts_do(
    machine: type[Contract], examples: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True
        ),
    )


# -------------------------------------------------------------------------------- all backends

Open = Callable[[Sequence[str]], Backend]


@pytest.fixture(params=["memory", "rocks", "fragments"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens a backend that is closed after the test."""
    backends: list[Backend] = []

    def open_backend(states: Sequence[str]) -> Backend:
        backend: Backend
        if request.param == "memory":
            backend = MemoryBackend(states)
        elif request.param == "rocks":
            backend = RocksBackend(tmp_path / "db", states)
        else:
            backend = fragmented(tmp_path, states)
        backends.append(backend)
        return backend

    yield open_backend
    for backend in backends:
        backend.close()


def test_scan_shows_the_data_as_of_its_start_during_writes(opened: Open) -> None:
    backend = opened(["a"])
    backend.write(batch_of([Put("a", bytes([i]), b"old") for i in range(10)]))
    forward = backend.scan("a", b"", END)
    backward = backend.scan("a", b"", END, reverse=True)
    assert next(forward) == (b"\x00", b"old")
    backend.write(batch_of([DeleteRange("a", b"", b"\x05"), Put("a", b"\x06", b"new")]))
    backend.write(batch_of([Put("a", b"\x07\x07", b"new")]))
    assert list(forward) == [(bytes([i]), b"old") for i in range(1, 10)]
    assert list(backward) == [(bytes([i]), b"old") for i in reversed(range(10))]


@pytest.mark.parametrize(("rows", "read"), [(16, 1), (17, 16), (2_000, 5), (2_000, 1_016)])
def test_scan_shows_the_data_as_of_its_start_however_much_was_read(
    opened: Open, rows: int, read: int
) -> None:
    backend = opened(["a"])
    expected = [(number.to_bytes(2, "big"), b"old") for number in range(rows)]
    backend.write(batch_of([Put("a", *row) for row in expected]))
    scans = [backend.scan("a", b"", END), backend.scan("a", b"", END, reverse=True)]
    found = [list(islice(scan, read)) for scan in scans]
    backend.write(batch_of([DeleteRange("a", b"", END), Put("a", b"\0", b"new")]))
    backend.write(batch_of([Delete("a", b"\0")]))
    assert found[0] + list(scans[0]) == expected
    assert found[1] + list(scans[1]) == expected[::-1]


def test_the_first_row_of_a_range_is_found_without_the_others(opened: Open) -> None:
    backend = opened(["a"])
    backend.write(batch_of([Put("a", bytes([i]), b"") for i in (3, 5, 9)]))
    ranges = [(b"", END), (b"\x03", END), (b"\x04", END), (b"\x06", b"\x09"), (b"\x0a", END)]
    found = [backend.first("a", start, end) for start, end in ranges]
    assert found == [b"\x03", b"\x03", b"\x05", None, None]


def test_later_mutations_of_a_batch_win(opened: Open) -> None:
    backend = opened(["a", "b"])
    backend.write(
        batch_of(
            [
                Put("a", b"k", b"1"),
                Put("b", b"k", b"1"),
                DeleteRange("a", b"a", b"z"),
                Put("a", b"l", b"2"),
                Delete("a", b"l"),
                Put("a", b"l", b"3"),
            ]
        )
    )
    assert list(backend.scan("a", b"", END)) == [(b"l", b"3")]
    assert backend.get("b", b"k") == b"1"


def test_range_deletion_keeps_its_end_and_later_rows(opened: Open) -> None:
    backend = opened(["a"])
    backend.write(batch_of([Put("a", key, b"") for key in (b"a", b"b", b"b\x00", b"c")]))
    backend.write(batch_of([DeleteRange("a", b"a", b"b\x00")]))
    assert [key for key, _ in backend.scan("a", b"", END)] == [b"b\x00", b"c"]


@pytest.mark.parametrize(("start", "end"), [(b"m", b"m"), (b"z", b"a")], ids=["empty", "reversed"])
def test_range_deletion_of_nothing_removes_nothing_and_breaks_nothing(
    opened: Open, start: bytes, end: bytes
) -> None:
    backend = opened(["a"])
    backend.write(batch_of([Put("a", b"m", b"1"), DeleteRange("a", start, end)]))
    backend.write(batch_of([Put("a", b"n", b"2")]))
    assert list(backend.scan("a", b"", END)) == [(b"m", b"1"), (b"n", b"2")]


def test_unknown_state_is_an_error_that_names_it_and_changes_nothing(opened: Open) -> None:
    backend = opened(["a"])
    calls: list[Callable[[], object]] = [
        lambda: backend.get("nope", b""),
        lambda: backend.reader("nope"),
        lambda: backend.get_many("nope", [b""]),
        lambda: backend.scan("nope", b"", END),
        lambda: backend.write(batch_of([Put("a", b"k", b"v"), Put("nope", b"k", b"v")])),
    ]
    for call in calls:
        with pytest.raises(StatekitError, match=r"no state 'nope' \(it has \['a'\]\)"):
            call()
    assert backend.get("a", b"k") is None


def test_every_call_after_close_is_an_error_that_says_so(opened: Open) -> None:
    backend = opened(["a"])
    backend.close()
    backend.close()  # closing again is nothing
    calls: list[Callable[[], object]] = [
        lambda: backend.get("a", b""),
        lambda: backend.reader("a"),
        lambda: backend.get_many("a", [b""]),
        lambda: backend.scan("a", b"", END),
        lambda: backend.write(batch_of([Put("a", b"k", b"v")])),
        lambda: backend.write(Batch()),
        lambda: backend.sizes(),
    ]
    for call in calls:
        with pytest.raises(StatekitError, match="was closed") as caught:
            call()
        assert not isinstance(caught.value, StorageError)


def test_backend_knows_the_states_it_was_opened_with(opened: Open) -> None:
    assert tuple(opened(["b", "a"]).states) == ("b", "a")


def test_a_row_of_64_mb_is_kept(opened: Open) -> None:
    backend, value = opened(["a"]), bytes(64 * 1024 * 1024)
    backend.write(batch_of([Put("a", b"k", value)]))
    assert backend.get("a", b"k") == value


def test_prefix_end_is_after_every_key_with_the_prefix() -> None:
    assert prefix_end(b"a\xff\xff") == b"b"
    with pytest.raises(StatekitError, match="only 0xFF"):
        prefix_end(b"\xff\xff")


# --------------------------------------------------------------------------------------- RocksDB


def test_abandoned_scans_do_not_keep_the_database_locked(tmp_path: Path) -> None:
    for count in range(3):
        backend = RocksBackend(tmp_path / "db", ["a"])
        backend.write(batch_of([Put("a", bytes([i]), b"v") for i in range(10)]))
        begun, untouched = backend.scan("a", b"", END), backend.scan("a", b"", END, reverse=True)
        assert next(begun) == (b"\x00", b"v")
        several = backend.reader("a").scan_each([(b"\x05", b"\x06"), (b"\x00", b"\x01")], 9)
        assert list(map(len, several)) == [1, 1]
        gc.disable()  # so that nothing but close() can let go of the iterators
        try:
            backend.close()
            assert next(begun, None) is next(untouched, None) is None
            other = RocksBackend(tmp_path / "db", ["a"])
        finally:
            gc.enable()
        assert len(list(other.scan("a", b"", END))) == 10, count
        other.close()


def test_use_of_a_kept_getter_or_flush_after_close_is_a_clear_error(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path / "db", ["a"])
    get, get_all = backend.reader("a").get, backend.reader("a").get_all
    backend.write(batch_of([Put("a", b"k", b"v")]))
    some = backend.reader("a").scan_each([(b"l", b"m"), (b"k", b"l"), (b"j", b"k")], 1)
    assert [next(some), next(some)] == [[], [(b"k", b"v")]]
    backend.close()
    calls: list[Callable[[], object]] = [
        lambda: get(b"k"),
        lambda: get_all([b"k"]),
        lambda: next(some),
        backend.flush,
    ]
    for call in calls:
        with pytest.raises(StatekitError, match="was closed"):
            call()


def test_database_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path / "db", ["a"])
    with pytest.raises(StorageError, match="no other process holds the directory"):
        RocksBackend(tmp_path / "db", ["a"])
    backend.write(batch_of([Put("a", b"k", b"v")]))
    backend.close()
    again = RocksBackend(tmp_path / "db", ["a"])
    assert again.get("a", b"k") == b"v"
    again.close()


def test_database_open_in_another_process_cannot_be_opened(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom statekit.backend.rocksdb import RocksBackend\n"
        "backend = RocksBackend(sys.argv[1], ['a'])\nprint('open', flush=True)\ninput()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StorageError, match="cannot open the working copy"):
            RocksBackend(tmp_path / "db", ["a"])
        holder.kill()
    RocksBackend(tmp_path / "db", ["a"]).close()


def test_missing_database_or_state_is_not_made_up_when_it_should_be_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        RocksBackend(tmp_path / "db", ["a"], create=False)
    RocksBackend(tmp_path / "db", ["a"]).close()
    with pytest.raises(StorageError):
        RocksBackend(tmp_path / "db", ["a", "b"], create=False)
    RocksBackend(tmp_path / "db", ["a"], create=False).close()


@pytest.mark.parametrize("place", ["a file", "no permission", "read-only"])
def test_directory_that_cannot_be_written_is_a_storage_error(tmp_path: Path, place: str) -> None:
    path = tmp_path / "db"
    if place == "a file":
        path.write_text("")
        with pytest.raises(StorageError, match="cannot open the working copy"):
            RocksBackend(path, ["a"])
        return
    if os.geteuid() == 0:
        assert in_child(lambda: open_as_nobody(tmp_path, exists=place == "read-only")) == 0
    else:
        open_unwritable(tmp_path, exists=place == "read-only")


def open_as_nobody(parent: Path, *, exists: bool) -> None:
    open_to_all(parent)
    os.chown(parent, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
    open_unwritable(parent, exists=exists)


def open_unwritable(parent: Path, *, exists: bool) -> None:
    if exists:
        RocksBackend(parent / "db", ["a"]).close()
        (parent / "db").chmod(0o555)
    parent.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="cannot open the working copy"):
            RocksBackend(parent / "db", ["a"])
    finally:
        parent.chmod(0o755)
        if exists:
            (parent / "db").chmod(0o755)


def in_child(check: Callable[[], None]) -> int:
    """Run a check in a fork, where it may give up its rights. 0 if it held."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException as error:  # noqa: BLE001 - the exit code is the result
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_full_disk_is_a_storage_error_and_flushed_rows_stay(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.path / "db"
        backend = RocksBackend(path, ["a", "b"], RocksOptions(write_buffer_bytes=1 << 20))
        kept = {b"%04d" % i: os.urandom(100) for i in range(1000)}
        backend.write(batch_of([Put("a", key, value) for key, value in kept.items()]))
        backend.flush()
        disk.fill()
        backend.write(batch_of([Put("b", b"%04d" % i, os.urandom(100)) for i in range(1000)]))
        with pytest.raises(StorageError, match=r"cannot flush the working copy at .* No space"):
            backend.flush()
        assert backend.failed
        assert backend.get("a", b"0000") == kept[b"0000"]
        with pytest.raises(StorageError, match="cannot close"):
            backend.close()
        backend.close()
        disk.make_space()
        again = RocksBackend(path, ["a", "b"])
        assert dict(again.scan("a", b"", END)) == kept
        again.close()


def test_full_disk_while_a_large_batch_is_spilled_is_a_storage_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        backend = RocksBackend(disk.path / "db", ["a"], RocksOptions(write_buffer_bytes=1 << 20))
        backend.write(batch_of([Put("a", b"kept", b"v")]))
        backend.flush()
        with pytest.raises(StorageError, match="No space left"):
            write_without_end(backend)
        with pytest.raises(StorageError, match="No space left"):
            backend.close()


def write_without_end(backend: RocksBackend) -> None:
    for number in range(1000):
        rows = [Put("a", b"%d-%d" % (number, i), os.urandom(100)) for i in range(2000)]
        backend.write(batch_of(rows))


def test_unreadable_block_is_an_error_and_never_the_end_of_the_rows(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path / "db", ["a"])
    keys = [b"%05d" % i for i in range(5000)]
    backend.write(batch_of([Put("a", key, os.urandom(100)) for key in keys]))
    backend.flush()
    backend.close()
    damage(tmp_path / "db")
    backend = RocksBackend(tmp_path / "db", ["a"])
    get = backend.reader("a").get
    reads: list[Callable[[], object]] = [
        lambda: list(backend.scan("a", b"", END)),
        lambda: list(backend.scan("a", b"", END, reverse=True)),
        lambda: backend.get_many("a", keys),
        lambda: list(map(get, keys)),
        lambda: backend.reader("a").get_all(keys),
        lambda: list(backend.reader("a").scan_each([(b"9", END), (b"", END)], 9_999)),
        lambda: [backend.get("a", key) for key in keys],
    ]
    for read in reads:
        backend.failed = False
        with pytest.raises(StorageError, match=r"cannot read the working copy at .*checksum"):
            read()
        assert backend.failed
    backend.close()


def damage(database: Path) -> None:
    """Flip bytes in the middle of the largest data file."""
    table = max(database.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 16] = bytes(byte ^ 0xFF for byte in data[middle : middle + 16])
    table.write_bytes(data)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_getter_returns_the_rows_of_get_whatever_was_read_ahead(data: st.DataObject) -> None:
    held = {bytes([0, number]): bytes([number]) * (1 + number % 3) for number in range(0, 250, 2)}
    with tempfile.TemporaryDirectory() as home:
        backend = RocksBackend(home, ["a"])
        backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
        kept = backend.reader("a").get
        position = 0
        for _ in range(data.draw(st.integers(1, 60))):
            if data.draw(st.integers(0, 9)) == 0:
                changed = bytes([0, data.draw(st.integers(0, 255))])
                held[changed] = b"new"
                backend.write(batch_of([Put("a", changed, b"new")]))
            jump = data.draw(st.sampled_from([1, 1, 1, 2, 3, 5, 40, -7]))
            position = max(0, min(255, position + jump))
            key = bytes([0, position])
            assert kept(key) == backend.get("a", key) == held.get(key)
        backend.close()


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_a_getter_of_many_rows_returns_the_rows_of_get_many(data: st.DataObject) -> None:
    numbers = st.integers(0, 9_999)
    dense = st.builds(lambda first, count: set(range(first, first + count)), numbers, numbers)
    large = data.draw(st.sampled_from([2, 100, 100_000]))  # one in so many rows is
    held = {b"%05d" % n: b"%d" % n * (1 if n % large else 500) for n in range(0, 9_999, 3)}
    with tempfile.TemporaryDirectory() as home:
        backend = RocksBackend(home, ["a"])
        backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
        kept = backend.reader("a").get_all
        for _ in range(data.draw(st.integers(1, 5))):
            asked = data.draw(dense | st.sets(numbers, max_size=50))
            keys = [b"%05d" % number for number in sorted(asked)]
            assert kept(keys) == backend.get_many("a", keys) == [held.get(key) for key in keys]
            if data.draw(st.booleans()):
                changed = b"%05d" % data.draw(numbers)
                held[changed] = b"new"
                backend.write(batch_of([Put("a", changed, b"new")]))
        backend.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_getter_returns_the_rows_of_get_whatever_keys_are_predicted(data: st.DataObject) -> None:
    keys = st.integers(0, 9_999).map(lambda number: b"%04d" % number)
    held = {b"%04d" % number: b"%d" % number for number in range(0, 10_000, 2)}
    coming: list[bytes] = []
    with tempfile.TemporaryDirectory() as home:
        backend = RocksBackend(home, ["a"])
        backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
        kept = backend.reader("a", lambda key: coming).get
        for _ in range(data.draw(st.integers(1, 10))):
            coming = data.draw(st.lists(keys, min_size=1, max_size=8))
            for key in (b"0000", b"5000", b"9000", *coming):  # too far apart for blocks
                assert kept(key) == held.get(key)
            changed = data.draw(st.sampled_from(coming))
            if data.draw(st.booleans()):
                held[changed] = b"new"
                backend.write(batch_of([Put("a", changed, b"new")]))
            else:
                held.pop(changed, None)
                backend.write(batch_of([Delete("a", changed)]))
            for key in data.draw(st.permutations(coming)):
                assert kept(key) == backend.get("a", key) == held.get(key)
        backend.close()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_getter_returns_the_rows_of_get_in_whatever_order_entries_are_read(
    data: st.DataObject,
) -> None:
    entries = data.draw(st.sampled_from([3, 90, 700]))
    held = {
        entry_key(number, entry): b"%d" % entry for number in range(4) for entry in range(entries)
    }
    at = [b""]
    with tempfile.TemporaryDirectory() as home:
        backend = RocksBackend(home, ["a"])
        backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
        reader = backend.reader("a", first_key=lambda: at[0])
        kept = reader.get
        for number in range(4):
            at[0] = entry_key(number)
            # As when rows are counted that were set unread at this map and those before.
            some = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True, max_size=20))
            together_after = data.draw(st.none() | st.integers(0, entries))
            step = data.draw(st.sampled_from([1, 1, 7, entries]))
            order = list(range(0, entries + 5, step))
            data.draw(st.randoms(use_true_random=False)).shuffle(order)
            changed_after = data.draw(st.none() | st.integers(0, entries))
            for count, entry in enumerate(order):
                for key in (entry_key(number, entry), entry_key(0, entry)):
                    assert kept(key) == held.get(key)
                if count == together_after:
                    assert reader.get_all(sorted(some)) == [held.get(key) for key in sorted(some)]
                    start, end = entry_key(number, entry), entry_key(number, entry + 50)
                    assert list(reader.scan(start, end)) == [
                        (key, held[key]) for key in sorted(held) if start <= key < end
                    ]
                if count == changed_after:
                    changed = entry_key(number, data.draw(st.integers(0, entries + 5)))
                    held.pop(changed, None)
                    backend.write(batch_of([Delete("a", changed)]))
        backend.close()


def entry_key(number: int, entry: int | None = None) -> bytes:
    """The key of an entry of a map, or the start of the keys of all of its entries."""
    return b"%04d" % number + (b"" if entry is None else b"%04d" % entry)


@pytest.mark.parametrize("kind", ["one database", "fragments"])
def test_entries_that_are_read_in_any_order_are_read_in_blocks_of_complete_maps(
    tmp_path: Path, kind: str
) -> None:
    backend: Backend
    if kind == "fragments":
        backend = fragmented(tmp_path, ["a"], RocksOptions())
    else:
        backend = RocksBackend(tmp_path, ["a"])
    maps = [number.to_bytes(2, "big") for number in range(100, 200)]
    held = {number + bytes([entry]): b"v" for number in maps for entry in range(100)}
    backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
    at = [b""]
    kept = backend.reader("a", first_key=lambda: at[0]).get
    readers = [one for part in parts_of(backend) for one in part._readers]
    blocks = []
    for number in maps:
        at[0] = number
        for entry in (70, 10, 99, 0, 100, 45, *range(98, 1, -3)):
            key = number + bytes([entry])
            assert kept(key) == held.get(key)
        blocks.append([one._first for one in readers if one._first <= at[0] <= one._last])
    assert all(len(block) == 1 for block in blocks[10:])
    assert len({block[0] for block in blocks[10:]}) < 40
    backend.close()


def test_entries_of_large_maps_are_read_one_by_one(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    held = {entry_key(number, entry): b"v" for number in range(3) for entry in range(5_000)}
    backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
    at = [b""]
    kept = backend.reader("a", first_key=lambda: at[0]).get
    (reader,) = backend._readers
    for number in range(3):
        at[0] = entry_key(number)
        for entry in range(4_999, 0, -50):
            assert kept(entry_key(number, entry)) == b"v"
    assert not reader._rows
    backend.close()


def test_entries_that_are_appended_to_large_maps_are_looked_for_in_blocks(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    held = {entry_key(number, entry): b"v" for number in range(20) for entry in range(2_000)}
    backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
    at = [b""]
    kept = backend.reader("a", first_key=lambda: at[0]).get
    (reader,) = backend._readers
    looks = looked_up(reader)
    for number in range(20):
        at[0] = entry_key(number)
        for entry in range(1_999, 2_100):
            assert kept(entry_key(number, entry)) == held.get(entry_key(number, entry))
    assert len(looks) < 100
    backend.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_block_that_starts_in_the_middle_of_a_map_does_not_end_reading_ahead(
    tmp_path: Path, seed: int
) -> None:
    backend, draw = RocksBackend(tmp_path, ["a"]), random.Random(seed)
    held = {entry_key(number, entry): b"v" for number in range(60) for entry in range(100)}
    backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
    at = [b""]
    kept = backend.reader("a", first_key=lambda: at[0]).get
    (reader,) = backend._readers
    looks = looked_up(reader)
    for number in range(60):
        at[0] = entry_key(number)
        for entry in draw.sample(range(100), 63):
            assert kept(entry_key(number, entry)) == b"v"
    assert len(looks) < 300
    backend.close()


def looked_up(reader: SortedReads) -> list[bytes]:
    """The keys that a reader looks up one by one from now on."""
    looks: list[bytes] = []
    look = reader._look

    def looking(key: bytes) -> bytes | None:
        looks.append(key)
        row: bytes | None = look(key)
        return row

    reader._look = looking
    return looks


def parts_of(backend: Backend) -> Sequence[RocksBackend]:
    if isinstance(backend, FragmentedBackend):
        return backend._fragments
    assert isinstance(backend, RocksBackend)
    return [backend]


@pytest.mark.parametrize("kind", ["one database", "fragments"])
def test_scattered_keys_that_come_are_looked_for_together(tmp_path: Path, kind: str) -> None:
    backend: Backend
    if kind == "fragments":
        backend = fragmented(tmp_path, ["a"], RocksOptions())
    else:
        backend = RocksBackend(tmp_path, ["a"])
    held = {number.to_bytes(2, "big"): b"v%d" % number for number in range(20_000, 40_000)}
    backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
    visited = [number.to_bytes(2, "big") for number in range(19_900, 40_100, 50)]
    told: list[list[bytes]] = []

    def coming(key: bytes) -> list[bytes]:
        told.append(visited[visited.index(key) + 1 :][:60])
        return told[-1]

    kept = backend.reader("a", coming).get
    for key in visited:
        assert kept(key) == held.get(key)
    assert 2 <= len(told) <= len(visited) / 40
    backend.close()


def test_keys_that_are_announced_and_never_read_are_not_looked_for_again(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    held = {number.to_bytes(2, "big"): b"v%d" % number for number in range(10_000)}
    backend.write(batch_of([Put("a", key, row) for key, row in held.items()]))
    told: list[list[bytes]] = []

    def coming(key: bytes) -> list[bytes]:
        told.append([bytes([key[0], 255 - number]) for number in range(60)])
        return told[-1]

    kept = backend.reader("a", coming).get
    for number in range(0, 10_000, 256):
        key = number.to_bytes(2, "big")
        assert kept(key) == held[key]
    assert len(told) == 1
    backend.write(batch_of([Put("a", b"x", b"")]))  # starts over
    for number in range(1, 10_000, 256):
        key = number.to_bytes(2, "big")
        assert kept(key) == held[key]
    assert len(told) == 2
    backend.close()


def test_filters_and_indexes_stay_while_rows_of_large_tables_pass_through_the_cache(
    tmp_path: Path,
) -> None:
    options = RocksOptions(block_cache_bytes=16 * 1024 * 1024)
    backend = RocksBackend(tmp_path, ["a"], options)
    rows = ((number.to_bytes(4, "big"), b"%032d" % number) for number in range(600_000))
    backend.load("a", rows)
    keys = [number.to_bytes(4, "big") for number in range(0, 600_000, 150)]
    for key in keys:
        backend.get("a", key)
    before = reads_of_this_process()
    for key in keys[:500]:
        backend.get("a", key)
    assert reads_of_this_process() - before < 500 * 8_000
    backend.close()


def test_cached_blocks_are_used_again_after_a_database_was_closed_linked_or_loaded(
    tmp_path: Path,
) -> None:
    rows = [(number.to_bytes(4, "big"), b"%032d" % number) for number in range(50_000)]
    written = RocksBackend(tmp_path / "written", ["a"])
    written.write(batch_of([Put("a", *row) for row in rows]))
    written.flush()
    written.close()
    loaded = RocksBackend(tmp_path / "loaded", ["a"])
    loaded.load("a", rows)
    loaded.close()
    for name in ("written", "loaded"):
        assert bytes_of_reading(tmp_path / name, rows[::100]) > 300_000
        assert bytes_of_reading(tmp_path / name, rows[::100]) < 10_000
        link_database(tmp_path / name, tmp_path / f"{name} linked")
        assert bytes_of_reading(tmp_path / f"{name} linked", rows[::100]) < 10_000


def bytes_of_reading(path: Path, rows: Sequence[tuple[bytes, bytes]]) -> int:
    """Open a database, read rows, and return how many bytes this took from the disk."""
    backend = RocksBackend(path, ["a"], create=False)
    before = reads_of_this_process()
    for key, row in rows:
        assert backend.get("a", key) == row
    read = reads_of_this_process() - before
    backend.close()
    return read


def await_merge(path: Path) -> None:
    """Wait until a merge has started in the database that is open at `path`."""
    deadline = monotonic() + PATIENCE_S
    while "compaction_started" not in (path / "LOG").read_text():
        assert monotonic() < deadline, "no merge has started"
        sleep(0.001)


def test_a_merge_that_takes_longer_than_its_epoch_is_not_cancelled_by_the_close(
    tmp_path: Path,
) -> None:
    keys = [number.to_bytes(4, "big") for number in range(60_000)]
    for epoch in range(8):  # after so many tables, a merge is due
        write_and_close(RocksBackend(tmp_path, ["a"]), keys, b"%d" % epoch)
    assert tables_in(tmp_path) == 8
    backend = RocksBackend(tmp_path, ["a"])
    await_merge(tmp_path)
    write_and_close(backend, keys[:1], b"last")
    assert tables_in(tmp_path) < 8
    backend = RocksBackend(tmp_path, ["a"])
    expected = dict.fromkeys(keys, b"7") | {keys[0]: b"last"}
    assert dict(backend.scan("a", b"", END)) == expected
    backend.close()


def test_tables_are_merged_sooner_if_scattered_ranges_are_read(tmp_path: Path) -> None:
    keys = [number.to_bytes(4, "big") for number in range(20_000)]
    for epoch in range(5):
        write_and_close(RocksBackend(tmp_path, ["a"]), keys, b"%d" % epoch)
    assert tables_in(tmp_path) == 5
    backend = RocksBackend(tmp_path, ["a"])
    ranges = [(key, key + b"\x00") for key in keys[::100]]
    for (key, _), found in zip(ranges, backend.reader("a").scan_each(ranges, 10), strict=True):
        assert found == [(key, b"4")]
    await_merge(tmp_path)
    write_and_close(backend, keys[:1], b"last")
    assert tables_in(tmp_path) < 5
    backend = RocksBackend(tmp_path, ["a"])
    assert dict(backend.scan("a", b"", END)) == dict.fromkeys(keys, b"4") | {keys[0]: b"last"}
    backend.close()


def test_a_flush_does_not_wait_for_a_merge_that_a_full_disk_repeats(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.path / "db"
        keys = [number.to_bytes(4, "big") for number in range(8_000)]
        for _ in range(8):  # after so many tables, a merge is due
            backend = RocksBackend(path, ["a"])
            backend.write(batch_of([Put("a", key, os.urandom(40)) for key in keys]))
            backend.flush()
            backend.close()
        disk.fill(leave=100_000)
        backend = RocksBackend(path, ["a"])
        deadline = monotonic() + PATIENCE_S
        while "compaction error" not in (path / "LOG").read_text():
            assert monotonic() < deadline, "no merge failed"
            sleep(0.001)
        backend.write(batch_of([Put("a", keys[0], b"small")]))
        with suppress(StorageError):  # there may be space for a row
            backend.flush()
        with suppress(StorageError):
            backend.close()
        disk.make_space()
        backend = RocksBackend(path, ["a"])
        assert [key for key, _ in backend.scan("a", b"", END)] == keys
        backend.close()


def test_a_write_waits_until_rocksdb_has_flushed_what_is_before_it(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"], RocksOptions(write_buffer_bytes=1 << 16))
    refused: list[bool] = []
    is_taken = backend._is_taken

    def counted(batch: Batch) -> bool:
        refused.append(not is_taken(batch))
        return not refused[-1]

    backend._is_taken = counted  # type: ignore[method-assign]
    expected: dict[bytes, bytes] = {}
    while refused.count(True) < 3:
        key, row = b"%d" % (len(refused) % 50), os.urandom(1 << 17)  # it fills a buffer
        backend.write(batch_of([Put("a", key, row)]))
        expected[key] = row
    assert dict(backend.scan("a", b"", END)) == expected
    backend.close()


def write_and_close(backend: RocksBackend, keys: Sequence[bytes], value: bytes) -> None:
    backend.write(batch_of([Put("a", key, value) for key in keys]))
    backend.flush()
    backend.close()


def tables_in(directory: Path) -> int:
    return len(list(directory.glob("*.sst")))


def reads_of_this_process() -> int:
    """Bytes that this process has asked the system for."""
    with open("/proc/self/io", encoding="ascii") as counts:
        return next(int(line.split()[1]) for line in counts if line.startswith("rchar"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_scanner_returns_the_rows_of_scan_whatever_was_read_ahead(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as home:
        backend = RocksBackend(home, ["a"])
        backend.write(batch_of([Put("a", bytes([0, n]), b"v") for n in range(0, 250, 2)]))
        kept, each = backend.reader("a").scan, backend.reader("a").scan_each
        position = 0
        for _ in range(data.draw(st.integers(1, 60))):
            if data.draw(st.integers(0, 9)) == 0:
                changed = bytes([0, data.draw(st.integers(0, 255))])
                put: Mutation = Put("a", changed, b"new")
                kind = data.draw(st.sampled_from([put, Delete("a", changed)]))
                backend.write(batch_of([kind]))
            position = max(0, min(255, position + data.draw(st.sampled_from([0, 1, 2, 5, 40, -7]))))
            start = bytes([0, position])
            end = data.draw(st.sampled_from([bytes([0, min(255, position + 3)]), b"\x01", END]))
            assert list(kept(start, end)) == list(backend.scan("a", start, end))
            bounds = data.draw(st.sets(st.integers(0, 255), max_size=9).map(sorted))
            ranges = list(pairwise(bytes([0, bound]) for bound in bounds))
            most = data.draw(st.sampled_from([1, 3, 999]))
            expected = [list(backend.scan("a", *some))[:most] for some in ranges]
            assert list(map(list, each(ranges, most))) == expected
        backend.close()


def test_reading_in_order_gives_every_row_once_and_none_that_is_not_there(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    rows = {number.to_bytes(4, "big"): b"v%d" % number for number in range(0, 5_000, 3)}
    backend.write(batch_of([Put("a", key, row) for key, row in rows.items()]))
    kept = backend.reader("a").get
    for number in range(5_100):
        key = number.to_bytes(4, "big")
        assert kept(key) == rows.get(key)
    backend.close()


def test_large_rows_are_not_read_ahead(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    backend.write(batch_of([Put("a", bytes([number]), b"x" * 100_000) for number in range(100)]))
    kept = backend.reader("a", lambda key: [bytes([number]) for number in range(100)]).get
    for number in range(100):
        assert kept(bytes([number])) == b"x" * 100_000
    (reader,) = backend._readers
    assert not reader._rows
    assert not reader._found
    backend.close()


def test_scans_do_not_read_large_rows_ahead(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    backend.write(batch_of([Put("a", bytes([number]), b"x" * 100_000) for number in range(100)]))
    backend.flush()
    kept = backend.reader("a").scan
    before = reads_of_this_process()
    for number in range(10):
        assert len(list(kept(bytes([number]), bytes([number + 1])))) == 1
    assert (
        reads_of_this_process() - before < 30 * 100_000
    )  # those rows, and at most as many behind them
    (reader,) = backend._readers
    assert not reader._rows
    backend.close()


def test_scans_of_scattered_ranges_try_blocks_more_and_more_rarely(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, ["a"])
    rows = {number.to_bytes(4, "big"): b"v" for number in range(20_000)}
    backend.write(batch_of([Put("a", key, row) for key, row in rows.items()]))
    kept = backend.reader("a").scan
    (reader,) = backend._readers
    tried = []
    for count, start in enumerate(range(0, 20_000, 100)):
        found = kept(start.to_bytes(4, "big"), (start + 2).to_bytes(4, "big"))
        assert len(list(found)) == 2
        if reader._rows:
            tried.append(count)
    assert tried == [0, 17, 50, 115]
    for start in range(0, 20_000, 100):  # again, from a place before
        kept(start.to_bytes(4, "big"), (start + 2).to_bytes(4, "big"))
    for start in range(5_000, 7_000):  # and now one beside the other
        assert len(list(kept(start.to_bytes(4, "big"), (start + 1).to_bytes(4, "big")))) == 1
    assert len(reader._rows) == 512
    backend.close()
