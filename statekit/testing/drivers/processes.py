"""Processes that call functions for this one: a new process, a copy of this one, and a harness in a
copy, which crashes kill.

`ProcessMemory` restores the memory that Python can look into. A killed process needs none of it:
the next one is a copy of one that has never called a function of the user.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Self

from statekit.errors import StatekitError
from statekit.job.job import Job
from statekit.records import by_value
from statekit.testing.drivers.driver import Backend
from statekit.testing.drivers.job_harness import JobHarness
from statekit.testing.drivers.process_memory import ProcessMemory


class OtherProcess:
    """A process that calls functions, until it is closed or this process ends.

    Parameters:
        purpose: its purpose, for error messages.
        serving: the function that it runs, which is found in its module: `call_functions`, or one
            that calls it.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self, purpose: str, serving: Callable[[int], None], environment: Mapping[str, str]
    ) -> None:
        self._purpose = purpose
        self._lock = threading.Lock()
        self._connection, theirs = multiprocessing.Pipe()
        name, end = serving.__name__, theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {serving.__module__} import {name}; {name}({end})"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what functions print is no output of this process
            pass_fds=[end],
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        theirs.close()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function there, and return its result or raise its error.

        Raises:
            StatekitError: the process has ended.
        """
        with self._lock:
            return _called(
                self._connection, (function, arguments), f"the process that {self._purpose}"
            )

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        self._connection.close()
        self._process.wait()


def call_functions(end: int) -> None:
    """Call the functions that a connection receives, until it is closed.

    Parameters:
        end: the file descriptor of its end in this process.
    """
    os.set_inheritable(end, False)
    _serve(Connection(end), lambda function, arguments: function(*arguments))


class Child:
    """A copy of this process, with an object in it. It is killed when it is garbage-collected, at
    the latest.

    This process must have no threads of its own that hold locks.

    Parameters:
        make: returns the object.

    Raises:
        StatekitError: the process ends by itself. Errors of `make` are raised, too.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        pid, self._connection = forked(partial(_serve_object, make))
        self.kill = weakref.finalize(self, _killed, pid, self._connection)
        self._who = f"process {pid}"
        _received(self._connection, self._who)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return an attribute of the object, or call a method and return its result.

        Raises:
            StatekitError: the process has ended by itself. Errors of the method are raised, too.
        """
        return _called(self._connection, (name, arguments, options), self._who)


def forked(run: Callable[[Connection], None]) -> tuple[int, Connection]:
    """Run a function in a copy of this process, which ends when the function returns. Return the id
    of the copy, and the connection to it.

    This process must have no threads of its own that hold locks.

    Parameters:
        run: takes the other end of the connection.
    """
    connection, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of idle threads of libraries
        pid = os.fork()
    if pid == 0:
        connection.close()
        gc.freeze()  # a collection would visit, and so copy, all objects of this process
        try:
            with contextlib.suppress(BrokenPipeError):
                run(theirs)
            os._exit(0)
        finally:
            os._exit(1)
    theirs.close()
    return pid, connection


def _killed(pid: int, connection: Connection) -> None:
    connection.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _serve_object(make: Callable[[], Any], connection: Connection) -> None:
    """Make an object, and call its methods until the connection is closed."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # as in another process; Python's own numbers do so by themselves
    held: list[Any] = []
    connection.send_bytes(_answer(lambda: held.append(make())))

    def called(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        attribute = getattr(held[0], name)
        return attribute(*arguments, **options) if callable(attribute) else attribute

    _serve(connection, called)


# -------------------------------------------------------------------------------- killed harnesses

_PROPERTIES = ("epoch", "is_drained", "parallelism", "watermark")
"""The properties of `JobHarness` that runs use."""


class KilledHarness:
    """A harness whose crashes kill a process, with the attributes of a `JobHarness` that runs use.
    The last process ends with the harness.

    This process must have no threads, and must not have called a function of the job.

    Parameters:
        job, parallelism, backend, memory: as for `JobHarness`.
        place: an existing directory for its files. Whoever made it removes it: this process may be
            killed, too, and then removes nothing.
    """

    def __init__(
        self, job: Job, parallelism: int | None, backend: Backend, memory: ProcessMemory, place: str
    ) -> None:
        self._job, self._backend, self._memory = job, backend, memory
        self._home = tempfile.TemporaryDirectory(dir=place)
        self._clock: Any = None
        self._child = self._started(parallelism)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._child.call(name) if name in _PROPERTIES else partial(self._child.call, name)

    def _started(self, parallelism: int | None) -> Child:
        given = self._job, parallelism, self._backend, self._home.name
        return Child(partial(JobHarness, *given, memory=self._memory))

    def set_clock(self, to: Any) -> None:
        """Set the processing time, also for later processes."""
        self._clock = to
        self._child.call("set_clock", to)

    def attempt(self, records: Mapping[str, Any]) -> Any:
        """Run one epoch, and crash right before its commit."""
        published = self._child.call("attempt", records)
        self.crash()
        return published

    def crash(self) -> None:
        """Kill the process, and continue in a new one."""
        self.rescale(self._child.call("parallelism"))

    def rescale(self, parallelism: int) -> None:
        """Kill the process, and continue in a new one with so many shards."""
        self._child.kill()
        self._child = self._started(parallelism)
        if self._clock is not None:
            self._child.call("set_clock", self._clock)


# ------------------------------------------------------------------------------------ the messages


def _called(connection: Connection, message: tuple[Any, ...], who: str) -> Any:
    """Send a call, and return its result or raise its error.

    Parameters:
        who: the process at the other end, for error messages.
    """
    data = by_value.dumps(message, keeps_files=True)
    with contextlib.suppress(BrokenPipeError):  # then there is no answer
        connection.send_bytes(data)
    return _received(connection, who)


def _received(connection: Connection, who: str) -> Any:
    try:
        data = connection.recv_bytes()
    except (EOFError, ConnectionResetError):
        raise StatekitError(
            f"{who} has ended by itself while it ran a function: its standard error may say why"
        ) from None
    succeeded, result = pickle.loads(data)  # noqa: S301 - of our own process
    if not succeeded:
        raise result
    return result


def _serve(connection: Connection, call: Callable[..., Any]) -> None:
    """Answer calls until the connection is closed."""
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return
        connection.send_bytes(_answer(partial(_loaded_call, call, message)))


def _loaded_call(call: Callable[..., Any], message: bytes) -> Any:
    return call(*pickle.loads(message))  # noqa: S301 - of our own process


def _answer(call: Callable[[], Any]) -> bytes:
    """Return the pickled result or error of a call."""
    try:
        return by_value.dumps((True, call()), keeps_files=True)
    except Exception as error:  # noqa: BLE001 - raised where it was called from
        raised = error
    try:
        data = by_value.dumps((False, raised), keeps_files=True)
        pickle.loads(data)  # noqa: S301 - it may refuse what it was pickled with
    except Exception:  # noqa: BLE001 - whatever a class of the user raises
        return by_value.dumps((False, StatekitError(f"{type(raised).__name__}: {raised}")))
    return data
