"""A replica: views, bounds, directories, errors, and what it does when the checkpoint changes."""

from __future__ import annotations

import datetime as dt
import gc
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

import statekit as sk
from statekit.backend.rocksdb import RocksBackend
from statekit.checkpoint import store
from statekit.checkpoint.gc.collector import Collector
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import Retention
from statekit.checkpoint.rollback import plan
from statekit.clock import sleep_s
from statekit.query.replica import view as view_module
from statekit.query.replica.follower import Follower
from statekit.query.rows.epochs import EpochReader
from statekit.query.rows.reader import CheckpointReader
from tests.support.hidden_rows import hide_rows, show_rows


class Move(NamedTuple):
    account: int
    cents: int


Total = Annotated[sk.ReducingState[int], sk.Reduce(sum)]


@sk.process(key="account")
def accounts(move: Move, total: Total, moves: sk.ListState[int], by: sk.MapState[str, int]) -> None:
    total.add(move.cents)
    moves.append(move.cents)
    by[str(move.cents % 5)] = move.cents


def run(
    home: Path,
    count: int,
    *,
    parallelism: int = 2,
    retention: int | None = None,
    copies: Path | None = None,
) -> None:
    """Run the job over the first records, five per epoch; it continues from its checkpoint.

    Parameters:
        copies: the directory of working copies, for a run that takes bases.
    """
    job = sk.Job("bank", key_groups=8)
    job.source("moves", Move).process(accounts)
    job.run(
        {"moves": [Move(number % 7, number) for number in range(count)]},
        checkpoint=home,
        parallelism=parallelism,
        epoch_size=5,
        retention=None if retention is None else sk.Retention(epochs=retention),
        backend="memory" if copies is None else "rocksdb",
        working_directory=copies,
        bases=sk.BaseOptions(replay_seconds=0, uploaded_per_changed=100),
    )


def totals(count: int) -> dict[int, int]:
    """What the state has after so many records."""
    return {key: sum(range(key, count, 7)) for key in range(min(7, count))}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    run(tmp_path / "c", 20)
    return tmp_path / "c"


@pytest.fixture
def replica(home: Path, tmp_path: Path) -> Iterator[sk.Replica]:
    with sk.Replica(home, directory=tmp_path / "r", follow=False, views=2) as replica:
        yield replica


def test_a_view_stays_at_its_epoch_while_later_ones_are_applied(
    home: Path, replica: sk.Replica
) -> None:
    with replica.at() as view:
        state = view.state("accounts", "total")
        run(home, 30)
        replica.refresh()
        assert (view.epoch, replica.epoch) == (3, 5)
        assert dict(state.items()) == {key: state.get(key) for key in range(7)} == totals(20)
        assert state.get_many(list(range(7))) == list(totals(20).values())
        assert list(state.scan()) == list(totals(20).items())
    assert replica.get("accounts", "total", 3) == (totals(30)[3], 5)


def test_a_view_that_is_held_too_long_is_closed_with_advice(home: Path, tmp_path: Path) -> None:
    with sk.Replica(
        home, directory=tmp_path / "r", follow=False, views=1, view_timeout="1 us"
    ) as replica:
        view = replica.at()
        state = view.state("accounts", "total")
        rows = state.items()
        next(rows)
        run(home, 25)
        replica.refresh()
        for read in (lambda: state.get(3), lambda: state.get_many([3]), lambda: list(rows)):
            with pytest.raises(sk.QueryError, match=r"view of epoch 3 was closed.*view_timeout="):
                read()


