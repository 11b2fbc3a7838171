"""Conversion of Spark's errors into the typed errors that workers raised.

The driver gets the error of a worker as text: its traceback. A worker marks the lines of a message
so that no text of a user's record or exception can be taken for another error.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from statekit.errors import (
    FencedError,
    ProcessError,
    RetryError,
    StatekitError,
    StorageError,
    error_class,
)
from statekit.runtime.coordinator import Coordinator
from statekit.spark.worker.failure_texts import LINE

_STATEKIT_ERROR = re.compile(
    r"statekit\.errors\.(\w+): (.*?)(?= SQLSTATE: |\n\s*at |\n\nDriver|\Z)", re.DOTALL
)

# What Spark finds out before we do, in its own part of the checkpoint or in a sink.
_SPARKS_WORDS: dict[str, type[StatekitError]] = {
    "CONCURRENT_STREAM_LOG_UPDATE": FencedError,
    "No space left on device": StorageError,
    "Disk quota exceeded": StorageError,
    "Read-only file system": StorageError,
    "Permission denied": StorageError,
}
_WAY_OUT: dict[type[StatekitError], str] = {
    FencedError: "Another run of this job is writing to this checkpoint: stop one of them, then "
    "start the other again; nothing is lost",
    StorageError: "Nothing committed is lost: check that the store has space and may be written, "
    "then start again",
}
_WORKER_ENDED = re.compile(r"Python worker (?:exited unexpectedly|process terminated)")


def translated(error: BaseException) -> BaseException:
    """Return a worker's error as its original class; any other error unchanged."""
    if isinstance(error, StatekitError):
        return error
    text = str(error)
    begins = [m.start() for m in re.finditer(r"^statekit\.errors\.\w+: ", text, re.MULTILINE)]
    # A worker's traceback ends with the error itself, after its causes.
    found = _STATEKIT_ERROR.search(text, begins[-1] if begins else 0)
    kinds = [kind for sign, kind in _SPARKS_WORDS.items() if sign in text]
    if found is not None:
        cls, message = error_class(found[1]) or StatekitError, found[2].strip()
        message = message.replace(LINE, "\n")
        typed = cls.from_text(message) if issubclass(cls, RetryError) else cls(message)
    elif kinds and isinstance(error, PySparkException | Py4JJavaError):
        typed = kinds[0](f"{text.splitlines()[0]}. {_WAY_OUT[kinds[0]]}")
    else:
        return error
    typed.__cause__ = error
    return typed


def is_of_spark(error: BaseException) -> bool:
    """Return whether an error was raised by Spark at run time, not by a wrong call of Spark."""
    is_spark = isinstance(error, PySparkException | Py4JError)
    return is_spark and not isinstance(error, AnalysisException)


def of_ended_worker(error: BaseException, coordinator: Coordinator) -> ProcessError | None:
    """Return the error for a Python worker that ended during an epoch; None if none did."""
    if isinstance(error, StatekitError) or not _WORKER_ENDED.search(str(error)):
        return None
    operators = ", ".join(repr(operator.name) for operator in coordinator.job.operators)
    return ProcessError(
        f"a Python worker of Spark ended in the middle of epoch {coordinator.epoch}, while it ran "
        f"the operators {operators}: a function called os._exit, a library crashed, or the system "
        "ended the process because of its memory. Nothing of this epoch is committed: look at the "
        "standard error of the workers, correct the function or give the workers more memory, then "
        "start the job again"
    )
