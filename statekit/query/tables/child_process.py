"""Child processes: work that takes long or much memory, in a process that is ended in time.

The parent runs `python -m MODULE`, writes a request to its input and reads the answer from its
output. It kills the child when the time is over, or when nobody wants the answer any more. A child
whose parent was killed ends by itself.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from statekit.clock import sleep_s, stopwatch_s
from statekit.errors import QueryError, StatekitError, class_of_kind

W = TypeVar("W", bound=msgspec.Struct)

_POLL_S = 0.2

_FAILED = 3
"""The exit code of a child whose answer is a `_Failure`."""

_OUT_OF_MEMORY = 4
"""The exit code of a child that has reached its memory limit."""

_LIBRARIES_BYTES = 150 * 2**20
"""Memory that the code of libraries takes in a child: the rest is for heap and stacks."""

_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Arrow's other allocators reserve a gigabyte of addresses, which a limit of memory counts."""

_END_BY_ITSELF_S = 5.0
"""Seconds after its time limit until a child ends by itself, if the parent has not ended it."""


class ChildLimitError(QueryError):
    """A child took more time or memory than it may."""


class _Request(msgspec.Struct, frozen=True):
    """The request that a child reads from its input.

    Parameters:
        work: the work to do, in MessagePack.
        directory: for its files. The process that ends last removes it.
        seconds: after which it ends by itself.
        parent: the process that waits for it.
        memory_bytes: limit of its memory in all; None for no limit.
    """

    work: bytes
    directory: str
    seconds: float
    parent: int
    memory_bytes: int | None = None


class _Failure(msgspec.Struct):
    """A statekit error that a child raised."""

    kind: str
    detail: str


class WarmChild:
    """A child that has already imported its module, for the next request. This saves a second.

    Each child answers one request. When a request has ended, the next child is started.

    Parameters:
        module: its name.
        niceness: of the process, so that the scheduler prefers others, such as the server.
    """

    def __init__(self, module: str, niceness: int = 0) -> None:
        self._module, self._niceness = module, niceness
        self._lock = threading.Lock()
        self._next: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def take(self) -> subprocess.Popen[bytes]:
        """Return a child that waits for its request, or still imports its module."""
        with self._lock:
            child, self._next = self._next, None
            if child is not None and child.poll() is not None:  # it was ended from outside
                _end(child)
                child = None
            return child or _started(self._module, self._niceness)

    def prepare(self) -> None:
        """Start a child for the next request, if no child waits already."""
        with self._lock:
            if self._next is None and not self._is_closed:
                self._next = _started(self._module, self._niceness)

    def close(self) -> None:
        """End the child that waits."""
        with self._lock:
            child, self._next, self._is_closed = self._next, None, True
        if child is not None:
            _end(child)


def run_child(
    module: str,
    work: msgspec.Struct,
    what: str,
    *,
    timeout_s: float,
    is_unwanted: Callable[[], bool] = lambda: False,
    below: Path | None = None,
    memory_bytes: int | None = None,
    niceness: int = 0,
    warm: WarmChild | None = None,
    advice: str = "read fewer columns or rows",
) -> bytes:
    """Run a module in a process of its own, and return its answer.

    Parameters:
        module: its name; it calls `answer_parent` when it is run.
        work: the work to do.
        what: a name of the work for error messages, such as "query".
        timeout_s: the longest time, in seconds.
        is_unwanted: asked while the child runs; it is ended once nobody wants the answer.
        below: where the directory for its files is created; None for `TMPDIR`.
        memory_bytes: limit of the memory of the process in all; None for no limit. Linux
            enforces it.
        niceness: of the process, so that the scheduler prefers others, such as the server.
        warm: has started a process of this module already, with its own niceness.
        advice: advice to the user if the work takes too much, for error messages.

    Raises:
        ChildLimitError: it takes too long or too much memory.
        StatekitError: the child has raised it.
    """
    with tempfile.TemporaryDirectory(prefix="statekit-child-", dir=below) as directory:
        seconds = timeout_s + _END_BY_ITSELF_S
        encoded = msgspec.msgpack.encode(work)
        request = _Request(encoded, directory, seconds, os.getpid(), memory_bytes)
        given = msgspec.msgpack.encode(request)
        child = _started(module, niceness) if warm is None else warm.take()
        try:
            code, output, errors = _ran(child, given, what, timeout_s, advice, is_unwanted)
        finally:
            if warm is not None:
                warm.prepare()
    if code == _FAILED:
        failure = msgspec.json.decode(output, type=_Failure)
        raise (class_of_kind(failure.kind) or QueryError)(failure.detail)
    if code == _OUT_OF_MEMORY and memory_bytes is not None:
        raise ChildLimitError(
            f"the {what} took more than {memory_bytes / 2**20:,.0f} MB of memory: {advice}"
        )
    if code != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildLimitError(
            f"the process of the {what} ended with {code} ({last[:300]}): it may have taken too "
            f"much memory. What can help: {advice}"
        )
    return output


