"""Kept recordings: the newest epochs of a recorder, up to its limit."""

from __future__ import annotations

import logging

from statekit.checkpoint.store import Store
from statekit.errors import StorageError
from statekit.recording.recorder import Recorder
from statekit.recording.recording import epoch_of, folder_of

_LOG = logging.getLogger("statekit.recorder")


class KeptRecordings:
    """Removes the oldest epochs of a recorder above its limit. Used by the driver.

    Parameters:
        recorder: the recorder.

    Raises:
        StatekitError: its path cannot be opened.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._store = Store(recorder.path)
        self._limit_bytes = recorder.limit_bytes
        self._bytes: dict[int, int] | None = None

    def committed(self, epoch: int) -> None:
        """Remove the oldest epochs above the limit, after an epoch was committed. After the first
        call, only the files of that epoch are listed.

        Failures are logged, and the job continues.
        """
        try:
            if self._bytes is None:
                self._bytes = self._listed("")
            else:
                self._bytes |= self._listed(folder_of(epoch))
            while sum(self._bytes.values()) > self._limit_bytes and len(self._bytes) > 1:
                oldest = min(self._bytes)
                self._store.collect(self._store.tree(folder_of(oldest)))
                del self._bytes[oldest]
        except StorageError as error:
            _LOG.warning("old recordings are not removed: %s", error)

    def _listed(self, under: str) -> dict[int, int]:
        """Return the size of each epoch with files below a folder, in bytes."""
        found: dict[int, int] = {}
        for file in self._store.listed(under):
            if (epoch := epoch_of(file.path)) is not None:
                found[epoch] = found.get(epoch, 0) + file.size
        return found
