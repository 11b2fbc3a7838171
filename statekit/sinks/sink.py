"""The base class of sinks, with the attributes that the epoch runner reads, and two simple
sinks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from statekit.errors import CALL_FAILURES, ProcessError, is_users
from statekit.shown import shown_error


@dataclass(frozen=True)
class Attempt:
    """An attempt of a run to write an epoch.

    Parameters:
        epoch: its number, the same when it is replayed.
        writer: the run; keeps staged files of different runs apart.
        is_first: whether an earlier attempt may have written this epoch: it is the sink's first
            epoch in a run, or an epoch that runs again.
        without_outputs: epochs whose outputs do not count, as ranges of numbers, first and last.
        check_owner: raises FencedError if another run has committed the epoch.
    """

    epoch: int
    writer: str
    is_first: bool
    without_outputs: tuple[tuple[int, int], ...]
    check_owner: Callable[[], None]


class Sink(ABC):
    """The destination of a stream's outputs, written epoch by epoch."""

    reads_once: ClassVar[bool] = True
    """True if `write` computes its frame exactly once and completely.

    The epoch then runs in the sink's own action. Otherwise the frame is computed and persisted
    before `write` is called.
    """

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


@dataclass(frozen=True)
class Writer(Sink):
    """A sink for any DataFrame writer format. See `writer`."""

    format: str
    mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)

    @property
    def may_duplicate(self) -> bool:
        return self.format != "noop"

    @property
    def is_concurrent(self) -> bool:
        return True

    def write(self, df: Any, attempt: Attempt) -> None:
        df.write.format(self.format).mode(self.mode).options(**self.options).save()


def writer(format: str, *, mode: str = "append", **options: object) -> Writer:
    """Return a sink for any DataFrame writer format.

    Exactly-once depends on the format: appending again after a crash between the sink and the
    commit writes an epoch again.

    >>> writer("noop")
    Writer(format='noop', mode='append', options={})
    """
    return Writer(format, mode, {name: str(value) for name, value in options.items()})


@dataclass(frozen=True)
class Callback(Sink):
    """A sink that calls a function of the user. See `callback`."""

    fn: Callable[[Any, int], object]
    concurrent: bool = False
    reads_once: ClassVar[bool] = False

    @property
    def is_concurrent(self) -> bool:
        return self.concurrent

    def write(self, df: Any, attempt: Attempt) -> None:
        self.fn(df, attempt.epoch)


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


@contextmanager
def sink_failures(
    name: str, epoch: int, passes: Callable[[BaseException], bool] = lambda error: False
) -> Iterator[None]:
    """Convert errors of a sink to ProcessError, while the outputs of an epoch are written.

    Parameters:
        passes: whether an error is not about the sink, and raised as it is.

    Raises:
        ProcessError: the sink failed, and not with an error of statekit.
    """
    try:
        yield
    except CALL_FAILURES as error:
        if not is_users(error) or passes(error):
            raise
        raise ProcessError(
            f"sink {name!r} failed in epoch {epoch} with {shown_error(error)}. Nothing of this "
            "epoch is committed, and it runs again under the same number: correct the sink, then "
            "start the job again"
        ) from error
