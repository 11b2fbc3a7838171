"""Logs of the server: each record is one line, whatever a request contains.

An error may quote a key, a path or a query. Their line breaks and control characters are escaped,
so that no request can add a line to the log, or control the terminal that shows it.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from urllib.parse import quote

from statekit.printable import printable

ACCESS_LOG = "statekit.access"

_LOGGERS = (ACCESS_LOG, "statekit.server", "statekit.replica", "uvicorn.error", "asyncio")
"""Names of the loggers whose records may quote requests."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_ACCESS_FORMAT = "%(asctime)s %(message)s"

_PATH_LENGTH_MAX = 500


class EscapedRecords(logging.Filter):
    """Escapes characters that are not printable. The filter drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        escaped = printable(message)
        if escaped is not message:
            record.msg, record.args = escaped, ()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not record.exc_text:
            record.exc_text = _traceback(error)
        return True


_ESCAPED = EscapedRecords()


def escape_logs() -> None:
    """Escape all records of the server's loggers in this process."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_ESCAPED)  # has it once, however often it is added


def write_logs(*, access: bool) -> None:
    """Write the logs of this process: errors and warnings of all loggers to stderr, with times.

    Parameters:
        access: write the access log to stdout.
    """
    errors = logging.StreamHandler(sys.stderr)
    errors.setFormatter(logging.Formatter(_FORMAT))
    errors.setLevel(logging.WARNING)
    errors.addFilter(_ESCAPED)
    logging.getLogger().addHandler(errors)
    if access:
        lines = logging.StreamHandler(sys.stdout)
        lines.setFormatter(logging.Formatter(_ACCESS_FORMAT))
        logger = logging.getLogger(ACCESS_LOG)
        logger.addHandler(lines)
        logger.setLevel(logging.INFO)


def printable_path(path: str) -> str:
    """Return the path of a request in the quoted form of addresses: without spaces and line breaks.

    >>> printable_path("/shop/sales/to tal\\n")
    '/shop/sales/to%20tal%0A'
    """
    quoted = quote(path, safe="/!$&'()*+,;=:@~", errors="backslashreplace")
    return quoted if len(quoted) <= _PATH_LENGTH_MAX else quoted[:_PATH_LENGTH_MAX] + "…"


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error, with escaped error messages."""
    text = "".join(traceback.format_exception(error))
    for message in filter(None, map(_message, _chain(error))):
        # Lines of errors in a group are indented.
        lines = r"[ |]*".join(map(re.escape, message.splitlines(keepends=True)))
        text = re.sub(lines, printable(message).replace("\\", r"\\"), text)
    return "\n".join(map(printable, text.rstrip("\n").split("\n")))


def _message(error: BaseException) -> str:
    """Return the message of an error; empty if it has none, or raises an error itself."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  of the user's code
        return ""  # tracebacks say that it cannot be printed


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the members of groups."""
    seen: set[int] = set()
    left = [error]
    while left:
        own = left.pop()
        if id(own) in seen:
            continue
        seen.add(id(own))
        yield own
        left += [each for each in (own.__cause__, own.__context__) if each is not None]
        if isinstance(own, BaseExceptionGroup):
            left += own.exceptions