_COMMAND = (
    "import os, runpy, sys; os.nice(int(sys.argv.pop(1))); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def _started(module: str, niceness: int) -> subprocess.Popen[bytes]:
    """Start a child, which imports its module and waits for its request.

    It has a process group of its own, in this session: Linux shares the machine between sessions
    first (`sched_autogroup_enabled`), so that a child in another one would take as much of it as
    the parent, however low its priority is.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, str(niceness), module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env=os.environ | _ENVIRONMENT,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child that has no request."""
    child.kill()
    child.communicate()


def _ran(
    child: subprocess.Popen[bytes],
    request: bytes,
    what: str,
    timeout_s: float,
    advice: str,
    is_unwanted: Callable[[], bool],
) -> tuple[int, bytes, bytes]:
    """Send the request to the child, and return its exit code, output and errors."""
    until_s = stopwatch_s() + timeout_s
    with child as process:
        given: bytes | None = request
        try:
            while True:
                try:
                    output, errors = process.communicate(given, _POLL_S)
                except subprocess.TimeoutExpired:
                    given = None
                else:
                    return process.returncode, output, errors
                if stopwatch_s() > until_s:
                    raise ChildLimitError(
                        f"the {what} took more than {timeout_s:g} s: {advice}, or give it more time"
                    )
                if is_unwanted():
                    raise QueryError(f"the {what} was ended: nobody waits for its result")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


# --------------------------------------------------------------------------------- in the child


def answer_parent(cls: type[W], answer: Callable[[W, Path], bytes]) -> int:
    """Read the request from the input, write the answer to the output and return the exit code.

    Parameters:
        cls: the class of the work.
        answer: returns the answer; its second argument is an empty directory for files.
    """
    given = sys.stdin.buffer.read()
    if not given:
        return 0  # the parent ended before it had a request
    request = msgspec.msgpack.decode(given, type=_Request)
    threading.Thread(target=_leave_in_time, args=(request,), daemon=True).start()
    if request.memory_bytes is not None:
        limit = request.memory_bytes - _LIBRARIES_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        work = msgspec.msgpack.decode(request.work, type=cls)
        sys.stdout.buffer.write(answer(work, Path(request.directory)))
    except StatekitError as error:
        sys.stdout.buffer.write(msgspec.json.encode(_Failure(error.kind, str(error))))
        return _FAILED
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)  # threads without memory may keep a process from ending
    return 0


def _leave_in_time(request: _Request) -> None:
    """End the process when its time is over, or when the parent was killed."""
    until_s = stopwatch_s() + request.seconds
    while stopwatch_s() < until_s and os.getppid() == request.parent:
        sleep_s(_POLL_S)
    shutil.rmtree(request.directory, ignore_errors=True)
    os._exit(1)
