"""Child processes: work that takes long or much memory, in a process that is ended in time.

A fork server imports the module of the work once, and forks a child for each request: imports take
seconds, and a fork takes milliseconds. The child reads the request from a socket, writes the answer
to it and ends. The parent kills it when the time is over, or when nobody wants the answer any more.
A child whose parent was killed ends by itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import msgspec

from statekit.clock import sleep_s, stopwatch_s
from statekit.closing import Closing
from statekit.errors import QueryError, StatekitError, class_of_kind

W = TypeVar("W", bound=msgspec.Struct)

_POLL_S = 0.2

_ANSWERED, _FAILED, _OUT_OF_MEMORY, _BROKEN = b"\x00", b"\x01", b"\x02", b"\x03"
"""The first byte of a reply. The rest is an answer, a `_Failure`, nothing, or the text of an error
of the child's code.
"""

_PID_BYTES = 4
"""A child sends its process id once it has the request, and then the reply."""

_LIBRARIES_BYTES = 150 * 2**20
"""Memory that the code of libraries takes in a child: the rest is for heap and stacks."""

_ENVIRONMENT = {
    # Arrow's other allocators reserve a gigabyte of addresses, which a limit of memory counts.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # A process that forks has one thread: others would be missing in its children.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}

_END_BY_ITSELF_S = 5.0
"""Seconds after its time limit until a child ends by itself, if the parent has not ended it."""

_NAME_BYTES_MAX = 1024


class ChildLimitError(QueryError):
    """A child took more time or memory than it may."""


class _Request(msgspec.Struct, frozen=True):
    """The request that a child reads from its socket.

    Parameters:
        work: the work to do, in MessagePack.
        directory: for its files. The process that ends last removes it.
        seconds: after which it ends by itself.
        memory_bytes: limit of its memory in all; None for no limit.
    """

    work: bytes
    directory: str
    seconds: float
    memory_bytes: int | None = None


class _Failure(msgspec.Struct):
    """A statekit error that a child raised."""

    kind: str
    detail: str


class ChildWork(Generic[W]):
    """The work of a module that children run. The module has it as `CHILD_WORK`.

    Parameters:
        cls: the class of requests.
        answer: returns the answer; its second argument is an empty directory for files.
    """

    def __init__(self, cls: type[W], answer: Callable[[W, Path], bytes]) -> None:
        self._cls, self._answer = cls, answer

    def reply(self, request: _Request) -> tuple[bytes, bytes]:
        """Return the first byte of the reply, and its rest."""
        try:
            work = msgspec.msgpack.decode(request.work, type=self._cls)
            return _ANSWERED, self._answer(work, Path(request.directory))
        except StatekitError as error:
            return _FAILED, msgspec.json.encode(_Failure(error.kind, str(error)))
        except MemoryError:
            return _OUT_OF_MEMORY, b""
        except Exception as error:  # noqa: BLE001 - the parent raises it
            return _BROKEN, f"{type(error).__name__}: {error}".encode(errors="replace")


# -------------------------------------------------------------------------------- in the parent


class ForkServer(Closing):
    """A process that forks children, which have imported their modules already.

    It starts with its first child, and imports a module with the first child of the module.

    Parameters:
        niceness: of all children, so that the scheduler prefers others, such as the parent.
    """

    def __init__(self, niceness: int = 0) -> None:
        self._niceness = niceness
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Its process id; None before the first child."""
        return None if self._process is None else self._process.pid

    def connect(self, module: str) -> socket.socket:
        """Return the connection to a new child. If the process is killed meanwhile, it has ended.

        Parameters:
            module: has the work of the child.

        Raises:
            QueryError: it was closed.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._control is not None
            ours, theirs = socket.socketpair()
            with theirs, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._control, [module.encode()], [theirs.fileno()])
        return ours

    def _start(self) -> None:
        """Start the process.

        It has a process group of its own, in this session: Linux shares the machine between
        sessions first (`sched_autogroup_enabled`), so that a process in another one would take as
        much of it as the parent, however low its priority is.
        """
        if self._is_closed:
            raise QueryError("the processes of queries were ended")
        self._end()
        self._control, theirs = socket.socketpair()
        code = f"from {__name__} import serve_forks; serve_forks({self._niceness})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                process_group=0,
                env=os.environ | _ENVIRONMENT,
            )

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            self._control.close()

    def close(self) -> None:
        """End the process. Its children end soon after it."""
        with self._lock:
            self._is_closed = True
            self._end()
            self._process = self._control = None


def run_child(
    module: str,
    work: msgspec.Struct,
    what: str,
    *,
    timeout_s: float,
    is_unwanted: Callable[[], bool] = lambda: False,
    below: Path | None = None,
    memory_bytes: int | None = None,
    forks: ForkServer | None = None,
    advice: str = "read fewer columns or rows",
) -> bytes:
    """Run the work of a module in a process of its own, and return its answer.

    Parameters:
        module: its name; it has a `CHILD_WORK`.
        work: the work to do.
        what: a name of the work for error messages, such as "query".
        timeout_s: the longest time, in seconds.
        is_unwanted: asked while the child runs; it is ended once nobody wants the answer.
        below: where the directory for its files is created; None for `TMPDIR`.
        memory_bytes: limit of the memory of the process in all; None for no limit. Linux
            enforces it.
        forks: forks the process; None for a fork server of this call alone.
        advice: advice to the user if the work takes too much, for error messages.

    Raises:
        ChildLimitError: it takes too long or too much memory.
        StatekitError: the child has raised it.
    """
    with contextlib.ExitStack() as ends:
        directory = ends.enter_context(
            tempfile.TemporaryDirectory(prefix="statekit-child-", dir=below)
        )
        seconds = timeout_s + _END_BY_ITSELF_S
        request = _Request(msgspec.msgpack.encode(work), directory, seconds, memory_bytes)
        own = forks or ends.enter_context(ForkServer())
        child = ends.enter_context(_Child(own.connect(module)))
        try:
            reply = child.answer(msgspec.msgpack.encode(request), timeout_s, is_unwanted)
        except TimeoutError:
            raise ChildLimitError(
                f"the {what} took more than {timeout_s:g} s: {advice}, or give it more time"
            ) from None
        if reply is None:
            raise QueryError(f"the {what} was ended: nobody waits for its result")
    kind, rest = reply[:1], reply[1:]
    if kind == _ANSWERED:
        return rest
    if kind == _FAILED:
        failure = msgspec.json.decode(rest, type=_Failure)
        raise (class_of_kind(failure.kind) or QueryError)(failure.detail)
    if kind == _OUT_OF_MEMORY and memory_bytes is not None:
        raise ChildLimitError(
            f"the {what} took more than {memory_bytes / 2**20:,.0f} MB of memory: {advice}"
        )
    why = f" ({rest.decode(errors='replace')[:300]})" if rest else ""
    raise ChildLimitError(
        f"the process of the {what} ended without an answer{why}: it may have taken too much "
        f"memory. What can help: {advice}"
    )


class _Child:
    """A child, as its parent sees it. It is killed at the end of a `with` block, if it runs.

    Parameters:
        connection: to the child.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._found, self._has_ended = connection, bytearray(), False

    def answer(
        self, request: bytes, timeout_s: float, is_unwanted: Callable[[], bool]
    ) -> bytes | None:
        """Send the request, and return the reply; None if nobody wants it any more.

        Raises:
            TimeoutError: it takes too long.
        """
        until_s = stopwatch_s() + timeout_s
        self._connection.settimeout(timeout_s)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the child has ended
            self._connection.sendall(request)
            self._connection.shutdown(socket.SHUT_WR)
        self._connection.settimeout(_POLL_S)
        while not self._has_ended:
            try:
                self._read()
            except TimeoutError:
                if stopwatch_s() > until_s:
                    raise
                if is_unwanted():
                    return None
        return bytes(self._found[_PID_BYTES:])

    def _read(self) -> None:
        try:
            part = self._connection.recv(2**20)
        except ConnectionResetError:  # it ended before it had read the request
            part = b""
        self._found += part
        self._has_ended = not part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._connection:
            if not self._has_ended and len(self._found) >= _PID_BYTES:
                pid = int.from_bytes(self._found[:_PID_BYTES])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._connection.settimeout(None)
                while not self._has_ended:  # until then it may write into its directory
                    self._read()


