"""What a recorder keeps: the newest epochs, up to its limit."""

from __future__ import annotations

import logging

from statekit.checkpoint.store import Store
from statekit.errors import StorageError
from statekit.recording.recorder import Recorder
from statekit.recording.recording import epoch_of, folder_of

_LOG = logging.getLogger("statekit.recorder")


class KeptRecordings:
    """Removes the oldest epochs of a recorder when there is too much. In the driver.

    Parameters:
        recorder: whose.

    Raises:
        StatekitError: its path cannot be opened.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._store = Store(recorder.path)
        self._limit_bytes = recorder.limit_bytes
        self._bytes: dict[int, int] | None = None

    def committed(self, epoch: int) -> None:
        """Remove what is too much after an epoch. The cost follows what that epoch recorded.

        Failures are logged: the job goes on.
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
        """Return the bytes of the epochs in a folder."""
        found: dict[int, int] = {}
        for file in self._store.listed(under):
            if (epoch := epoch_of(file.path)) is not None:
                found[epoch] = found.get(epoch, 0) + file.size
        return found
