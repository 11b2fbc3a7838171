"""A forked process with an object in it, whose methods are called from outside."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from statekit.errors import StatekitError
from statekit.records import by_value


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
        self._connection, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of idle threads of libraries
            self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            with contextlib.suppress(EOFError, BrokenPipeError):
                _serve(theirs, make)
            os._exit(0)
        theirs.close()
        self.kill = weakref.finalize(self, _killed, self._pid, self._connection)
        self._received()

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return an attribute of the object, or call a method and return its result.

        Raises:
            StatekitError: the process has ended by itself. Errors of the method are raised, too.
        """
        self._connection.send_bytes(by_value.dumps((name, arguments, options), keeps_files=True))
        return self._received()

    def _received(self) -> Any:
        try:
            data = self._connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            raise StatekitError(
                f"process {self._pid} has ended by itself while it ran a function: its standard "
                "error may say why"
            ) from None
        succeeded, result = pickle.loads(data)  # noqa: S301 - of our own process
        if not succeeded:
            raise result
        return result


def _killed(pid: int, connection: Connection) -> None:
    connection.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _serve(connection: Connection, make: Callable[[], Any]) -> None:
    """Make an object, and call its methods until the connection is closed."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # as in another process; Python's own numbers do so by themselves
    held: list[Any] = []
    connection.send_bytes(_answer(lambda: held.append(make())))
    while True:
        name, arguments, options = pickle.loads(connection.recv_bytes())  # noqa: S301 - as above
        connection.send_bytes(_answer(partial(_of, held, name, arguments, options)))


def _of(held: list[Any], name: str, arguments: Any, options: Any) -> Any:
    attribute = getattr(held[0], name)
    return attribute(*arguments, **options) if callable(attribute) else attribute


def _answer(call: Callable[[], Any]) -> bytes:
    """Return the pickled result or error of a call, for `Child`."""
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
