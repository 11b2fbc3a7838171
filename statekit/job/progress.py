"""Progress, metrics and result of a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar, overload

import pyarrow as pa

from statekit.errors import StateTypeError
from statekit.job.notebook import run_html
from statekit.job.plan import Output
from statekit.job.stream import Stream

T = TypeVar("T")

OutputCallback = Callable[[list[Any], int], None]
"""A function for the outputs of an epoch: `(records, epoch)`. A replay has the same epoch
number.
"""


@dataclass(frozen=True)
class Bootstrapped:
    """The result of a bootstrap.

    Parameters:
        epoch: the committed epoch.
        rows: the number of rows of each state that was given.
        refused: the refused rows of each state that has some: the columns of the given table, and
            `reason`.
    """

    epoch: int
    rows: Mapping[str, int]
    refused: Mapping[str, pa.Table] = field(default_factory=dict)


@dataclass(frozen=True)
class MirrorProgress:
    """How far a mirror beside a job is. `mirror=` of a run starts it.

    Attributes:
        name: of the mirror.
        epoch: the epoch that its tables equal; None before its first step in this run.
        is_running: whether its process runs.
        error: why it has ended before the job; None if it has not.
    """

    name: str
    epoch: int | None = None
    is_running: bool = True
    error: str | None = None


@dataclass(repr=False)
class Run:
    """The result of a run in this process.

    `run[stream]` has the records of a stream that has a sink, as a list of the stream's record
    class. `run["name"]` has the records of the sink of that name, which have no static type.

    Attributes:
        outputs: records per sink, for sinks without a callback.
        epochs: number of committed epochs.
        last_epoch: the number of the last committed epoch, of this run or one before it.
        sinks: all sinks of the job.
        mirrors: how far each mirror beside the job is, at the end of the run.

    >>> from collections.abc import Iterator
    >>> from typing import NamedTuple
    >>> import statekit as sk
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> @sk.process(key="customer")
    ... def spent(order: Order, total: sk.ValueState[int]) -> Iterator[int]:
    ...     total.update((total.get() or 0) + order.cents)
    ...     yield total.get() or 0
    >>> job = sk.Job("shop")
    >>> totals = job.source("orders", Order).process(spent).sink("totals")
    >>> run = job.run({"orders": [Order("ada", 500), Order("ada", 2000)]})
    >>> run[totals], run["totals"]
    ([500, 2500], [500, 2500])
    >>> run["total"]
    Traceback (most recent call last):
    statekit.errors.StateTypeError: the run has no records of a sink 'total': it has those of \
