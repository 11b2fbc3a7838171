"""`check_sink`: kill a job at each line of its sink, and check that it leaves each record once."""

from __future__ import annotations

import operator
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from statekit.codec.annotations import struct_flavour
from statekit.errors import StateTypeError
from statekit.records import by_value
from statekit.shown import shown, shown_text
from statekit.sinks.protocol.frame_sinks import Callback, FrameSink
from statekit.sinks.protocol.sink import Sink
from statekit.testing.counterexamples import counterexample, strategy_of
from statekit.testing.drivers.processes import OtherProcess, call_functions
from statekit.testing.effort import Depth, Effort
from statekit.testing.sinks.sink_job import (
    Failure,
    KillPoint,
    Make,
    SinkJob,
    UsersCode,
    job_with_sink,
    start_in_fork,
)
from statekit.testing.sinks.sink_report import Equal, Outcome, explained_outcome

T = TypeVar("T")

_KILLS: dict[Depth, int] = {"quick": 30, "normal": 100, "deep": 2_000}
"""Number of kills at each depth: with fewer, lines of a small sink would be left out."""

_KILLS_ON_SPARK: dict[Depth, int] = {"quick": 2, "normal": 6, "deep": 40}
"""Number of kills at each depth on Spark, where each takes seconds."""

_RECORDS = 6
_EPOCHS = 3
_EPOCHS_ON_SPARK = 2
_SMALL = (1, 2)
"""Numbers of records with which a failure is tried again, each record in an epoch of its own."""

_SMALL_KILLS = 30


def check_sink(
    make: Make,
    events: type[Any] | Sequence[Any],
    *,
    equal: Equal = operator.eq,
    depth: Depth | None = None,
) -> None:
    """Check that a sink leaves each record once, whenever its process is killed.

    A job writes records to the sink, in several epochs. It runs in a process of its own, which is
    killed before a line of the sink, after the sink has returned, or after a commit; then the job
    is started again, and perhaps killed again while it recovers. At its end, each record has to be
    there as often as it was given.

    Parameters:
        make: takes a directory, and returns the sink and a function without arguments that reads
            the records of the sink. The sink is a function `(records, epoch)`, as for `Job.run`; a
            `Sink`, such as `sk.sinks.parquet(path)` or one of your own; or a `FrameSink`, such as
            `sk.sinks.callback(fn)`, which runs on Spark.
            Each start of the job calls `make`, and so does this process, to read: the directory is
            empty for the first one alone. Its name can name a table.
        events: the type of the records, or records.
        equal: whether a record that was given and one that was read are the same.
        depth: the number of kills: 30, 100 or 2,000, and on Spark 2, 6 or 40; None for the depth
            that pytest was given, or "normal".

    Raises:
        AssertionError: records are missing or there twice, or the sink fails.
        StateTypeError: `make` or `events` is not valid.

    >>> from typing import NamedTuple
    >>> class Order(NamedTuple):
    ...     customer: str
    ...     cents: int
    >>> def make(place):
    ...     def file_per_epoch(records, epoch):
    ...         (place / str(epoch)).write_text(repr([tuple(order) for order in records]))
    ...     def read():
    ...         return [Order(*row) for file in place.iterdir() for row in eval(file.read_text())]
    ...     return file_per_epoch, read
    >>> check_sink(make, Order, depth="quick")
    """
    __tracebackhide__ = True
    effort = Effort(depth)
    with tempfile.TemporaryDirectory(prefix="statekit-sinks-") as directory:
        trials = _Trials(make, Path(directory))
        records = _records(events, has_columns=trials.has_columns)
        epochs = _EPOCHS_ON_SPARK if trials.is_on_spark else _EPOCHS
        kills = effort.inputs(_KILLS_ON_SPARK if trials.is_on_spark else _KILLS)
        with OtherProcess("runs sinks", call_functions, {}) as trials.process:
            wrong = trials.first_wrong(records, epochs, kills, equal)
            if wrong is not None and not trials.is_on_spark:
                kills = _SMALL_KILLS if wrong.kills else 0
                wrong = trials.smaller(records, kills, equal) or wrong
    if wrong is not None:
        raise AssertionError(explained_outcome(trials.name, wrong, equal))


