"""Who may use a copy's directory, while others take it, remove it, fork and die."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import statekit as sk
from statekit.working_copy.directory import DirectoryLease
from statekit.working_copy.disk_space import CopySpace
from statekit.working_copy.lock import DirectoryLock
from tests.support.killable_processes import exit_code, pipe, start
from tests.support.timeouts import PATIENCE_S


def is_free(home: Path) -> bool:
    lease = DirectoryLease.take(home)
    lease.release()
    return lease.home == home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ("0" * 32) / "op" / "0-7"


# ---------------------------------------------------------------------------- threads, processes


def test_of_two_threads_of_a_process_one_gets_the_directory(home: Path) -> None:
    taken: list[DirectoryLease] = []
    both = threading.Barrier(2)

    def take() -> None:
        both.wait()
        taken.append(DirectoryLease.take(home))

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lease.home == home for lease in taken) == [False, True]
    for lease in taken:
        lease.release()
    assert [path.name for path in home.iterdir()] == ["lock"]


def hold(home: str, told: Connection) -> None:
    lease = DirectoryLease.take(Path(home))
    told.send(lease.home == Path(home))
    told.recv()


def held_elsewhere(home: Path) -> tuple[ForkServerProcess, Connection]:
    """A process that holds a copy until it is told something or killed."""
    here, there = pipe()
    process = start(hold, str(home), there)
    there.close()
    assert here.recv()
    return process, here


def test_the_lock_of_a_process_that_was_killed_is_free(home: Path) -> None:
    process, connection = held_elsewhere(home)
    assert not is_free(home)
    process.kill()
    process.join()
    assert is_free(home)
    connection.close()


def hold_and_fork(home: str, told: Connection) -> None:
    lease = DirectoryLease.take(Path(home))
    if os.fork() == 0:
        lease.release()  # as finalizers of a forked process may
        told.send("forked")
        told.poll(PATIENCE_S)  # outlives its parent, until the test closes its end
        os._exit(0)
    time.sleep(60)


def test_a_forked_process_neither_gives_the_directory_back_nor_keeps_it(home: Path) -> None:
    here, there = pipe()
    process = start(hold_and_fork, str(home), there)
    there.close()
    assert here.recv() == "forked"
    assert not is_free(home)
    process.kill()
    process.join()
    assert is_free(home)
    here.close()


# ----------------------------------------------------------------------------------------- removal


def test_a_lock_that_was_got_after_its_directory_was_removed_does_not_count(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DirectoryLease.take(home).release()
    flock, removed = fcntl.flock, list[bool]()

    def remove_first(descriptor: int, kind: int) -> None:
        if not removed:
            removed.append(True)
            assert CopySpace(tmp_path).remove(home)
            assert not home.exists()
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lease = DirectoryLease.take(home)
    assert removed
    assert lease.home == home
    assert not is_free(home)
    lease.release()


def take_and_give_back(home: str, seconds: float) -> None:
    """Have the directory to oneself, again and again; an error if somebody else is in there."""
    end = time.monotonic() + seconds
    own = str(os.getpid())
    while time.monotonic() < end:
        lease = DirectoryLease.take(Path(home))
        (lease.home / "db").mkdir()
        (lease.home / "db" / own).touch()
        time.sleep(0.001)
        assert os.listdir(lease.home / "db") == [own]
        (lease.home / "db" / own).unlink()
        (lease.home / "db").rmdir()
        lease.release()
        time.sleep(0.001)


def remove_again_and_again(root: str, seconds: float) -> None:
    space = CopySpace(root)
    end = time.monotonic() + seconds
    removed = 0
    while time.monotonic() < end:
        removed += space.remove_all()
        space.remove_leftovers()
    assert removed, "the directory was never free"


def test_takers_and_removers_in_several_processes_never_meet(tmp_path: Path, home: Path) -> None:
    processes = [start(take_and_give_back, str(home), 1.5) for _ in range(3)]
    processes += [start(remove_again_and_again, str(tmp_path), 1.5) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 5
    CopySpace(tmp_path).remove_all()
    assert list(tmp_path.iterdir()) == []


def look_at_it(home: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with DirectoryLock.held(Path(home), shared=True):
            pass
        time.sleep(0.001)


def test_reading_a_copy_does_not_block_its_user(home: Path) -> None:
    DirectoryLease.take(home).release()
    process = start(look_at_it, str(home), 1.0)
    found = []
    while process.is_alive():
        found.append(is_free(home))
    assert process.exitcode == 0
    assert found.count(False) <= len(found) // 10  # it may be stopped just when it looks


# -------------------------------------------------------------------------------------- bad places


def test_a_file_system_without_locks_is_an_error_with_advice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(sk.StorageError, match=r"0-7: .*can be locked \(working_directory="):
        DirectoryLease.take(home)


def test_the_lock_is_taken_in_a_process_that_execs_nothing_of_it(home: Path) -> None:
    lease = DirectoryLease.take(home)
    locks = [name for name in os.listdir("/dev/fd") if _is_lock(int(name), home)]
    assert len(locks) == 1
    assert not os.get_inheritable(int(locks[0]))
    lease.release()
    assert exit_code(free_again, str(home)) == 0


def _is_lock(descriptor: int, home: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), (home / "lock").stat())
    except OSError:
        return False  # the listing's own descriptor


def free_again(home: str) -> None:
    assert is_free(Path(home))
