"""History of a checkpoint: the last epochs, each with its manifest without shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.errors import CorruptCheckpointError


def _without_shards(manifest: EpochManifest) -> EpochManifest:
    """Return a small copy of a manifest: its operators have the sizes of their states, but no
    shards.
    """
    operators = {}
    for name, own in manifest.operators.items():
        sizes = {"undivided_rows": own.rows, "undivided_bytes": own.bytes}
        operators[name] = own.model_copy(update={"shards": (), **sizes})
    return manifest.model_copy(update={"operators": operators})


class EpochHistory:
    """The last epochs of a checkpoint up to an epoch. Each manifest is read once. Threads may
    share it.

    Parameters:
        repository: the checkpoint.
        kept: limit of the cached epochs.
    """

    def __init__(self, repository: Repository, kept: int = 1_000) -> None:
        self._repository = repository
        self._kept = kept
        self._known: dict[int, EpochManifest] = {}
        self._lock = threading.Lock()

    def until(self, last: EpochManifest, limit: int) -> list[EpochManifest]:
        """Return the last `limit` epochs up to `last`, in order, without shards: those that the
        checkpoint keeps, and those that were read before they were collected.

        Raises:
            StorageError: the store failed.
        """
        with self._lock:
            if not self._is_continued_by(last):
                self._known.clear()
            if last.epoch not in self._known:
                self._known[last.epoch] = _without_shards(last)
            found = list(islice(self._back_from(last), limit))
            for epoch in sorted(self._known)[: -self._kept]:
                del self._known[epoch]
        return found[::-1]

    def _is_continued_by(self, last: EpochManifest) -> bool:
        """Return whether an epoch is of the same version of the checkpoint as the known ones. One
        run commits all its epochs on top of each other, so a request is needed only for another
        writer.
        """
        known = self._known.get(last.epoch)
        if known is not None:
            return known.writer == last.writer
        newest = max(self._known, default=None)
        if newest is None or self._known[newest].writer == last.writer:
            return True
        try:
            return self._known[newest].writer == self._repository.manifest(newest).writer
        except CorruptCheckpointError:  # it was collected: nothing shows whether it is the same
            return False

    def _back_from(self, last: EpochManifest) -> Iterator[EpochManifest]:
        epoch: int | None = last.epoch
        while epoch is not None:
            own = self._known.get(epoch)
            if own is None:
                try:
                    own = _without_shards(self._repository.manifest(epoch))
                except CorruptCheckpointError:  # it was collected
                    known = (n for n in self._known if n < epoch and not last.has_abandoned(n))
                    epoch = max(known, default=None)
                    continue
                self._known[epoch] = own
            yield own
            epoch = own.previous