class _Trials:
    """Runs of jobs that write to a sink, each with a directory of its own.

    Parameters:
        make: makes the sink.
        directory: the directory of all runs.

    Attributes:
        process: the process that starts jobs.
    """

    process: OtherProcess

    def __init__(self, make: Make, directory: Path) -> None:
        self._make = make
        self._directory = directory
        if not callable(make):
            raise StateTypeError(
                f"check_sink() takes a function that returns the sink and a function that reads "
                f"what it has written, not {shown(make)}: def make(place): ...; return sink, read"
            )
        try:
            by_value.dumps(make)
        except Exception as error:
            raise StateTypeError(
                f"{shown(make)} cannot be sent to the process that is killed "
                f"({shown_text(error)}): open connections and files within make()"
            ) from error
        sink, _ = self._made(self._new_home())
        self.is_on_spark = isinstance(sink, FrameSink)
        self.has_columns = isinstance(sink, Sink | FrameSink)
        named = sink.fn if isinstance(sink, Callback) else sink
        self.name = getattr(named, "__name__", type(named).__name__)

    def _new_home(self) -> Path:
        """Return a new directory that contains another one of its name, for the sink."""
        home = Path(tempfile.mkdtemp(prefix="sink_", dir=self._directory))
        (home / home.name).mkdir()
        return home

    def _made(self, home: Path) -> tuple[Any, Any]:
        """Return the sink and the function that reads.

        Raises:
            StateTypeError: they are no such functions.
        """
        made: Any = self._make(home / home.name)
        if not isinstance(made, tuple) or len(made) != 2:
            raise StateTypeError(
                f"make() returned {shown(made)}: return the sink and a function that reads what it "
                "has written, as in `return sink, read`"
            )
        sink, read = made
        if not isinstance(sink, Sink | FrameSink) and not callable(sink):
            raise StateTypeError(
                f"make() returned {shown(sink)} as the sink: return a function (records, epoch), "
                "a Sink, or on Spark sk.sinks.callback(fn) or a FrameSink"
            )
        if not callable(read):
            raise StateTypeError(
                f"make() returned {shown(read)} to read with: return a function without arguments "
                "that returns all records that are there"
            )
        return sink, read

    def first_wrong(
        self, records: list[Any], epochs: int, kills: int, equal: Equal
    ) -> Outcome | None:
        """Return the first outcome with other records in the sink than those written to it; None
        if there is none.

        Parameters:
            epochs: the number of epochs into which the records are divided.
            kills: the number of jobs to kill.
        """
        epoch_size = -(-len(records) // epochs)
        outcome, moments = self._run(records, epoch_size, ())
        if not outcome.is_right(equal):
            return outcome
        for chosen in _chosen(moments, kills):
            outcome, _ = self._run(records, epoch_size, chosen)
            if not outcome.is_right(equal):
                return outcome
        return None

    def smaller(self, records: list[Any], kills: int, equal: Equal) -> Outcome | None:
        """Return a wrong outcome of the fewest records that show it; None if few do not."""
        for count in _SMALL:
            if count < len(records):
                wrong = self.first_wrong(records[:count], count, kills, equal)
                if wrong is not None:
                    return wrong
        return None

    def _run(
        self, records: list[Any], epoch_size: int, kill_at: Sequence[int]
    ) -> tuple[Outcome, list[KillPoint]]:
        """Start a job until it ends, and return its outcome and the moments of the last start.

        Parameters:
            kill_at: the number of a moment of each start but the last, from 1.
        """
        home = self._new_home()
        job = SinkJob(home, records, epoch_size, self.is_on_spark)
        kills: list[KillPoint] = []
        try:
            for number in (*kill_at, None):
                start = self.process.call(start_in_fork, self._make, job, number)
                if start.error is not None:
                    return Outcome(records, epoch_size, kills, [], start.error), start.reached
                if not start.killed:
                    break
                kills.append(start.reached[-1])
            left, failure = self._left(home)
            return Outcome(records, epoch_size, kills, left, failure), start.reached
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _left(self, home: Path) -> tuple[list[Any], Failure | None]:
        """Return the records in the sink, or the error of reading them."""
        try:
            _, read = self._made(home)
            left = read()
            if isinstance(left, Iterable) and not isinstance(left, str | bytes):
                return list(left), None
        except Exception as error:  # noqa: BLE001 - it is a result of the check
            failure = UsersCode(self._make).failure(error)
            return [], failure._replace(text=f"{failure.text}, while it is read")
        raise StateTypeError(f"read() returned {shown(left)}: return all records that are there")


def _chosen(moments: Sequence[KillPoint], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of the moments at which jobs are killed: once each, then twice.

    Moments between the sink and the commit come first, since most faults show there. A line that
    runs again is less likely to show another one.

    Parameters:
        moments: of a job that is not killed.
        count: the maximum number of jobs that are killed.
    """
    numbers = range(1, len(moments) + 1)
    once = count if count >= len(moments) else count - count // 3
    written = [number for number in numbers if moments[number - 1].moment == "written"]
    firsts: dict[KillPoint, int] = {}
    for number in numbers:
        firsts.setdefault(moments[number - 1]._replace(epoch=0), number)
    single: list[int] = []
    for some, most in ((written, -(-once // 2)), (firsts.values(), once), (numbers, once)):
        others = [number for number in some if number not in single]
        single += _spread(others, min(most, once - len(single)))
    yield from ((number,) for number in single)
    # The second kill of a pair is in the first epoch after the restart: while the job recovers.
    of_epoch = max(1, len(moments) // (moments[-1].epoch + 1)) if moments else 0
    for pair in _spread(range(len(moments) * of_epoch), count - len(single)):
        number, again = divmod(pair, of_epoch)
        yield number + 1, again + 1


def _spread(items: Sequence[T], count: int) -> list[T]:
    """Return some items of a sequence, evenly spread.

    >>> _spread("abcdefgh", 4)
    ['b', 'd', 'f', 'h']
    """
    if len(items) <= count:
        return list(items)
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]


def _records(events: Any, *, has_columns: bool) -> list[Any]:
    """Return the records that a job writes: the given ones, or generated ones of a type.

    Raises:
        StateTypeError: there are none, or they are no records.
    """
    if isinstance(events, Sequence) and not isinstance(events, str | bytes):
        records = list(events)
        if not records:
            raise StateTypeError("events=[] has no records: give some, or their type")
    else:
        records = _generated(events)
    if has_columns and any(struct_flavour(type(record)) is None for record in records):
        raise StateTypeError(
            f"events has {shown(records[0])}, and such a sink takes columns: give records of a "
            "NamedTuple, a dataclass or the like"
        )
    job_with_sink(records)
    return records


def _generated(record_type: Any) -> list[Any]:
    """Return the smallest records of a type that all differ."""
    strategy, records = strategy_of(record_type), dict[str, Any]()
    while len(records) < _RECORDS:
        # One by one: a list of all takes twenty times as long to be made smaller.
        found = counterexample(strategy, partial(_is_new, records), Effort("normal", seed=0))
        if found is None:
            raise StateTypeError(
                f"events={shown(record_type)}: no {_RECORDS} different records can be made of it: "
                "give some, as a list"
            )
        records[repr(found[0])] = found[0]
    return list(records.values())


def _is_new(records: Mapping[str, Any], record: Any) -> bool:
    """Return whether a record is none of those that have been made, by their texts."""
    return repr(record) not in records
