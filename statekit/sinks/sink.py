"""The base class of sinks, with the attributes that the epoch runner reads; two simple sinks."""

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
    """One run's attempt to write an epoch.

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
    """Where the outputs of a stream are written, one epoch after the other."""

    reads_once: ClassVar[bool] = True
    """Whether `write` computes its frame exactly once and completely.

    The epoch then runs in the sink's own action. Otherwise the frame is computed and persisted
    before `write` is called.
    """

    @property
    def may_duplicate(self) -> bool:
        """Whether outputs of a failed attempt may stay beside those of the next one."""
        return False

    @property
    def is_concurrent(self) -> bool:
        """Whether `write` may run while other sinks of the job write."""
        return False

    @property
    def directory(self) -> str | None:
        """The directory that only this sink may write to; None for none."""
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
    """Any DataFrame writer format. See `writer`."""

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
    """A user's function. See `callback`."""

    fn: Callable[[Any, int], object]
    concurrent: bool = False
    reads_once: ClassVar[bool] = False

    @property
    def is_concurrent(self) -> bool:
        return self.concurrent

    def write(self, df: Any, attempt: Attempt) -> None:
        self.fn(df, attempt.epoch)


def callback(fn: Callable[[Any, int], object], *, concurrent: bool = False) -> Callback:
    """Return a function `(df, epoch)`, called once per epoch before the commit.

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
    """Write the outputs of an epoch to a sink.

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
