"""Turn errors that Spark returns back into the typed errors that workers raised."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from statekit.errors import FencedError, RetryError, StatekitError, StorageError, error_class

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


def translated(error: BaseException) -> BaseException:
    """Return an error of a worker as the class it had there; any other error as it is."""
    if isinstance(error, StatekitError):
        return error
    text = str(error)
    names = _STATEKIT_ERROR.findall(text)
    kinds = [kind for sign, kind in _SPARKS_WORDS.items() if sign in text]
    if names:
        name, message = names[-1]
        cls, message = error_class(name) or StatekitError, message.strip()
        typed = cls.from_text(message) if issubclass(cls, RetryError) else cls(message)
    elif kinds and isinstance(error, PySparkException | Py4JJavaError):
        typed = kinds[0](f"{text.splitlines()[0]}. {_WAY_OUT[kinds[0]]}")
    else:
        return error
    typed.__cause__ = error
    return typed
