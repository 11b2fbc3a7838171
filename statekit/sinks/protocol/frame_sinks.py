"""Sinks that write a DataFrame on Spark: Spark's own writers, and functions of the user."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from statekit.connectors.probed import Probed
from statekit.declared_call import declarable
from statekit.sinks.protocol.sink import Attempt, Guarantee, Outputs, Sink


class FrameSink(Probed[Outputs], ABC):
    """A sink for the frame of an epoch. It runs on Spark only."""

    reads_once: ClassVar[bool] = True
    """True if `write` computes its frame exactly once and completely.

    The epoch then runs in the sink's own action. Otherwise the frame is computed and persisted
    before `write` is called.
    """

    @property
    def guarantee(self) -> Guarantee | None:
        """How often a record is in the target after crashes; None if the user's code decides."""
        return None

    @property
    def may_duplicate(self) -> bool:
        """True if outputs of a failed attempt may remain in addition to those of the next
        attempt.
        """
        return False

    @property
    def is_concurrent(self) -> bool:
        """True if `write` may run concurrently with other sinks of the job."""
        return False

    @property
    def directory(self) -> str | None:
        """The directory that only this sink may write to; None if there is no such directory."""
        return None

    @abstractmethod
    def write(self, df: Any, attempt: Attempt) -> None:
        """Write the outputs of an epoch.

        Parameters:
            df: the outputs, a DataFrame.
            attempt: whose outputs they are. A replayed epoch has the same `attempt.epoch`.
                Overwrite or skip the outputs that an earlier attempt left.
        """


Target = Sink | FrameSink
"""The place of outputs: a sink of any runtime, or one of Spark alone."""


def guarantees_of(targets: Mapping[str, object]) -> dict[str, str]:
    """Return the guarantee of each sink that has one, by name.

    >>> guarantees_of({"rows": writer("json", path="/data"), "alerts": print})
    {'rows': 'at least once'}
    """
    found = ((name, getattr(target, "guarantee", None)) for name, target in targets.items())
    return {name: str(guarantee) for name, guarantee in found if guarantee is not None}


@dataclass(frozen=True)
class Writer(FrameSink):
    """A sink for any DataFrame writer format. See `writer`."""

    format: str
    mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def guarantee(self) -> Guarantee:
        return "at least once"

    @property
    def may_duplicate(self) -> bool:
        return self.format != "noop"

    @property
    def is_concurrent(self) -> bool:
        return True

    def write(self, df: Any, attempt: Attempt) -> None:
        df.write.format(self.format).mode(self.mode).options(**self.options).save()


@declarable("sinks.writer")
def writer(format: str, *, mode: str = "append", **options: object) -> Writer:
    """Return a sink for any DataFrame writer format.

    Exactly-once depends on the format: appending again after a crash between the sink and the
    commit writes an epoch again.

    >>> writer("noop")
    Writer(format='noop', mode='append', options={})
    """
    return Writer(format, mode, {name: str(value) for name, value in options.items()})


@dataclass(frozen=True)
class Callback(FrameSink):
    """A sink that calls a function of the user. See `callback`."""

    fn: Callable[[Any, int], object]
    concurrent: bool = False
    reads_once: ClassVar[bool] = False

    @property
    def is_concurrent(self) -> bool:
        return self.concurrent

    def write(self, df: Any, attempt: Attempt) -> None:
        self.fn(df, attempt.epoch)


@declarable("sinks.callback")
def callback(fn: Callable[[Any, int], object], *, concurrent: bool = False) -> Callback:
    """Return a sink that calls a function `(df, epoch)` once per epoch before the commit.

    The frame may be read any number of times, in part or not at all. After a crash the function is
    called again with the same epoch number: make its effect depend on the number.

    Parameters:
        fn: the function.
        concurrent: whether it may run, in a thread of its own, while other sinks of the job write.
            Without it the function is called alone, after the sinks that statekit writes.

    >>> callback(print, concurrent=True).is_concurrent
    True
    """
    return Callback(fn, concurrent)
