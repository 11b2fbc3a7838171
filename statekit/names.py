"""Checks of the names and paths that are stored, regardless of their source.

The stored models use the types `StoredName`, `StoredPath`, `DatabaseFile` and `StoredId`, so a
model with a name that breaks the rules cannot exist.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

NAME_BYTES_MAX = 150
"""The longest name of a job, operator, stream, sink, state or savepoint."""

PATH_BYTES_MAX = 1024
"""The longest path of a file, below its checkpoint; object stores take no longer keys."""

_SEGMENT_BYTES_MAX = 255

_TEXT_LENGTH_MAX = 10_000

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_.-]*"
"""A regular expression of valid names, for documents."""

_NAME = re.compile(NAME_PATTERN)
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_UNIQUE_FILE = re.compile(r"[0-9a-f]{32}(\.[a-z]{1,20}){1,2}")
_DATABASE_FILE = re.compile(r"CURRENT|MANIFEST-[0-9]{1,20}|[0-9]{1,20}\.sst")


def name_fault(name: str) -> str | None:
    """Return the reason why a name is not valid; None if it is valid.

    >>> name_fault("fraud-alerts.v2") is None
    True
    >>> name_fault("../fraud")
    'names have letters, digits, and any of _ . -, and begin with a letter or _'
    """
    if not _NAME.fullmatch(name):
        return "names have letters, digits, and any of _ . -, and begin with a letter or _"
    if len(name) > NAME_BYTES_MAX:
        return f"names have {NAME_BYTES_MAX} characters at most"
    if name.endswith("."):
        return "names do not end with a dot, which some file systems drop"
    if _DEVICE.fullmatch(name):
        return "some systems have a device of that name"
    return None


def path_fault(path: str) -> str | None:
    """Return the reason why a path of a checkpoint's file is not valid; None if it is valid.

    >>> path_fault("data/count/0123.changes.arrow") is None
    True
    >>> path_fault("data/../../.bashrc")
    "it has the part '..'"
    """
    if len(path.encode(errors="replace")) > PATH_BYTES_MAX:
        return f"it is longer than {PATH_BYTES_MAX} bytes"
    if unicodedata.normalize("NFC", path) != path:
        return "it is not in Unicode's normal form C"
    *folders, name = path.split("/")
    if not _UNIQUE_FILE.fullmatch(name):  # a manifest of many shards has tens of thousands of them
        folders.append(name)
    return next(filter(None, map(_part_fault, folders)), None)


@lru_cache(maxsize=1000)
def _part_fault(part: str) -> str | None:
    """Return the reason why a part of a path is not valid; None if it is valid."""
    if part in ("", ".", ".."):
        return f"it has the part {part!r}"
    if len(part.encode(errors="replace")) > _SEGMENT_BYTES_MAX:
        return f"a part of it is longer than {_SEGMENT_BYTES_MAX} bytes"
    if any(c in '\\:*?"<>|' or unicodedata.category(c).startswith("C") for c in part):
        return f"{part!r} has a character that no file of a checkpoint has"
    if part[-1] in ". " or _DEVICE.fullmatch(part):
        return f"{part!r} means something else on some systems"
    return None


def text_fault(text: str) -> str | None:
    """Return the reason why a displayed text cannot be stored; None if it can.

    A control character could change what a terminal shows.

    >>> text_fault("at\\x1b[2J")
    "it has the control character '\\\\x1b'"
    """
    if len(text) > _TEXT_LENGTH_MAX:
        return f"it is longer than {_TEXT_LENGTH_MAX:,} characters"
    wrong = next((c for c in text if unicodedata.category(c) in ("Cc", "Cs")), None)
    return None if wrong is None else f"it has the control character {wrong!r}"


def check_different(names: tuple[str, ...], what: str) -> None:
    """Check that all names differ on a file system that ignores case.

    Raises:
        ValueError: two are.
    """
    if len({name.casefold() for name in names}) != len(names):
        raise ValueError(f"two {what} have names that differ in nothing, or in case alone: {names}")


def _without(fault_of: Callable[[str], str | None], what: str) -> AfterValidator:
    def checked(text: str) -> str:
        if (fault := fault_of(text)) is not None:
            raise ValueError(f"{text[:200]!r} cannot be {what}: {fault}")
        return text

    return AfterValidator(checked)


def _database_file_fault(name: str) -> str | None:
    return None if _DATABASE_FILE.fullmatch(name) else "RocksDB has no file of that name"


StoredName = Annotated[str, _without(name_fault, "a name")]
"""The name of a job, an operator, a state or a savepoint."""

StoredText = Annotated[str, _without(text_fault, "stored")]
"""A text that is displayed and never becomes part of a path, such as the name of a field or of a
writer.
"""

StoredPath = Annotated[str, _without(path_fault, "the path of a file")]
"""The path of a file below its checkpoint or savepoint."""

DatabaseFile = Annotated[str, _without(_database_file_fault, "a file of a database")]
"""The name of a file within the directory of a RocksDB database."""

StoredId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""The identifier of a checkpoint or a savepoint; also the name of a directory on workers."""
