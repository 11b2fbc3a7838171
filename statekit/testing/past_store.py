"""A checkpoint as it was after an epoch, to run the next epoch again without changing it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO

from statekit.checkpoint.object_store import (
    FileBytes,
    FilePage,
    Objects,
    RemoteObjects,
    Stored,
    StoreOptions,
)
from statekit.checkpoint.paths import BEGUN, EPOCHS
from statekit.checkpoint.repository import Repository

_EPOCH = re.compile(rf"(?:{EPOCHS}|{BEGUN})/([0-9]{{20}})\b.*")


def checkpoint_after(repository: Repository, epoch: int) -> Repository:
    """Return a checkpoint without the epochs after a given one. Writes to it stay in memory.

    Parameters:
        epoch: the last epoch that it has; -1 for none.
    """
    return repository.through(lambda objects: _PastObjects(objects, epoch))


class _PastObjects:
    """Objects that are read from another store, and written to memory."""

    keeps_order = False

    def __init__(self, inner: Objects, epoch: int) -> None:
        self._inner = inner
        self._epoch = epoch
        self._own: Objects = RemoteObjects("memory://", StoreOptions())

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        return self._of(path).get(path, start, size)

    def head(self, path: str) -> Stored:
        return self._of(path).head(path)

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        self._own.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        if not self._is_hidden(path) and _has(self._inner, path):
            raise FileExistsError(path)
        self._own.create(path, data)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        files = self._own.page(under, behind).files
        after: str | None = behind
        while True:
            page = self._inner.page(under, after)
            files += [file for file in page.files if not self._is_hidden(file.path)]
            if (after := page.behind) is None:
                return FilePage(files, None)

    def names(self, under: str) -> list[str]:
        names = [name for name in self._inner.names(under) if not self._is_hidden(name)]
        return [*names, *self._own.names(under)]

    def delete(self, paths: Sequence[str]) -> None:
        self._own.delete(paths)

    def sync_folder(self, folder: str) -> None:
        """Do nothing: the objects end with the process."""

    def _of(self, path: str) -> Objects:
        """Return the objects that a file is read from."""
        return self._own if self._is_hidden(path) or _has(self._own, path) else self._inner

    def _is_hidden(self, path: str) -> bool:
        """Return whether a file belongs to a later epoch."""
        match = _EPOCH.fullmatch(path)
        return match is not None and int(match[1]) > self._epoch


def _has(objects: Objects, path: str) -> bool:
    try:
        objects.head(path)
    except FileNotFoundError:
        return False
    return True
