"""The progress of a run after an epoch, from its manifest and its metrics."""

from __future__ import annotations

from operator import attrgetter

from statekit.checkpoint.manifest import EpochManifest, added
from statekit.job.progress import Progress
from statekit.runtime.coordinator import Coordinator
from statekit.timestamp import instant


def epoch_progress(
    coordinator: Coordinator, manifest: EpochManifest, seconds: float, batch: int | None = None
) -> Progress:
    """Return the progress of a run.

    Parameters:
        coordinator: of the run.
        manifest: of its last epoch.
        seconds: from the start of the epoch to its commit.
        batch: Spark's number of the micro-batch; None if there is none.
    """
    operators = manifest.operators
    return Progress(
        epoch=manifest.epoch,
        batch=batch,
        records_in=sum(manifest.records_by_source.values()),
        records_out=sum(operator.records_out for operator in operators.values()),
        seconds=seconds,
        processing_time=instant(manifest.processing_time_us),
        late=sum(operator.late for operator in operators.values()),
        failed=sum(operator.failed for operator in operators.values()),
        watermarks={
            name: instant(operator.watermark_us)
            for name, operator in operators.items()
            if operator.watermark_us is not None
        },
        waits_for={
            name: operator.held_back.source
            for name, operator in operators.items()
            if operator.held_back is not None
        },
        state_rows=manifest.by_state(attrgetter("rows")),
        state_bytes=manifest.by_state(attrgetter("bytes")),
        changed_bytes=sum(operator.bytes_written for operator in operators.values()),
        executors=added(*(operator.placed.shards for operator in operators.values())),
        moved_shards=sum(operator.placed.moved for operator in operators.values()),
        restored_bytes=sum(operator.placed.restored_bytes for operator in operators.values()),
        caught_up_bytes=sum(operator.placed.caught_up_bytes for operator in operators.values()),
        cpu_seconds={name: operator.cpu_us / 1e6 for name, operator in operators.items()},
        source_lags=dict(coordinator.metrics.source_lags),
        bad_records=sum(manifest.bad_records.values()),
        metrics=coordinator.metrics.values(),
    )
