"""Staged objects: a store in which one attempt sees a manifest that is not committed yet."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import IO

from statekit.checkpoint.object_store import FileBytes, FilePage, Objects, Stored
from statekit.checkpoint.paths import EPOCHS


class StagedObjects:
    """Passes all requests to a store, and keeps new files in `epochs/` in memory.

    Parameters:
        objects: the store.

    Attributes:
        staged: the files in memory, by path.
        written: the paths of all other files that were written.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.keeps_order = False  # a listing is the store's, and what is staged
        self.staged: dict[str, bytes] = {}
        self.written: set[str] = set()

    def get(self, path: str, start: int = 0, size: int | None = None) -> FileBytes:
        if path not in self.staged:
            return self._objects.get(path, start, size)
        data = self.staged[path]
        return FileBytes(data[start : None if size is None else start + size], len(data))

    def head(self, path: str) -> Stored:
        return self._stored(path) if path in self.staged else self._objects.head(path)

    def put(self, path: str, data: bytes | IO[bytes]) -> None:
        self.written.add(path)
        self._objects.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        if path.startswith(f"{EPOCHS}/"):
            self.staged[path] = data
        else:
            self.written.add(path)
            self._objects.create(path, data)

    def page(self, under: str, behind: str | None = None) -> FilePage:
        own = [self._stored(path) for path in self._below(under) if path > (behind or "")]
        page = self._objects.page(under, behind)
        return page._replace(files=[*page.files, *own])

    def names(self, under: str) -> list[str]:
        own = [path for path in self._below(under) if path.rpartition("/")[0] == under]
        return [*self._objects.names(under), *own]

    def delete(self, paths: Sequence[str]) -> None:
        self._objects.delete(paths)

    def move(self, path: str, target: str) -> None:
        self._objects.move(path, target)

    def sync_folder(self, folder: str) -> None:
        self._objects.sync_folder(folder)

    def _below(self, under: str) -> list[str]:
        return [path for path in self.staged if not under or path.startswith(f"{under}/")]

    def _stored(self, path: str) -> Stored:
        return Stored(path, len(self.staged[path]), dt.datetime.max.replace(tzinfo=dt.UTC))
