"""Runs in another process: with other hashes of texts, other random numbers, at another time and in
another time zone.

The process is started for the first run, and waits for more until this process ends.
"""

from __future__ import annotations

import atexit
import datetime as dt
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import IO, Any

from statekit.errors import StatekitError
from statekit.records import by_value

_HASH_SEED = "4242"
_TIME_ZONE = "Asia/Kathmandu"  # 5:45 hours ahead of UTC, which is nobody's default
_AHEAD = dt.timedelta(days=400, hours=7)
_HEADER_BYTES = 8
_SERVE = "from statekit.testing.other_process import serve; serve()"


class OtherProcess:
    """A process that calls functions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONHASHSEED": _HASH_SEED,
                "TZ": _TIME_ZONE,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )
        atexit.register(self.close)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns there, or raise its error.

        Raises:
            StatekitError: the process has ended.
        """
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None
        assert taken is not None
        with self._lock:
            try:
                _write(given, (function, arguments))
                succeeded, result = _read(taken)
            except (BrokenPipeError, EOFError) as error:
                raise StatekitError(
                    f"the process that runs histories with other hashes has ended ({error}): its "
                    "standard error may say why"
                ) from error
        if not succeeded:
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


@cache
def other_process() -> OtherProcess:
    """Return the process, which is started by the first call."""
    return OtherProcess()


def serve() -> None:
    """Call the functions that come from standard input, until it ends."""
    import time_machine

    time_machine.travel(_AHEAD, tick=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print is no answer
    while True:
        try:
            function, arguments = _read(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = True, function(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where it was called from
            answer = False, error
        _write(answers, answer)


def _write(pipe: IO[bytes], message: Any) -> None:
    data = by_value.dumps(message)
    pipe.write(len(data).to_bytes(_HEADER_BYTES, "big") + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    header = pipe.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise EOFError("no more messages")
    content = pipe.read(int.from_bytes(header, "big"))
    return pickle.loads(content)  # noqa: S301 - of our own process
