"""`Job`: sources, process functions and sinks, connected."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import DEFAULT_RETENTION, Retention
from statekit.job.explain import explained
from statekit.job.plan import Plan, Source, check_name
from statekit.job.progress import OutputCallback, Run, RunningJob
from statekit.job.stream import Stream
from statekit.keygroup import check_groups
from statekit.records.union import records_of
from statekit.working_copy.base_options import BaseOptions
from statekit.working_copy.copies import WorkingCopies

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class Job(Plan):
    """A job: what is computed from what. Nothing runs until `start` or `run`.

    Parameters:
        name: kept in the checkpoint; a checkpoint belongs to one job.
        key_groups: how finely state can ever be split over shards, 1 to 32768; fixed once a
            checkpoint exists. None takes what the checkpoint has, or 128.

    >>> from collections.abc import Iterator
    >>> from statekit.functions.process import process
    >>> from statekit.state.single_row_states import ValueState
    >>> @process(key="word")
    ... def count(record: dict, seen: ValueState[int]) -> Iterator[tuple[str, int]]:
    ...     seen.update((seen.get() or 0) + 1)
    ...     yield record["word"], seen.get() or 0
    >>> job = Job("words")
    >>> _ = job.source("lines", dict).process(count).sink("counts")
    >>> print(job)
    job words
    └── source lines: dict
        └── operator count by word → tuple[str, int]
            ├── state seen: value[int]
            └── sink counts
    >>> run = job.run({"lines": [{"word": "a"}, {"word": "b"}, {"word": "a"}]})
    >>> sorted(run["counts"])
    [('a', 1), ('a', 2), ('b', 1)]
    """

    def __init__(self, name: str, *, key_groups: int | None = None) -> None:
        check_name("job", name)
        super().__init__(name, None if key_groups is None else check_groups(key_groups))

    @overload
    def source(self, name: str, record_type: type[T]) -> Stream[T]: ...
    @overload
    def source(self, name: str, record_type: type[T], other: type[U], /) -> Stream[T | U]: ...
    @overload
    def source(
        self, name: str, record_type: type[T], other: type[U], another: type[V], /
    ) -> Stream[T | U | V]: ...
    def source(self, name: str, record_type: Any, *others: Any) -> Stream[Any]:
        """Declare an input of records of a type.

        In this process it may have records of several types, in the order in which they are given.
        On Spark the rows of a frame are of one type: declare a source for each, and `union` them.
        """
        where = f"job {self.name!r}, source {name!r}"
        made = records_of(record_type, *others, where=where)
        self.sources.append(Source(self.free_source(name), made))
        return Stream(self, name)

    def explain(self) -> str:
        """What is done to records on Spark, and why: what is read, shuffled, combined and called.

        >>> from collections.abc import Iterator
        >>> from typing import NamedTuple
        >>> from statekit.functions.process import process
        >>> from statekit.state.single_row_states import ValueState
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> @process(key="customer")
        ... def total(order: Order, sum: ValueState[int]) -> Iterator[Order]:
        ...     sum.update((sum.get() or 0) + order.cents)
        ...     yield Order(order.customer, sum.get() or 0)
        >>> @process(key="customer")
        ... def large(order: Order, told: ValueState[bool]) -> Iterator[Order]:
        ...     if order.cents > 1000 and not told.get():
        ...         told.update(True)
        ...         yield order
        >>> job = Job("shop")
        >>> _ = job.source("orders", Order).process(total).process(large).sink("large")
        >>> print(job.explain())
        job shop
        pass 1, fed by orders
            reads customer, cents of orders, and nothing else
            shuffled once, by the key group of customer
            total: called for each record
            large: called for each record, in the same tasks as total
        """
        return explained(self)

    def run(
        self,
        inputs: Mapping[str, Iterable[Any]],
        *,
        outputs: Mapping[str, OutputCallback] | None = None,
        checkpoint: str | Path | Repository | None = None,
        from_savepoint: str | Path | None = None,
        parallelism: int | None = None,
        epoch_size: int = 1000,
        backend: Literal["memory", "rocksdb"] | WorkingCopies = "memory",
        working_directory: str | Path | None = None,
        rocksdb: RocksOptions | None = None,
        keep_copies: bool | None = None,
        bases: BaseOptions | None = None,
        allow_dropped_state: bool = False,
        from_epoch: int | None = None,
        retention: Retention | None = DEFAULT_RETENTION,
        drain: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> Run:
        """Run in this process over iterables, without Spark. See `statekit.local.run`."""
        return _runtime("statekit.runtime.local", "run")(  # type: ignore[no-any-return]
            self,
            inputs,
            outputs=outputs,
            checkpoint=checkpoint,
            from_savepoint=from_savepoint,
            parallelism=parallelism,
            epoch_size=epoch_size,
            backend=backend,
            working_directory=working_directory,
            rocksdb=rocksdb,
            keep_copies=keep_copies,
            bases=bases,
            allow_dropped_state=allow_dropped_state,
            from_epoch=from_epoch,
            retention=retention,
            drain=drain,
            clock=clock,
        )

    def start(
        self,
        spark: Any,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | Path,
        from_savepoint: str | Path | None = None,
        parallelism: int | None = None,
        trigger: Mapping[str, Any] | str | None = None,
        query_name: str | None = None,
        allow_dropped_state: bool = False,
        from_epoch: int | None = None,
        retention: Retention | None = DEFAULT_RETENTION,
        working_directory: str | Path | None = None,
        rocksdb: RocksOptions | None = None,
        keep_copies: bool | None = None,
        bases: BaseOptions | None = None,
        heartbeat: dt.timedelta | str | None = None,
        drain: bool | None = None,
        clock: Callable[[], int] | None = None,
    ) -> RunningJob:
        """Run on Spark, over a DataFrame per source. See `statekit.spark.start`."""
        return _runtime("statekit.spark", "start")(  # type: ignore[no-any-return]
            self,
            spark,
            inputs,
            outputs,
            checkpoint=checkpoint,
            from_savepoint=from_savepoint,
            parallelism=parallelism,
            trigger=trigger,
            query_name=query_name,
            allow_dropped_state=allow_dropped_state,
            from_epoch=from_epoch,
            retention=retention,
            working_directory=working_directory,
            rocksdb=rocksdb,
            keep_copies=keep_copies,
            bases=bases,
            heartbeat=heartbeat,
            drain=drain,
            clock=clock,
        )


def _runtime(module: str, name: str) -> Callable[..., Any]:
    """A runtime, found by name when it is asked for.

    A plan does not depend on what runs it, and `import statekit` must not need PySpark.
    """
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
