"""A process that calls functions for this one, until this one ends."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any, Self

from statekit.errors import StatekitError
from statekit.records import by_value

_HEADER_BYTES = 8


class OtherProcess:
    """A process that calls functions, until it is closed or this process ends.

    Parameters:
        purpose: its purpose, for error messages.
        serving: the function that it runs, which is found in its module: `call_functions`, or one
            that calls it.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self, purpose: str, serving: Callable[[], None], environment: Mapping[str, str]
    ) -> None:
        self._purpose = purpose
        self._lock = threading.Lock()
        name = serving.__name__
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {serving.__module__} import {name}; {name}()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function there, and return its result or raise its error.

        Raises:
            StatekitError: the process has ended.
        """
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None
        assert taken is not None
        with self._lock:
            try:
                _write(given, (function, arguments))
                succeeded, result = pickle.loads(_read(taken))  # noqa: S301 - of our own process
            except (BrokenPipeError, EOFError) as error:
                raise StatekitError(
                    f"the process that {self._purpose} has ended ({error}): its standard error may "
                    "say why"
                ) from error
        if not succeeded:
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        atexit.unregister(self.close)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def call_functions() -> None:
    """Read functions from standard input and call them, until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print is no answer
    while True:
        try:
            message = _read(sys.stdin.buffer)
        except EOFError:
            return
        try:
            function, arguments = pickle.loads(message)  # noqa: S301 - of our own process
            answer: tuple[bool, Any] = True, function(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where it was called from
            answer = False, error
        _write(answers, answer)


def _write(pipe: IO[bytes], message: Any) -> None:
    data = by_value.dumps(message, keeps_files=True)
    pipe.write(len(data).to_bytes(_HEADER_BYTES, "big") + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    header = pipe.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise EOFError("no more messages")
    return pipe.read(int.from_bytes(header, "big"))
