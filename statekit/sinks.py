"""Sinks: where outputs go, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Callback", "Parquet", "Sink", "Writer", "callback", "parquet", "writer"]


@dataclass(frozen=True)
class Parquet:
    """Parquet files under `path`, each epoch exactly once. See `parquet`."""

    path: str


@dataclass(frozen=True)
class Writer:
    """Any DataFrame writer format. See `writer`."""

    format: str
    mode: str = "append"
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Callback:
    """A user's function. See `callback`."""

    fn: Callable[[Any, int], object]


Sink = Parquet | Writer | Callback


def parquet(path: object) -> Parquet:
    """Parquet files directly under `path`, each epoch exactly once.

    An epoch's files are staged, then moved to `epoch-<number>-<part>.parquet`; whatever an earlier
    attempt at the same epoch left is replaced, and the files of epochs that were rolled back are
    removed before the next epoch is written. Readers that list the directory between two moves
    can see a part of an epoch. Each sink needs a directory of its own. Of two runs on one
    checkpoint one is refused before it moves files, unless both get there at the same moment.

    >>> parquet("/data/turnarounds")
    Parquet(path='/data/turnarounds')
    """
    return Parquet(str(path))


def writer(format: str, *, mode: str = "append", **options: object) -> Writer:
    """Any format that a DataFrame can be written to, with its options.

    Exactly-once depends on the format: appending again after a crash between the sink and the
    commit writes an epoch again.

    >>> writer("noop")
    Writer(format='noop', mode='append', options={})
    """
    return Writer(format, mode, {name: str(value) for name, value in options.items()})


def callback(fn: Callable[[Any, int], object]) -> Callback:
    """A function `(df, epoch)`, called once per epoch before the commit.

    The frame may be read any number of times, in part or not at all. After a crash the function is
    called again with the same epoch number: make its effect depend on the number.
    """
    return Callback(fn)
