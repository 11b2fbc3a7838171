"""Background work that is recorded on the local disk until it is complete.

A process that dies leaves its directory unlocked. Another process resumes the work or removes it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from statekit.checkpoint.sealed_json import Record
from statekit.working_copy.lock import DirectoryLock

Going = Callable[[], None]
"""Called at intervals by long work. An exception that it raises ends the work."""

_R = TypeVar("_R", bound=Record)


@dataclass(frozen=True)
class StagedWork:
    """The directory of a piece of work.

    Parameters:
        place: its path.
    """

    place: Path

    def write(self, name: str, note: Record) -> None:
        """Write a note atomically."""
        draft = self.place / f"{name}.draft"
        draft.write_text(note.model_dump_json())
        draft.rename(self.place / name)

    def read(self, name: str, kind: type[_R]) -> _R | None:
        """Return a note; None if it is missing or truncated."""
        try:
            return kind.model_validate_json((self.place / name).read_bytes())
        except (OSError, ValidationError):
            return None

    def remove(self) -> bool:
        """Remove the directory. Return False if it is in use."""
        with self.locked() as mine:
            if mine:
                shutil.rmtree(self.place, ignore_errors=True)
            return mine

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Exclude other processes; False if another process works on it."""
        lock = DirectoryLock.take_existing(self.place)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()