totals; did you mean 'totals'?
    """

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    epochs: int = 0
    last_epoch: int | None = None
    sinks: tuple[Output, ...] = ()
    mirrors: tuple[MirrorProgress, ...] = ()

    def __repr__(self) -> str:
        counts = [f"{len(records)} records for {name}" for name, records in self.outputs.items()]
        return f"<Run: {', '.join([self._summary, *counts])}>"

    def _repr_html_(self) -> str:
        """Return the first records of each sink for a notebook."""
        others = [sink.name for sink in self.sinks if sink.name not in self.outputs]
        return run_html(self._summary, self.outputs, others)

    @property
    def _summary(self) -> str:
        last = "none" if self.last_epoch is None else self.last_epoch
        return f"{self.epochs} epochs, last epoch {last}"

    @overload
    def __getitem__(self, sink: str) -> list[object]: ...
    @overload
    def __getitem__(self, sink: Stream[T]) -> list[T]: ...
    def __getitem__(self, sink: str | Stream[Any]) -> list[Any]:
        """Return the records of a sink, given by its name or by its stream.

        Raises:
            StateTypeError: the run collected no records of this sink, or the stream has no sink.
        """
        name = self._sink_of(sink) if isinstance(sink, Stream) else sink
        if name in self.outputs:
            return self.outputs[name]
        if any(name == of.name for of in self.sinks):
            raise StateTypeError(
                f"the run has no records of sink {name!r}: outputs= had a callback for it, which "
                "got them"
            )
        close = get_close_matches(str(name), self.outputs, n=1)
        raise StateTypeError(
            f"the run has no records of a sink {name!r:.100}: it has those of "
            f"{', '.join(self.outputs) or 'no sink'}; "
            + (f"did you mean {close[0]!r}?" if close else "use one of these names")
        )

    def _sink_of(self, stream: Stream[Any]) -> str:
        names = [sink.name for sink in self.sinks if sink.stream == stream.name]
        if not names:
            raise StateTypeError(
                f"stream {stream.name!r} has no sink in this job, so the run has no records of "
                "it: call .sink(name) before the run"
            )
        return names[0]


@dataclass(frozen=True)
class Progress:
    """Metrics of one epoch, in any runtime.

    Attributes:
        epoch: its number.
        batch: Spark's number of the micro-batch; None for a bounded run.
        records_in: records read from sources, before any condition or function, and without bad
            ones. Of streams and frames that Spark itself reads: those that arrive at operators.
        records_out: records emitted by all operators.
        seconds: from the start of the epoch to its commit.
        late: late records of all operators.
        failed: records and timers for which a function failed, of all operators that drop or
            collect them.
        watermarks: the watermark of each operator with event time.
        waits_for: the source that holds back the event time of an operator, by operator.
        processing_time: the processing time of the epoch.
        state_rows, state_bytes: size of each `operator.state` after the epoch.
        changed_bytes: size of the change files.
        executors: on a cluster, how many shards ran on each executor, by its id.
        moved_shards: shards that ran on another executor the last time.
        restored_bytes: bytes of the files that working copies were restored from.
        caught_up_bytes: bytes of the change files that working copies had missed.
        cpu_seconds: CPU time of each operator in Spark's workers.
        source_lags: records that are not read yet, by source, as far as they are known.
        bad_records: records of sources that did not fit their types, in all epochs.
        metrics: the metrics of the run after the epoch, as `metrics=` serves them, by name and
            labels without the label `job`, such as `statekit_state_rows{operator="count",
            state="seen"}`, without the space.
    """

    epoch: int
    batch: int | None
    records_in: int
    records_out: int
    seconds: float
    processing_time: dt.datetime
    late: int = 0
    failed: int = 0
    watermarks: dict[str, dt.datetime] = field(default_factory=dict)
    waits_for: dict[str, str] = field(default_factory=dict)
    state_rows: dict[str, int] = field(default_factory=dict)
    state_bytes: dict[str, int] = field(default_factory=dict)
    changed_bytes: int = 0
    executors: dict[str, int] = field(default_factory=dict)
    moved_shards: int = 0
    restored_bytes: int = 0
    caught_up_bytes: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    source_lags: dict[str, int] = field(default_factory=dict)
    bad_records: int = 0
    metrics: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def events_per_second(self) -> float:
        """Records read per second of the epoch."""
        return self.records_in / self.seconds if self.seconds else 0.0


class RunningJob(Protocol):
    """A job that runs on Spark; `statekit.spark.Query` is one."""

    @property
    def query(self) -> Any:
        """Spark's `StreamingQuery`; None for a bounded run, which has ended."""

    @property
    def progress(self) -> Sequence[Progress]:
        """Metrics of the last epochs, oldest first."""

    @property
    def last_progress(self) -> Progress | None:
        """Metrics of the last epoch; None before the first."""

    @property
    def epoch(self) -> int | None:
        """The number of the last epoch that this run committed."""

    @property
    def mirrors(self) -> Sequence[MirrorProgress]:
        """How far each mirror beside the job is."""

    @property
    def is_active(self) -> bool:
        """True until the job has ended."""

    @property
    def metrics_address(self) -> str | None:
        """The URL that Prometheus reads; None without `metrics=`, and after the end."""

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the job, for at most `timeout_s` seconds. Return whether it has
        ended.
        """

    def savepoint(self, name: str) -> str:
        """Write all state after the last committed epoch to a savepoint. Return its URL."""

    def stop(self) -> None:
        """Stop the job. Committed epochs are kept."""