# ------------------------------------------------------------------------------ in the processes


def serve_forks(niceness: int) -> None:
    """Fork children until the parent ends. The socket to the parent is the standard input.

    Parameters:
        niceness: added to that of the parent.
    """
    os.nice(niceness)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that have ended
    own_pid = os.getpid()
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
        while True:
            name, descriptors, _, _ = socket.recv_fds(control, _NAME_BYTES_MAX, 1)
            if not descriptors:
                return
            connection = socket.socket(fileno=descriptors[0])
            if name.decode() not in sys.modules:
                importlib.import_module(name.decode())
                gc.collect()
                gc.freeze()  # children share the pages of what is here with their parent
            with connection:
                if os.fork() == 0:
                    control.close()
                    try:
                        _run_as_child(sys.modules[name.decode()].CHILD_WORK, connection, own_pid)
                    except BaseException:  # noqa: BLE001 - printed, and the process ends
                        traceback.print_exc()
                    finally:
                        os._exit(1)  # threads without memory may keep a process from ending


def _run_as_child(work: ChildWork[Any], connection: socket.socket, parent: int) -> None:
    """Answer one request.

    Parameters:
        parent: process id of the fork server.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile("rb") as input_file:
        given = input_file.read()
    if not given:  # the parent had left before it sent the request
        return
    request = msgspec.msgpack.decode(given, type=_Request)
    try:
        connection.sendall(os.getpid().to_bytes(_PID_BYTES))
    except BrokenPipeError:  # it has left, or was killed
        shutil.rmtree(request.directory, ignore_errors=True)
        return
    threading.Thread(target=_leave_in_time, args=(request, parent), daemon=True).start()
    if request.memory_bytes is not None:
        limit = request.memory_bytes - _LIBRARIES_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    reply = work.reply(request)
    with contextlib.suppress(BrokenPipeError):
        for part in reply:
            connection.sendall(part)


def _leave_in_time(request: _Request, parent: int) -> None:
    """End the process when its time is over, or when the parent was killed."""
    until_s = stopwatch_s() + request.seconds
    while stopwatch_s() < until_s and os.getppid() == parent:
        sleep_s(_POLL_S)
    shutil.rmtree(request.directory, ignore_errors=True)
    os._exit(1)