def test_a_view_keeps_its_epoch_for_the_timeout_from_when_it_was_taken(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(view_module, "stopwatch_s", lambda: seconds)
    with sk.Replica(
        home, directory=tmp_path / "r", follow=False, views=1, view_timeout="10 s"
    ) as replica:
        early = replica.at().state("accounts", "total")
        seconds = 9.0
        late = replica.at().state("accounts", "total")
        run(home, 25)
        seconds = 18.0
        replica.refresh()
        assert late.get(3) == early.get(3) == totals(20)[3]
        seconds = 19.0
        replica.refresh()
        with pytest.raises(sk.QueryError, match=r"view of epoch 3 was closed.*view_timeout="):
            late.get(3)


def test_a_view_stays_open_while_somebody_has_what_it_returned(home: Path, tmp_path: Path) -> None:
    with sk.Replica(home, directory=tmp_path / "r", follow=False, views=1) as replica:
        state = replica.at().state("accounts", "total")
        items = replica.at().state("accounts", "total").items()
        scan = replica.at().state("accounts", "total").scan()
        first = next(items)
        run(home, 25)
        replica.refresh()
        gc.collect()
        assert dict([first, *items]) == dict(scan) == totals(20)
        assert state.get(3) == totals(20)[3]
        del state, items, scan
        gc.collect()
        replica.refresh()
        assert not replica._held


def test_what_a_view_returned_cannot_be_read_after_the_view_was_closed(replica: sk.Replica) -> None:
    with replica.at() as view:
        state, moves = view.state("accounts", "total"), view.state("accounts", "moves")
        begun = state.items()
        next(begun)
    for read in (
        lambda: state.get(3),
        lambda: state.get_many([3]),
        lambda: moves.elements(3),
        lambda: list(state.scan()),
        lambda: list(begun),
        state.count,
        lambda: view.state("accounts", "total"),
    ):
        with pytest.raises(sk.QueryError, match="this view of epoch 3 was closed: take another"):
            read()


def test_older_epochs_are_read_until_there_are_more_than_the_replica_keeps(
    home: Path, replica: sk.Replica
) -> None:
    for count in (25, 30):
        run(home, count)
        replica.refresh()
    assert replica.status().views == (4, 5)
    with replica.at(4) as view:
        assert dict(view.state("accounts", "total").items()) == totals(25)
    with pytest.raises(sk.QueryError, match="cannot read epoch 3: it has the epochs 4, 5"):
        replica.at(3)


def test_a_scan_is_in_the_order_of_keys_within_its_bounds(replica: sk.Replica) -> None:
    with replica.at() as view:
        state = view.state("accounts", "total")
        keys = [key for key, _ in state.scan(2, 6)]
        assert keys == [2, 3, 4, 5]
        assert [key for key, _ in state.scan(2, 6, reverse=True)] == keys[::-1]
        assert [key for key, _ in state.scan(limit=2, after=4)] == [5, 6]
        assert [key for key, _ in state.scan(reverse=True, after=4)] == [3, 2, 1, 0]


class Visit(NamedTuple):
    city: str
    street: str
    number: int


@sk.process(key=("city", "street"))
def houses(visit: Visit, seen: sk.MapState[str, int]) -> Iterator[int]:
    seen[f"{visit.street} {visit.number}"] = visit.number
    yield visit.number


def test_a_scan_may_be_of_the_keys_or_entries_with_a_prefix(tmp_path: Path) -> None:
    job = sk.Job("houses")
    job.source("visits", Visit).process(houses).sink("numbers")
    streets = [("rome", "a"), ("rome", "b"), ("romeo", "a"), ("oslo", "a")]
    visits = [Visit(city, street, number) for city, street in streets for number in (1, 2, 12)]
    job.run({"visits": visits}, checkpoint=tmp_path / "checkpoint")
    for functions in ([], [houses]):
        with sk.Replica(tmp_path / "checkpoint", functions=functions) as own, own.at() as view:
            state = view.state("houses", "seen")
            assert [key for key, _ in state.scan(prefix=("rome",))] == streets[:2]
            assert [key for key, _ in state.scan(prefix=())] == sorted(streets)
            page = state.page(prefix=("rome",), limit=1, reverse=True)
            assert [key for key, _ in page.items] == [("rome", "b")]
            page = state.page(prefix=("rome",), limit=1, reverse=True, cursor=page.cursor)
            assert ([key for key, _ in page.items], page.cursor) == ([("rome", "a")], None)
            entries = state.entries(("rome", "a"), prefix="a 1")
            assert list(entries) == [("a 1", 1), ("a 12", 12)]
            assert not list(state.entries(("rome", "a"), "a 2", prefix="a 1"))
            with pytest.raises(sk.StateTypeError, match="prefix"):
                list(state.scan(prefix="rome"))


class Part(NamedTuple):
    code: bytes
    made: dt.date


@sk.process(key="code")
def made(part: Part, days: sk.MapState[tuple[dt.date, bytes], int]) -> Iterator[int]:
    days[part.made, part.code] = part.made.day
    yield part.made.day


def test_a_prefix_may_be_of_the_greatest_bytes_and_of_dates_as_json(tmp_path: Path) -> None:
    job, day = sk.Job("parts"), dt.date(2026, 1, 1)
    job.source("parts", Part).process(made).sink("days")
    codes = [b"\xff\xff", b"\xffa", b"a\x00b", b"\xfe\xff"]
    job.run({"parts": [Part(code, day) for code in codes]}, checkpoint=tmp_path / "checkpoint")
    with sk.Replica(tmp_path / "checkpoint", functions=[made]) as own, own.at() as view:
        state = view.state("made", "days")
        assert [key for key, _ in state.scan(prefix=b"\xff")] == [b"\xffa", b"\xff\xff"]
        assert [key for key, _ in state.scan(prefix=b"\xfe")] == [b"\xfe\xff"]
        assert [key for key, _ in state.scan(b"\xffb", prefix=b"\xff")] == [b"\xff\xff"]
    with sk.Replica(tmp_path / "checkpoint") as own, own.at() as view:
        state = view.state("made", "days")
        assert [key for key, _ in state.scan(prefix="ff")] == ["ff61", "ffff"]
        entry = (("2026-01-01", "610062"), 1)
        for prefix in (["2026-01-01"], ["2026-01-01", "610062"]):
            assert list(state.entries("610062", prefix=prefix)) == [entry]
        assert not list(state.entries("610062", prefix=["2026-01-02"]))
        for wrong in ("f", 5, ["2026-01-01", "61", "62"]):
            with pytest.raises(sk.StateTypeError, match="prefix"):
                list(state.entries("610062", prefix=wrong))


def test_pages_continue_where_the_one_before_ended(replica: sk.Replica) -> None:
    with replica.at() as view:
        state, found, cursor = view.state("accounts", "total"), list[int](), None
        while True:
            page = state.page(limit=3, cursor=cursor, reverse=True)
            found += [key for key, _ in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == [6, 5, 4, 3, 2, 1, 0]


def test_a_cursor_of_another_epoch_is_refused(home: Path, replica: sk.Replica) -> None:
    with replica.at() as view:
        cursor = view.state("accounts", "total").page(limit=1).cursor
    run(home, 25)
    replica.refresh()
    with replica.at() as view, pytest.raises(sk.QueryError, match="the cursor is of epoch 3"):
        view.state("accounts", "total").page(cursor=cursor)
    with replica.at() as view, pytest.raises(sk.QueryError, match="is not valid"):
        view.state("accounts", "total").page(cursor="guess")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reverse": True}, "of a scan with reverse=False, and this one has reverse=True"),
        ({"start": 1}, "another start or end"),
        ({"end": 5}, "another start or end"),
        ({"start": None, "end": 6}, "another start or end"),
    ],
)
def test_a_cursor_of_another_range_or_direction_is_refused(
    replica: sk.Replica, given: dict[str, Any], message: str
) -> None:
    with replica.at() as view:
        state = view.state("accounts", "total")
        cursor = state.page(limit=1).cursor
        assert state.page(limit=2, cursor=cursor).items, "another limit is none"
        with pytest.raises(sk.QueryError, match=message):
            state.page(cursor=cursor, **given)


