"""Facts of each epoch from its manifest: records, times, bytes and the sizes of states."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from statekit.checkpoint.manifest import Cause, EpochManifest
from statekit.checkpoint.repository import Repository
from statekit.errors import CorruptCheckpointError
from statekit.watermark import BEGINNING


class OperatorFacts(NamedTuple):
    """Counts of one operator in an epoch.

    Parameters:
        records_in, records_out, late: numbers of records.
        records_by_input: the records of each input stream; of a broadcast stream, those that each
            shard handled.
        bytes_written: to change files.
        watermark_us: None before any record, or without event time.
        rows, bytes: sizes of each state after the epoch.
    """

    records_in: int
    records_out: int
    late: int
    bytes_written: int
    watermark_us: int | None
    records_by_input: dict[str, int]
    rows: dict[str, int]
    bytes: dict[str, int]


class EpochFacts(NamedTuple):
    """Facts of one epoch.

    Parameters:
        epoch: its number.
        previous: the epoch before it in its history; None for the first.
        cause: the cause of the epoch.
        processing_time_us: when it began.
        committed_at_us: when it was committed, by the clock of the driver.
        parallelism: its number of shards.
        writer: the run that committed it: another version of the checkpoint has other runs.
        operators: by name.
    """

    epoch: int
    previous: int | None
    cause: Cause
    processing_time_us: int
    committed_at_us: int
    parallelism: int
    writer: str
    operators: dict[str, OperatorFacts]


def facts_of(manifest: EpochManifest) -> EpochFacts:
    """Return the facts of an epoch."""
    operators = {}
    for name, own in manifest.operators.items():
        watermark = None if own.watermark_us == BEGINNING else own.watermark_us
        operators[name] = OperatorFacts(
            own.records_in,
            own.records_out,
            own.late,
            own.bytes_written,
            watermark,
            own.records_by_input,
            own.rows,
            own.bytes,
        )
    return EpochFacts(
        manifest.epoch,
        manifest.previous,
        manifest.cause,
        manifest.processing_time_us,
        manifest.committed_at_us,
        manifest.parallelism,
        manifest.writer,
        operators,
    )


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
        self._facts: dict[int, EpochFacts] = {}
        self._lock = threading.Lock()

    def until(self, last: EpochManifest, limit: int) -> list[EpochFacts]:
        """Return the last `limit` epochs up to `last`, in order: those that the checkpoint keeps,
        and those that were read before they were collected.

        Raises:
            StorageError: the store failed.
        """
        with self._lock:
            if not self._is_continued_by(last):
                self._facts.clear()
            if last.epoch not in self._facts:
                self._facts[last.epoch] = facts_of(last)
            found = list(islice(self._back_from(last), limit))
            for epoch in sorted(self._facts)[: -self._kept]:
                del self._facts[epoch]
        return found[::-1]

    def _is_continued_by(self, last: EpochManifest) -> bool:
        """Return whether an epoch is of the same version of the checkpoint as the known ones. One
        run commits all its epochs on top of each other, so a request is needed only for another
        writer.
        """
        known = self._facts.get(last.epoch)
        if known is not None:
            return known.writer == last.writer
        newest = max(self._facts, default=None)
        if newest is None or self._facts[newest].writer == last.writer:
            return True
        try:
            return self._facts[newest].writer == self._repository.manifest(newest).writer
        except CorruptCheckpointError:  # it was collected: nothing shows whether it is the same
            return False

    def _back_from(self, last: EpochManifest) -> Iterator[EpochFacts]:
        epoch: int | None = last.epoch
        while epoch is not None:
            own = self._facts.get(epoch)
            if own is None:
                try:
                    own = facts_of(self._repository.manifest(epoch))
                except CorruptCheckpointError:  # it was collected
                    known = (n for n in self._facts if n < epoch and not last.has_abandoned(n))
                    epoch = max(known, default=None)
                    continue
                self._facts[epoch] = own
            yield own
            epoch = own.previous
