"""A line in the terminal with the progress of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from statekit.byte_size import size_text
from statekit.clock import stopwatch_s
from statekit.job.progress import Progress

_EVERY_S = 0.5


class ProgressLine:
    """Shows epoch, rate, size of the state and lag in a line that is written again.

    Parameters:
        lag_limits: up to which number records behind an epoch are counted, by source.
        out: where it is shown; None for the standard error.
    """

    def __init__(
        self, lag_limits: Mapping[str, int] | None = None, out: TextIO | None = None
    ) -> None:
        self._lag_limits, self._out = lag_limits or {}, out or sys.stderr
        self._records = self._uploaded = 0
        self._since_s = stopwatch_s()

    def __call__(self, progress: Progress) -> None:
        """Show the progress after an epoch, at most twice a second."""
        self._records += progress.records_in
        self._uploaded += progress.changed_bytes
        elapsed_s = stopwatch_s() - self._since_s
        if elapsed_s < _EVERY_S:
            return
        lags = {name: self._lag(name, lag) for name, lag in progress.source_lags.items()}
        text = progress_text(progress, self._records / elapsed_s, self._uploaded / elapsed_s, lags)
        width = os.get_terminal_size(self._out.fileno()).columns or 80
        self._write(f"\r{text[: width - 1]}\x1b[K")
        self._records = self._uploaded = 0
        self._since_s = stopwatch_s()

    def _lag(self, source: str, lag: int) -> str:
        limit = self._lag_limits.get(source)
        return f"{lag:,}" if limit is None or lag < limit else f"{lag:,} or more"

    def close(self) -> None:
        """End the line."""
        self._write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def progress_text(
    progress: Progress, rate: float, bytes_rate: float, lags: Mapping[str, str]
) -> str:
    """Return the progress of a run as a line.

    Parameters:
        rate: records per second.
        bytes_rate: bytes of change files per second.
        lags: records that are not read yet, by source.
    """
    rows, stored = sum(progress.state_rows.values()), sum(progress.state_bytes.values())
    parts = [f"epoch {progress.epoch:,}", f"{rate:,.0f} records/s"]
    # What may need a person comes first: a terminal cuts the line.
    parts += [f"{name} is {lag} behind" for name, lag in lags.items()]
    if progress.bad_records:
        parts.append(f"{progress.bad_records:,} bad records")
    parts += [f"{rows:,} rows of state, {size_text(stored)}", f"{size_text(bytes_rate)}/s written"]
    return " · ".join(parts)