def test_a_cursor_of_another_state_is_refused(replica: sk.Replica) -> None:
    with replica.at() as view:
        cursor = view.state("accounts", "total").page(limit=1).cursor
        with pytest.raises(sk.QueryError, match=r"is of state 'accounts.total', and not of"):
            view.state("accounts", "moves").page(cursor=cursor)


def test_maps_and_lists_are_read_in_part(replica: sk.Replica) -> None:
    with replica.at() as view:
        by, moves = view.state("accounts", "by"), view.state("accounts", "moves")
        assert by.get(2) == {"1": 16, "2": 2, "4": 9}
        assert (by.entry(2, "4"), by.entry(2, "0")) == (9, None)
        assert list(by.entries(2, "2", reverse=True)) == [("4", 9), ("2", 2)]
        assert moves.elements(2, 1, 3) == [9, 16]
        with pytest.raises(sk.QueryError, match="is a map state and has no elements"):
            by.elements(2)


def test_a_replica_of_some_key_groups_refuses_keys_of_others(home: Path, tmp_path: Path) -> None:
    with sk.Replica(home, key_groups=(0, 3), directory=tmp_path / "r") as replica:
        with replica.at() as view:
            own = dict(view.state("accounts", "total").items())
        assert 0 < len(own) < 7
        for key, total in totals(20).items():
            if key in own:
                assert replica.get("accounts", "total", key).value == total
            else:
                with pytest.raises(sk.QueryError, match="has the key groups 0 to 3"):
                    replica.get("accounts", "total", key)


def test_a_replica_continues_from_its_directory(home: Path, tmp_path: Path) -> None:
    with sk.Replica(home, directory=tmp_path / "r", follow=False):
        pass
    hide_rows(home)  # so nothing can be restored
    with sk.Replica(home, directory=tmp_path / "r", follow=False) as replica:
        assert replica.get("accounts", "total", 3) == (totals(20)[3], 3)
        show_rows(home)
        run(home, 30)
        replica.refresh()
        assert replica.get("accounts", "total", 3) == (totals(30)[3], 5)


