"""A line in the terminal with the progress of a run that follows streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from statekit.checkpoint.manifest import EpochManifest
from statekit.clock import stopwatch_s
from statekit.metrics.run_metrics import RunMetrics

_EVERY_S = 0.5


class ProgressLine:
    """Shows epoch, rate and lag in a line that is written again. It shows nothing in a file.

    Parameters:
        metrics: of the run.
        lag_limits: up to which number records behind an epoch are counted, by source.
        out: where it is shown; None for the standard error.
    """

    def __init__(
        self, metrics: RunMetrics, lag_limits: Mapping[str, int], out: TextIO | None = None
    ) -> None:
        self._metrics, self._lag_limits, self._out = metrics, lag_limits, out or sys.stderr
        self._is_shown = self._out.isatty()
        self._records = 0
        self._since_s = stopwatch_s()

    def committed(self, manifest: EpochManifest, sources: set[str]) -> None:
        """Show the progress after an epoch, at most twice a second.

        Parameters:
            sources: the names of the sources of the job.
        """
        read = manifest.records_by_stream
        self._records += sum(count for name, count in read.items() if name in sources)
        elapsed_s = stopwatch_s() - self._since_s
        if not self._is_shown or elapsed_s < _EVERY_S:
            return
        lags = {name: self._lag(name, lag) for name, lag in self._metrics.source_lags.items()}
        text = progress_text(manifest, self._records / elapsed_s, lags)
        width = os.get_terminal_size(self._out.fileno()).columns or 80
        self._write(f"\r{text[: width - 1]}\x1b[K")
        self._records, self._since_s = 0, stopwatch_s()

    def _lag(self, source: str, lag: int) -> str:
        limit = self._lag_limits.get(source)
        return f"{lag:,}" if limit is None or lag < limit else f"{lag:,} or more"

    def close(self) -> None:
        """End the line."""
        if self._is_shown:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def progress_text(manifest: EpochManifest, rate: float, lags: Mapping[str, str]) -> str:
    """Return the progress of a run as a line.

    Parameters:
        rate: records per second.
        lags: records that are not read yet, by source.
    """
    rows = sum(manifest.by_state(lambda operator: operator.rows).values())
    parts = [f"epoch {manifest.epoch:,}", f"{rate:,.0f} records/s", f"{rows:,} rows of state"]
    parts += [f"{name} is {lag} behind" for name, lag in lags.items()]
    if bad := sum(manifest.bad_records.values()):
        parts.append(f"{bad:,} bad records")
    return " · ".join(parts)
