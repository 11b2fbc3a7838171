"""`sinks.callback`: a function of the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from statekit.sinks.sink import Attempt, Sink


@dataclass(frozen=True)
class Callback(Sink):
    """A user's function. See `callback`."""

    fn: Callable[[Any, int], object]
    reads_once: ClassVar[bool] = False

    def write(self, df: Any, attempt: Attempt) -> None:
        self.fn(df, attempt.epoch)


def callback(fn: Callable[[Any, int], object]) -> Callback:
    """Return a function `(df, epoch)`, called once per epoch before the commit.

    The frame may be read any number of times, in part or not at all. After a crash the function is
    called again with the same epoch number: make its effect depend on the number.
    """
    return Callback(fn)