def test_a_damaged_copy_is_restored(home: Path, tmp_path: Path) -> None:
    with sk.Replica(home, directory=tmp_path / "r", follow=False):
        pass
    for table in (tmp_path / "r").rglob("CURRENT"):
        table.write_text("nonsense")
    with sk.Replica(home, directory=tmp_path / "r", follow=False) as replica:
        assert replica.get("accounts", "total", 1).value == totals(20)[1]


# The databases of a process share a cache of each size, which has the rows before they are damaged.
EMPTY_CACHE = sk.RocksOptions(block_cache_bytes=1 << 20)


def damage(directory: Path) -> set[int]:
    """Alter rows of a state in place, and return the inodes of the files."""
    tables = [path for path in directory.rglob("*.sst") if b"state.total" in path.read_bytes()]
    for table in tables:
        before = table.stat()
        with table.open("r+b") as file:
            file.seek(1)
            file.write(b"damaged")
        os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    return {table.stat().st_ino for table in tables}


def test_a_copy_that_is_found_to_be_damaged_by_a_read_is_restored_from_the_checkpoint(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_same_disk", lambda *_: False)  # so tables are no hard links
    run(home, 40, copies=tmp_path / "w")
    with sk.Replica(home, directory=tmp_path / "r", follow=False):
        pass
    assert list((tmp_path / "r").rglob("stored.json"))  # tables that a restore would link
    damaged = damage(tmp_path / "r")
    assert damaged
    with sk.Replica(
        home, directory=tmp_path / "r", follow=False, views=2, rocksdb=EMPTY_CACHE
    ) as replica:
        view = replica.at()
        state = view.state("accounts", "total")
        for read in (
            lambda: list(map(state.get, range(7))),
            lambda: state.get_many(list(range(7))),
            lambda: list(state.items()),
        ):
            with pytest.raises(sk.StorageError, match=r"the replica's copy of operator.*damaged"):
                read()
        replica.refresh()
        assert (replica.status().error, replica.status().views) == (None, (7,))
        with replica.at() as again:
            assert dict(again.state("accounts", "total").items()) == totals(40)
        with pytest.raises(sk.QueryError, match="its local files were damaged"):
            state.get(3)
        assert not damaged & {path.stat().st_ino for path in (tmp_path / "r").rglob("*.sst")}
        run(home, 50)
        replica.refresh()
        assert replica.status().views == (8, 9)


def test_a_replica_that_follows_reports_and_restores_a_damaged_copy_by_itself(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sk.Replica(home, directory=tmp_path / "r", follow=False):
        pass
    damage(tmp_path / "r")
    reported, goes_on = threading.Event(), threading.Event()
    repair = Follower.repair

    def waiting(follower: Follower) -> None:
        reported.set()
        assert goes_on.wait(60)
        repair(follower)

    monkeypatch.setattr(Follower, "repair", waiting)
    with sk.Replica(home, directory=tmp_path / "r", poll="1 ms", rocksdb=EMPTY_CACHE) as replica:
        with pytest.raises(sk.StorageError, match="restores the copy"):
            replica.at().state("accounts", "total").get_many(range(7))
        assert reported.wait(60)
        assert "accounts" in (replica.status().error or "")
        goes_on.set()
        wait_until(lambda: replica.status().error is None)
        assert replica.get_many("accounts", "total", range(7)).value == [*totals(20).values()]


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if is_so():
            return
        sleep_s(0.01)
    raise AssertionError("it never became so")


def test_foreign_files_in_the_directory_stay(home: Path, tmp_path: Path) -> None:
    (tmp_path / "r" / "notes").mkdir(parents=True)
    (tmp_path / "r" / "notes" / "text").write_text("mine")
    (tmp_path / "r" / ("0" * 32) / "data").mkdir(parents=True)  # maybe a checkpoint
    for _ in range(2):
        with sk.Replica(home, directory=tmp_path / "r", follow=False):
            assert (tmp_path / "r" / ("0" * 32) / "data").exists()
            assert (tmp_path / "r" / "notes" / "text").read_text() == "mine"


def test_a_directory_in_the_checkpoint_is_refused_and_nothing_is_written(
    home: Path, tmp_path: Path
) -> None:
    before = sorted(home.rglob("*"))
    (tmp_path / "link").symlink_to(home)
    for directory in (home, home / "epochs", tmp_path / "link"):
        with pytest.raises(sk.QueryError, match="is in the checkpoint"):
            sk.Replica(home, directory=directory)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("name", ["file", "file/below", "nul\0"])
def test_a_directory_that_cannot_be_used_is_an_error_that_names_the_parameter(
    home: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(sk.StorageError, match=r"cannot use the directory.*\(directory=\)"):
        sk.Replica(home, directory=f"{tmp_path}/{name}")


def run_script(text: str, home: Path, temporary: Path) -> subprocess.Popen[str]:
    """Start a process that opens a replica of a checkpoint without a directory."""
    code = f"import statekit as sk\nreplica = sk.Replica({str(home)!r})\n{text}"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_a_temporary_directory_is_removed_when_the_process_ends_without_close(
    home: Path, tmp_path: Path
) -> None:
    for text in ("1 / 0", "import os\nif os.fork() == 0: raise SystemExit\nos.wait()"):
        process = run_script(f"{text}\nreplica.get('accounts', 'total', 1)", home, tmp_path)
        process.communicate()
        assert process.returncode == (text == "1 / 0")
        assert not list(tmp_path.glob("statekit-replica-*"))


def test_the_temporary_directory_of_a_killed_process_is_removed_by_the_next_replica(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run_script("print('open', flush=True); input()", home, tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "statekit-replica-of-a-user").mkdir()
    (left,) = tmp_path.glob("statekit-replica-*/temporary")
    with sk.Replica(home):
        assert left.exists()  # it is in use
    process.kill()
    process.communicate()
    with sk.Replica(home, follow=False) as replica:
        names = {path.name for path in tmp_path.glob("statekit-replica-*")}
        assert names == {replica.directory.name, "statekit-replica-of-a-user"}


def test_the_temporary_directory_of_a_replica_that_nobody_has_is_removed(home: Path) -> None:
    replica = sk.Replica(home, follow=False)
    directory, view = replica.directory, replica.at()
    del replica
    gc.collect()
    assert view.state("accounts", "total").get(3) == totals(20)[3]
    del view
    gc.collect()
    assert not directory.exists()


def test_two_replicas_cannot_share_a_directory(home: Path, replica: sk.Replica) -> None:
    with pytest.raises(sk.QueryError, match="used by another replica"):
        sk.Replica(home, directory=replica.directory)


def test_a_rollback_restores_new_copies(home: Path, replica: sk.Replica) -> None:
    run(home, 30)
    replica.refresh()
    plan(Repository(home), 4).carry_out()
    replica.refresh()
    with replica.at() as view:
        assert (view.epoch, view.cause) == (6, "rollback")
        assert dict(view.state("accounts", "total").items()) == totals(25)


def test_a_replica_that_is_behind_the_retention_restores(home: Path, replica: sk.Replica) -> None:
    run(home, 70, retention=1)
    assert Repository(home).first_kept() > 4
    replica.refresh()
    with replica.at() as view:
        assert dict(view.state("accounts", "total").items()) == totals(70)


def test_a_replica_before_the_first_epoch_waits_for_it(tmp_path: Path) -> None:
    Repository(tmp_path / "c")
    with sk.Replica(tmp_path / "c", poll="1 ms") as replica:
        with pytest.raises(sk.QueryError, match="has no committed epoch"):
            replica.get("accounts", "total", 1)
        with pytest.raises(sk.QueryError, match="is at epoch None, and not at 0"):
            replica.wait_for(0, "1 ms")
        run(tmp_path / "c", 5)
        replica.wait_for(0)
        assert replica.get("accounts", "total", 1).value == 1


def test_a_disk_error_is_reported_and_the_last_epoch_stays_readable(
    home: Path, replica: sk.Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(home, 25)

    def full(backend: RocksBackend, batch: object) -> None:
        raise sk.StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(RocksBackend, "write", full)
        with pytest.raises(sk.StorageError):
            replica.refresh()
        assert replica.get("accounts", "total", 1) == (totals(20)[1], 3)
    replica.refresh()
    assert replica.get("accounts", "total", 1) == (totals(25)[1], 4)


def test_names_that_do_not_exist_are_refused_with_those_that_do(replica: sk.Replica) -> None:
    with pytest.raises(sk.QueryError, match="has no operator 'sales': it has accounts"):
        replica.get("sales", "total", 1)
    with pytest.raises(sk.QueryError, match="has no state 'sum': it has total, moves, by"):
        replica.get("accounts", "sum", 1)
    with pytest.raises(sk.StateTypeError):
        replica.get("accounts", "total", "rome")
    with replica.at() as view, pytest.raises(sk.QueryError, match="belongs to keys"):
        view.operator_state("accounts", "total")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operators": "accounts"}, r"operators='accounts': give the names of operators in a list"),
        ({"operators": [accounts]}, "give the names of operators in a list"),
        ({"operators": []}, "give the names of operators in a list"),
        ({"key_groups": "abc"}, "key_groups='abc': give the first and the last key group"),
        ({"key_groups": 5}, "key_groups=5: give the first and the last key group"),
        ({"key_groups": (0, 1.5)}, "give the first and the last key group"),
        ({"key_groups": (False, True)}, "give the first and the last key group"),
        ({"functions": accounts}, "give process functions.* in a list"),
        ({"functions": ["accounts"]}, "give process functions.* in a list"),
        ({"functions": {"accounts": print}}, "give process functions.* in a list"),
    ],
)
def test_an_argument_of_another_type_is_refused_with_the_form_to_give(
    home: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(sk.StateTypeError, match=message):
        sk.Replica(home, **arguments)


def test_a_function_of_an_operator_that_the_job_does_not_have_is_refused(home: Path) -> None:
    with pytest.raises(sk.QueryError, match="no such operator: it has accounts"):
        sk.Replica(home, functions={"sales": accounts})


def test_a_function_that_fits_no_operator_of_the_first_epoch_is_reported_until_it_is_closed(
    tmp_path: Path,
) -> None:
    Repository(tmp_path / "c")
    with sk.Replica(tmp_path / "c", functions={"sales": accounts}, poll="1 ms") as replica:
        run(tmp_path / "c", 5)
        for _ in range(2):
            with pytest.raises(sk.QueryError, match="no such operator: it has accounts"):
                replica.refresh()
        wait_until(lambda: "no such operator" in (replica.status().error or ""))
        with pytest.raises(sk.QueryError, match="no such operator: it has accounts"):
            replica.wait_for(0, "1 ms")


def test_several_keys_are_read_from_any_iterable_but_a_text(replica: sk.Replica) -> None:
    expected = list(totals(20).values())
    for keys in (range(7), tuple(range(7)), dict.fromkeys(range(7)), (key for key in range(7))):
        assert replica.get_many("accounts", "total", keys).value == expected
    assert len(replica.get_many("accounts", "moves", {1, 2}).value) == 2
    one: Any
    for one in ("1", b"1", 1, None):
        with pytest.raises(sk.StateTypeError, match="is one key: give several keys in a list"):
            replica.get_many("accounts", "total", one)


def test_all_calls_of_a_closed_replica_raise_an_error_that_says_so(
    home: Path, tmp_path: Path
) -> None:
    replica = sk.Replica(home, directory=tmp_path / "r")
    view = replica.at()
    state = view.state("accounts", "total")
    replica.close()
    for read in (
        lambda: state.get(1),
        lambda: replica.get("accounts", "total", 1),
        replica.at,
        lambda: list(state.scan()),
        state.count,
        replica.refresh,
        lambda: replica.wait_for(1),
    ):
        with pytest.raises(sk.QueryError, match="the replica was closed"):
            read()
    assert replica.status().views == ()


def test_a_limit_that_is_no_number_of_keys_is_refused(replica: sk.Replica) -> None:
    with replica.at() as view:
        state = view.state("accounts", "total")
        assert list(state.scan(limit=0)) == []
        for read in (lambda: state.scan(limit=-1), lambda: state.page(limit=0)):
            with pytest.raises(sk.QueryError, match="give a number of keys, at least"):
                read()


# -------------------------------------------------------------------------------- operator state


class Rate(NamedTuple):
    currency: str
    rate: float


Counted = Annotated[
    sk.OperatorState[int],
    sk.Default(0),
    sk.Redistribute(split=lambda count, shards: [count] + [0] * (shards - 1), merge=sum),
]


@sk.process(key="account")
def valued(
    move: Move, rates: sk.BroadcastState[str, float], count: Counted, last: sk.ValueState[float]
) -> None:
    last.update(rates.get("eur", 1.0))
    count.update((count.get() or 0) + 1)


@valued.on_broadcast
def learn(rate: Rate, rates: sk.BroadcastState[str, float]) -> None:
    rates[rate.currency] = rate.rate


def run_valued(home: Path, rates: int, moves: int, parallelism: int) -> None:
    job = sk.Job("rates", key_groups=8)
    learned = job.source("rates", Rate)
    job.source("moves", Move).process(valued, broadcast=learned)
    records: dict[str, list[Any]] = {
        "rates": [Rate(f"c{number % 3}", number) for number in range(rates)],
        "moves": [Move(number % 40, number) for number in range(moves)],
    }
    job.run(records, checkpoint=home, parallelism=parallelism, epoch_size=20)


def test_a_replica_of_a_part_has_the_operator_state_of_each_shard_that_has_key_groups_in_it(
    tmp_path: Path,
) -> None:
    home, parts = tmp_path / "c", [None, (0, 3), (4, 7), (0, 1), (2, 3), (3, 5), (5, 5)]
    run_valued(home, 1, 40, 2)
    replicas = [
        sk.Replica(home, key_groups=part, directory=tmp_path / f"r{number}", follow=False)
        for number, part in enumerate(parts)
    ]
    steps = [(2, 40, 2), (2, 60, 2), (3, 90, 3), (4, 90, 1), (6, 130, 1), (6, 150, 2), (7, 160, 2)]
    for number, step in enumerate(steps):
        run_valued(home, *step)
        if number % 3 == 2:  # those of others stay open
            replicas[number].close()
            replicas[number] = sk.Replica(
                home, key_groups=parts[number], directory=tmp_path / f"r{number}", follow=False
            )
        reader = CheckpointReader(home)
        shards = reader.manifest.operators["valued"].shards
        for replica, (first, last) in zip(
            replicas, [part or (0, 7) for part in parts], strict=True
        ):
            replica.refresh()
            own = [n for n, shard in enumerate(shards) if shard.overlaps(first, last)]
            with replica.at() as view:
                for state in ("rates", "count"):
                    of_shards = reader.operator_state("valued", state)
                    expected = {number: of_shards[number] for number in own}
                    assert view.operator_state("valued", state) == expected
                rows = dict(view.state("valued", "last").items())
                assert rows == {key: view.state("valued", "last").get(key) for key in rows}
                assert view.operator_state("valued", "rates")[own[0]]
    for replica in replicas:
        replica.close()


# --------------------------------------------------------------------------------- plain values


class Leg(NamedTuple):
    key: str
    minutes: float


def run_legs(home: Path, *legs: Leg, with_gate: bool) -> None:
    """Run the first version of a job, or one whose struct has another field."""
    if with_gate:

        class Kept(NamedTuple):
            minutes: float
            gate: str = "A1"

    else:

        class Kept(NamedTuple):  # type: ignore[no-redef]
            minutes: float

    @sk.process(key="key")
    def op(
        leg: Leg,
        last: sk.ValueState[Kept],
        by_tuple: sk.MapState[tuple[str, int], int],
        by_int: sk.MapState[int, int],
        by_day: sk.MapState[dt.date, int],
    ) -> None:
        last.update(Kept(leg.minutes))
        by_tuple["a", 1] = by_int[2] = by_day[dt.date(2013, 1, 1)] = 3

    job = sk.Job("legs")
    job.source("legs", Leg).process(op)
    job.run({"legs": legs}, checkpoint=home, epoch_size=1)


def test_the_shape_of_plain_values_follows_from_the_types_alone(tmp_path: Path) -> None:
    legs = [Leg("a", 1.5), Leg("b", math.nan), Leg("c", 2.5)]
    run_legs(tmp_path / "c", *legs[:2], with_gate=False)
    run_legs(tmp_path / "c", *legs, with_gate=True)
    with sk.Replica(tmp_path / "c", follow=False) as replica:
        assert replica.get_many("op", "last", ["a", "b", "c", "d"]).value == [
            {"minutes": 1.5, "gate": None},
            {"minutes": "NaN", "gate": None},
            {"minutes": 2.5, "gate": "A1"},
            None,
        ]
        for state, value in (
            ("by_tuple", [[["a", 1], 3]]),
            ("by_int", {2: 3}),
            ("by_day", {"2013-01-01": 3}),
        ):
            answers = replica.get_many("op", state, ["a", "d"]).value
            assert answers == [value, type(value)()]
        (snapshot,) = sk.feed(tmp_path / "c", "op", "last", until=0)
        assert [change.value for change in snapshot] == [{"minutes": 1.5}]


# ------------------------------------------------------------------------- replaced checkpoints


def run_texts(home: Path, count: int, *, key_groups: int = 8) -> None:
    """Run another job at the same path, whose state of the same name has texts."""

    @sk.process(key="account")
    def accounts(move: Move, total: sk.ValueState[str]) -> None:
        total.update(f"{move.cents} cents")

    job = sk.Job("bank", key_groups=key_groups)
    job.source("moves", Move).process(accounts)
    moves = [Move(number % 7, number) for number in range(count)]
    job.run({"moves": moves}, checkpoint=home, epoch_size=5)


def test_a_replica_reads_the_types_and_key_groups_of_a_job_that_replaced_another_one(
    home: Path, replica: sk.Replica
) -> None:
    shutil.rmtree(home)
    run_texts(home, 30, key_groups=16)
    replica.refresh()
    assert replica.get("accounts", "total", 3) == ("24 cents", 5)
    with replica.at() as view:
        assert len(dict(view.state("accounts", "total").items())) == 7


def test_a_replica_notices_a_replaced_checkpoint_whose_last_epoch_has_the_same_number(
    home: Path, replica: sk.Replica
) -> None:
    assert replica.get("accounts", "total", 3) == (totals(20)[3], 3)
    shutil.rmtree(home)
    run_texts(home, 20)
    replica.refresh()
    assert replica.get("accounts", "total", 3) == ("17 cents", 3)
    assert replica.status().views == (3,)
    with replica.at(3) as view:
        assert view.state("accounts", "total").get(3) == "17 cents"


def replace_by_backup(home: Path, backup: Path, count: int) -> None:
    """Put a backup in the place of the checkpoint, where the job goes on up to a record."""
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    if count:
        run(home, count)


@pytest.mark.parametrize(("count", "epoch"), [(0, 1), (20, 3), (15, 2), (40, 7)])
def test_a_cursor_and_an_identity_are_of_the_version_of_the_checkpoint_that_had_them(
    tmp_path: Path, count: int, epoch: int
) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    run(home, 10)
    shutil.copytree(home, backup)
    run(home, 20)
    with sk.Replica(home, directory=tmp_path / "r", follow=False, views=9) as replica:
        with replica.at() as view:
            last, cursor = view.id, view.state("accounts", "total").page(limit=1).cursor
        assert replica.at(last).id == last
        replace_by_backup(home, backup, count)
        replica.refresh()
        assert replica.epoch_id == Repository(home).manifest(epoch).id
        with pytest.raises(sk.QueryError, match="cannot read epoch"):
            replica.at(last)
        with replica.at() as view, pytest.raises(sk.QueryError, match=r"the cursor is of"):
            view.state("accounts", "total").page(cursor=cursor)
        assert 0 not in replica.status().views


def test_epochs_before_a_gap_are_not_read_beside_those_after_it(tmp_path: Path) -> None:
    """Nothing shows whether the checkpoint was replaced in between."""
    home = tmp_path / "home"
    run(home, 20)
    with sk.Replica(home, directory=tmp_path / "r", follow=False, views=9) as replica:
        run(home, 60, retention=2)
        Collector(Repository(home), Retention(epochs=2)).collect(sweep=None)
        replica.refresh()
        assert min(replica.status().views) >= Repository(home).epochs()[0]


def test_a_checkpoint_that_is_gone_for_a_while_was_not_replaced(
    home: Path, replica: sk.Replica
) -> None:
    run(home, 25)
    replica.refresh()
    views = replica.status().views
    away = home.with_name("away")
    home.rename(away)
    with pytest.raises(sk.StorageError, match=r"has no epochs at the moment, and epoch 4 was"):
        replica.refresh()
    assert replica.get("accounts", "total", 3) == (totals(25)[3], 4)
    home.mkdir()  # a directory that is not mounted
    with pytest.raises(sk.StorageError, match="make it available again"):
        replica.refresh()
    home.rmdir()
    away.rename(home)
    replica.refresh()
    assert replica.status().views == views
    run(home, 30)
    replica.refresh()
    assert replica.status().views == (views[-1], 5)


def test_a_reader_does_not_create_a_checkpoint_that_is_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKIT_STORE_RETRY_SECONDS", "1")  # it is not back after minutes, too
    repository = Repository(home, create=False)
    shutil.rmtree(home)
    with pytest.raises(sk.StorageError, match="is not there at the moment"):
        repository.create("epochs/x", b"")
    assert not home.exists()


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (0, 6), (3, 3), (5, 6), (2, 39)])
def test_kept_epochs_are_counted_with_few_requests(
    first: int, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, asked = EpochReader(Repository.in_memory()), list[int]()

    def is_committed(epoch: int) -> bool:
        asked.append(epoch)
        return first <= epoch <= last

    monkeypatch.setattr(reader.repository, "is_committed", is_committed)
    assert reader.kept_before(last + 1) == last + 1 - first
    assert len(asked) <= 2 * math.log2(last + 2 - first) + 2
    assert min(asked, default=0) >= 0
    assert reader.kept_before(first) == 0


def test_the_headroom_of_a_replica_ends_when_its_next_epoch_may_be_collected(
    home: Path, tmp_path: Path
) -> None:
    with sk.Replica(home, directory=tmp_path / "r", follow=False, poll="1 us") as replica:
        assert (replica.epoch, replica.status().headroom) == (3, 4)
        run(home, 40, retention=3)
        # The job collects in the background, and on a busy machine not after its last epoch.
        Collector(Repository(home), Retention(epochs=3)).collect(sweep=None)
        assert Repository(home).epochs()[0] >= 4
        late = EpochReader(home).kept_before(4)
        assert late == 0
        replica.refresh()
        epochs = Repository(home).epochs()
        assert (replica.epoch, replica.status().headroom) == (7, len(epochs))
