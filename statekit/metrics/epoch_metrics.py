"""Metrics of the last epoch, from its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from statekit.checkpoint.manifest import EpochManifest
from statekit.metrics.definitions import (
    EPOCH,
    EVENT_TIME_LAG,
    INPUT_WAIT,
    LAG,
    STATE_BYTES,
    STATE_ROWS,
    WATERMARK,
    Sample,
)
from statekit.watermark import BEGINNING, END


class EpochMetrics:
    """The metrics of one epoch. The sizes of shards are added up once, at the first read.

    Parameters:
        job: the name of the job in the labels.
        manifest: of the epoch.
    """

    def __init__(self, job: str, manifest: EpochManifest) -> None:
        self._job = job
        self.manifest = manifest

    def samples(self, now_us: int) -> Iterator[Sample]:
        """Yield all values.

        Parameters:
            now_us: the clock, in microseconds since 1970 UTC.
        """
        manifest, job = self.manifest, self._job
        yield Sample(EPOCH, (job,), manifest.epoch)
        yield Sample(LAG, (job,), max(0.0, (now_us - manifest.processing_time_us) / 1e6))
        for name, operator in manifest.operators.items():
            watermark_us = operator.watermark_us
            if watermark_us is not None and BEGINNING < watermark_us < END:
                yield Sample(WATERMARK, (job, name), watermark_us / 1e6)
                yield Sample(EVENT_TIME_LAG, (job, name), (now_us - watermark_us) / 1e6)
            if (held := operator.held_back) is not None:
                waited_us = max(0, now_us - held.since_us)
                yield Sample(INPUT_WAIT, (job, name, held.source), waited_us / 1e6)
        yield from self._sizes

    @cached_property
    def _sizes(self) -> list[Sample]:
        sizes = []
        for name, operator in self.manifest.operators.items():
            for metric, counts in ((STATE_ROWS, operator.rows), (STATE_BYTES, operator.bytes)):
                for state, number in counts.items():
                    sizes.append(Sample(metric, (self._job, name, state), number))
        return sizes
