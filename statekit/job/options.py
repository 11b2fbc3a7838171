"""Options of a run in every runtime. Users pass them to `Job.run` and `Job.start`.

An option has its type in `RunArguments` or `StartArguments`, for the type checkers of users, and
its default in `RunOptions` or `StartOptions`, which the runtimes read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from threading import Event
from typing import Any, Self, TypedDict

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.retention import DEFAULT_RETENTION, Retention
from statekit.errors import StateTypeError
from statekit.job.mirror_options import MirrorOption
from statekit.job.progress import Progress
from statekit.number_faults import int_fault
from statekit.recording.recorder import Recorder
from statekit.shown import shown
from statekit.timestamp import duration_to_micros
from statekit.working_copy.base_options import BaseOptions


class RunArguments(TypedDict, total=False):
    """Options of a run in any runtime, as arguments. `Job.run` describes each."""

    from_savepoint: str | Path | None
    parallelism: int | None
    allow_dropped_state: bool
    from_epoch: int | None
    retention: Retention | None
    working_directory: str | Path | None
    rocksdb: RocksOptions | None
    keep_copies: bool | None
    bases: BaseOptions | None
    clock: Callable[[], int] | None
    metrics: int | str | None
    record: Recorder | None
    mirror: MirrorOption | None
    on_epoch: Callable[[Progress], object] | None
    restart: str | None


class StartArguments(RunArguments, total=False):
    """Options of a run on Spark, as arguments. `Job.start` describes each."""

    trigger: Mapping[str, Any] | str | None
    query_name: str | None
    heartbeat: dt.timedelta | str | None
    drain: bool | None
    epoch_size: int | None


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When the epochs of a run begin, and when the run ends.

    Parameters:
        epoch_size: records per input and epoch, at most; None if the user did not choose.
        trigger_s: the shortest time from the begin of one epoch to that of the next.
        heartbeat_s: the longest time between two epochs; None for any.
        drain: whether event time ends with the input; None if the user did not choose.
        follow: whether streams are read until the run is stopped.
        stop: ends the run.
    """

    epoch_size: int | None = None
    trigger_s: float = 0.0
    heartbeat_s: float | None = None
    drain: bool | None = None
    follow: bool = False
    stop: Event = field(default_factory=Event)

    @classmethod
    def of(
        cls,
        epoch_size: int | None = None,
        trigger: dt.timedelta | str | None = None,
        heartbeat: dt.timedelta | str | None = None,
        *,
        drain: bool | None = None,
        follow: bool = False,
        stop: Event | None = None,
    ) -> Self:
        """Return the pace of a run with these options.

        Raises:
            StateTypeError: an option is not valid, or needs another.

        >>> Pace.of(trigger="100 ms").trigger_s
        0.1
        """
        if epoch_size is not None and (
            fault := int_fault(epoch_size, "give a number of records, at least 1", least=1)
        ):
            raise StateTypeError(f"epoch_size={shown(epoch_size)}{fault}")
        if heartbeat is not None and not follow:
            raise StateTypeError("heartbeat= needs a run that continues: add follow=True")
        if drain and follow:
            raise StateTypeError(
                "drain=True is for runs that end with their input, and follow=True never does"
            )
        return cls(
            epoch_size=epoch_size,
            trigger_s=0.0 if trigger is None else duration_to_micros(trigger, "trigger") / 1e6,
            heartbeat_s=heartbeat_s(heartbeat),
            drain=drain,
            follow=follow,
            stop=stop or Event(),
        )


def heartbeat_s(heartbeat: dt.timedelta | str | None) -> float | None:
    """Return the seconds between two heartbeats; None without them.

    Raises:
        StateTypeError: it is no duration, or has no length.
    """
    if heartbeat is None:
        return None
    seconds = duration_to_micros(heartbeat, "heartbeat") / 1_000_000
    if not seconds:
        raise StateTypeError(f"heartbeat={shown(heartbeat)}: give more than nothing")
    return seconds


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run in any runtime, with their defaults."""

    from_savepoint: str | Path | None = None
    parallelism: int | None = None
    allow_dropped_state: bool = False
    from_epoch: int | None = None
    # None keeps all epochs, as tests and the harness do. Job.run and Job.start pass
    # DEFAULT_RETENTION.
    retention: Retention | None = None
    working_directory: str | Path | None = None
    rocksdb: RocksOptions | None = None
    keep_copies: bool | None = None
    bases: BaseOptions | None = None
    clock: Callable[[], int] | None = None
    metrics: int | str | None = None
    record: Recorder | None = None
    mirror: MirrorOption | None = None
    on_epoch: Callable[[Progress], object] | None = None
    restart: str | None = None

    @classmethod
    def of_call(cls, called: Callable[..., object], given: Mapping[str, Any]) -> Self:
        """Return the options that a function was called with.

        Parameters:
            called: the function. It has parameters beside the options.

        Raises:
            TypeError: there is no such option.

        >>> def run(inputs: dict, *, epoch_size: int = 1000, **options) -> None: ...
        >>> RunOptions.of_call(run, {"epoch_sise": 2})
        Traceback (most recent call last):
        TypeError: run() has no option 'epoch_sise': did you mean 'epoch_size'?
        """
        options = [field.name for field in fields(cls)]
        for name in given:
            if name not in options:
                close = get_close_matches(name, [*options, *signature(called).parameters], n=1)
                advice = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(options)}"
                raise TypeError(f"{called.__qualname__}() has no option {name!r}: {advice}")
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class StartOptions(RunOptions):
    """Options of a run on Spark, with their defaults."""

    retention: Retention | None = DEFAULT_RETENTION
    trigger: Mapping[str, Any] | str | None = None
    query_name: str | None = None
    heartbeat: dt.timedelta | str | None = None
    drain: bool | None = None
    epoch_size: int | None = None

    @property
    def spark_trigger(self) -> dict[str, Any]:
        """The trigger as arguments of `DataStreamWriter.trigger`."""
        if isinstance(self.trigger, str):
            return {"processingTime": self.trigger}
        return dict(self.trigger or {})

    @property
    def ends_with_input(self) -> bool:
        """True if the stream ends by itself after all input was read."""
        trigger = self.spark_trigger
        return bool(trigger.get("availableNow") or trigger.get("once"))
