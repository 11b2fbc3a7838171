"""`Job`: a graph of sources, process functions and sinks."""

from __future__ import annotations

import copy
import datetime as dt
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Literal, Protocol, TypeVar, Unpack, overload, runtime_checkable

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import DEFAULT_RETENTION
from statekit.errors import RestoreError, StateTypeError
from statekit.job.declarations import declares
from statekit.job.explain import explained_plan
from statekit.job.findings import JobFinding
from statekit.job.input_options import InputArguments, input_of
from statekit.job.notebook import plan_html
from statekit.job.options import Pace, RunArguments, RunOptions, StartArguments, StartOptions
from statekit.job.plan import Input, Plan, check_name, errors_name
from statekit.job.progress import Bootstrapped, OutputCallback, Run, RunningJob
from statekit.job.stream import Stream
from statekit.keygroup import check_groups
from statekit.records.union import records_of
from statekit.sinks.protocol.sink import Sink
from statekit.sources.decoding.decoder import BadRecord
from statekit.sources.source import Source
from statekit.sources.spark import AnySource
from statekit.working_copy.copies import WorkingCopies

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


@runtime_checkable
class JobPart(Protocol):
    """A part of a job that declares operators of its own."""

    def added_to(self, job: Job) -> None:
        """Set the job of this part. Called by `Job.add`."""


P = TypeVar("P", bound=JobPart)


class Job:
    """A job: sources, operators and sinks. Nothing runs until `start` or `run`.

    Parameters:
        name: kept in the checkpoint; a checkpoint belongs to one job.
        key_groups: the largest possible parallelism, 1 to 32768; fixed once a checkpoint exists.
            None uses the number of the checkpoint, or 128.

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
        self._plan = Plan(name, None if key_groups is None else check_groups(key_groups))

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._plan.name

    @property
    def key_groups(self) -> int | None:
        """The declared largest parallelism; None if it is that of the checkpoint, or 128."""
        return self._plan.key_groups

    @property
    def plan(self) -> Plan:
        """The sources, operators and sinks, as runtimes read them. Its names may change."""
        return self._plan

    def __copy__(self) -> Job:
        """Return a job with the same parts, to which others can be added."""
        copied = Job(self.name, key_groups=self.key_groups)
        copied._plan = copy.copy(self._plan)
        return copied

    def __repr__(self) -> str:
        sources = ", ".join(source.name for source in self._plan.sources) or "none"
        operators = ", ".join(operator.name for operator in self._plan.operators) or "none"
        return f"<Job {self.name!r}: sources {sources}; operators {operators}>"

    def __str__(self) -> str:
        return str(self._plan)

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        return plan_html(f"Job {self.name}", self._plan)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the job as a document: the calls that declared it, in JSON.

        `from_json` makes the same job again, in any process. Functions and classes are in it by
        their module and name, functions with a digest of their source; conditions and expressions
        as SQL; secrets by their place. Inputs and outputs that each run gives are not in it.

        Parameters:
            indent: spaces per level; None for one line.

        Raises:
            StateTypeError: a part has no form in a document: a function that is a lambda or stands
                in a function or a script, a secret itself instead of `sk.secret`, or an object of a
                class that is no dataclass. The message names its place.

        >>> import statekit as sk
        >>> job = sk.Job("shop")
        >>> orders = job.source("orders", dict, sk.sources.json_lines("/data/orders"))
        >>> _ = orders.sink("archive")
        >>> print(job.to_json(indent=1))
        {
         "statekit": "job",
         "version": 1,
         "name": "shop",
         "steps": [
          {
           "call": "job.source",
           "with": {
            "name": "orders",
            "types": [
             {
              "$type": "dict"
             }
            ],
            "source": {
             "$call": "sources.json_lines",
             "with": {
              "path": "/data/orders"
             }
            }
           }
          },
          {
           "call": "stream.sink",
           "of": [
            "orders"
           ],
           "with": {
            "name": "archive"
           }
          }
         ]
        }
        """
        return _runtime("statekit.documents.job_document", "job_to_json")(self, indent)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(
        text: str | bytes, *, modules: Sequence[str] | None = None, changed: bool = False
    ) -> Job:
        """Return the job of a document that `to_json` wrote.

        It imports the modules that the document names, which runs their code.

        Parameters:
            modules: the packages and modules that may be imported; None for any. Pass it for
                documents of others. It does not limit secrets, files and options.
            changed: take functions as they are if their source has changed since.

        Raises:
            StateTypeError: the document is not valid or of another version, it has a password, a
                module may not be imported, or a function is missing or has changed. The message
                names its place.

        >>> import statekit as sk
        >>> job = sk.Job("shop")
        >>> _ = job.source("orders", dict).sink("archive")
        >>> again = sk.Job.from_json(job.to_json(), modules=[])
        >>> print(again)
        job shop
        └── source orders: dict
            └── sink archive
        """
        make = _runtime("statekit.documents.job_document", "job_from_json")
        return make(text, modules, changed=changed)  # type: ignore[no-any-return]

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema of the documents of `to_json`.

        >>> import statekit as sk
        >>> sk.Job.json_schema()["properties"]["version"]
        {'const': 1, 'title': 'Version', 'type': 'integer'}
        """
        return _runtime("statekit.documents.job_document", "job_schema")()  # type: ignore[no-any-return]

    @overload
    def source(
        self,
        name: str,
        record_type: type[T],
        source: AnySource | None = None,
        /,
        **options: Unpack[InputArguments],
    ) -> Stream[T]: ...
    @overload
    def source(
        self, name: str, record_type: type[T], other: type[U], /, **options: Unpack[InputArguments]
    ) -> Stream[T | U]: ...
    @overload
    def source(
        self,
        name: str,
        record_type: type[T],
        other: type[U],
        another: type[V],
        /,
        **options: Unpack[InputArguments],
    ) -> Stream[T | U | V]: ...
    def source(
        self, name: str, record_type: Any, /, *others: Any, **options: Unpack[InputArguments]
    ) -> Stream[Any]:
        """Declare an input of records of a type, and where they come from.

        Without Spark, an iterable may have records of several types, in the order in which they are
        given. On Spark the rows of a frame have one type: declare a source for each type, and
        `union` them.

        Parameters:
            source: such as `sources.json_lines(path)`, after the type, or `sources.spark(format)`
                for a job that runs on Spark alone. Without it, each run says where the records come
                from, by `inputs=`.
            history: a bounded source that is read to its end first, then `then`.
            then: is read from where it begins when the first record of the history is read. Event
                time does not advance before the history has ended.
            boundary: a field and its first value in `then`, such as `{"at": midnight}`, if some
                records are in both: each is taken from one of them.
            idle_after: an input without records for so long, in processing time, no longer holds
                back the event time of operators that have other inputs; a timedelta or a text such
                as "5 minutes". The decision is made when an epoch begins and is the same in a
                replay. Records that arrive later may be late. None: it always holds it back.
            on_error: what is done with records that do not fit the type: "fail" ends the job,
                "drop" leaves them out, "collect" gives them to the stream `errors`. They are
                counted in any case.
            max_errors: with more bad records, in all epochs, the job ends. None: any number.

        Raises:
            StateTypeError: the name is taken or not valid, the type is none of records, or an
                option is not valid.
        """
        source = others[0] if len(others) == 1 and isinstance(others[0], AnySource | None) else None
        types = [other for other in others if other is not None and other is not source]
        return declared_source(self, name, [record_type, *types], source, **options)

    @declares("job.add")
    def add(self, part: P) -> P:
        """Add a part that declares operators of its own, such as a `KVStore`. Return the part.

        Raises:
            StateTypeError: it belongs to a job already, or is no such part.
        """
        if not isinstance(part, JobPart):
            raise StateTypeError(
                f"job {self.name!r}: add() takes a part of a job, such as a KVStore, not {part!r}"
            )
        part.added_to(self)
        return part

    def explain(self, checkpoint: str | Path | None = None) -> str:
        """Describe the reads, shuffles, combiners and calls of the job on Spark, with the reasons.

        Parameters:
            checkpoint: a directory or object store URL, to describe what its last epoch took, too:
                CPU of workers per operator, and on a cluster where shards ran.

        Raises:
            RestoreError: the checkpoint has no epoch.
            CorruptCheckpointError: its last epoch cannot be read.
            StorageError: it cannot be reached.

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
        if checkpoint is None:
            return explained_plan(self._plan)
        repository = Repository(checkpoint, create=False)
        if (latest := repository.latest_epoch()) is None:
            raise RestoreError(
                f"{repository.url} has no epoch yet: run the job first, or leave out checkpoint="
            )
        return explained_plan(self._plan, repository.manifest(latest))

    def check(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        outputs: Mapping[str, Any] | None = None,
        checkpoint: str | Path | None = None,
        spark: bool = False,
        allow_dropped_state: bool = False,
        connections: bool = True,
        limit_s: float = 10.0,
    ) -> list[JobFinding]:
        """Return what a run would refuse or fail at, as far as that is known before it. Nothing
        runs, and nothing is changed.

        It checks the types of all streams, keys, states and callbacks; whether Spark's workers can
        unpickle the functions; whether the state of the checkpoint fits; and whether sources and
        sinks can be reached by this user, and fit the types.

        Parameters:
            inputs, outputs: as for `run`.
            checkpoint: a directory or object store URL, which need not exist; None to check none.
            spark: whether the job is to run on Spark. Otherwise functions that workers do not get
                are warnings.
            allow_dropped_state: as for `run`.
            connections: whether sources and sinks are connected to.
            limit_s: how long a connection may take, in seconds.

        Raises:
            StateTypeError: the time limit is not valid.

        >>> from typing import NamedTuple
        >>> import statekit as sk
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> @sk.process(key="customer")
        ... def total(order: Order, sum: sk.ValueState[int]) -> None: ...
        >>> job = sk.Job("shop")
        >>> _ = job.source("orders", Order, sk.sources.json_lines("/no/such/folder")).process(total)
        >>> [(each.severity, each.where) for each in job.check() if each.severity == "error"]
        [('error', 'source orders')]
        """
        return _runtime("statekit.checking.job_check", "check_job")(  # type: ignore[no-any-return]
            self._plan,
            inputs or {},
            outputs or {},
            None if checkpoint is None else str(checkpoint),
            spark=spark,
            allow_dropped_state=allow_dropped_state,
            connections=connections,
            limit_s=limit_s,
            needs_targets=spark,
        )

    def bootstrap(
        self,
        state: str | Mapping[str, Any],
        from_: Any = None,
        *,
        checkpoint: str | Path | Repository,
        parallelism: int = 1,
        refuse: int = 0,
        watermark: dt.datetime | None = None,
    ) -> Bootstrapped:
        """Fill states of a new checkpoint from tables with the columns of `statekit.read`.

        Nothing runs. The rows of all states become the first epoch, in one commit, and the job
        continues from it. If the process is killed, call it again.

        Parameters:
            state: operator and state, such as "totals.sum", or "totals._timers"; or several with
                their tables.
            from_: the table of a single state: an Arrow table or reader, an iterable of
                batches, a frame of pandas or Polars, the path of Parquet files, or a bounded source
                with these columns.
            checkpoint: a directory, an object store URL or an open repository, without epochs.
            parallelism: shards per operator.
            refuse: how many rows may be refused: rows without a key, with a key that occurred
                before, or with a value that the declared type does not allow.
            watermark: the watermark of all operators with event time; None for the beginning.

        Raises:
            BootstrapError: more rows than `refuse` were refused, or columns are missing or of
                another type. The attribute `refused` has the rows.
            RestoreError: the checkpoint has epochs.
            StateTypeError: there is no such state, no table can have its rows, or an argument is
                not valid.
            StatekitError: for other reasons, each with its class.

        >>> import tempfile
        >>> from collections.abc import Iterator
        >>> import pyarrow as pa
        >>> from typing import NamedTuple
        >>> import statekit as sk
        >>> class Order(NamedTuple):
        ...     customer: str
        ...     cents: int
        >>> @sk.process(key="customer")
        ... def totals(order: Order, sum: sk.ValueState[int]) -> Iterator[tuple[str, int]]:
        ...     sum.update((sum.get() or 0) + order.cents)
        ...     yield order.customer, sum.get() or 0
        >>> job = sk.Job("shop")
        >>> _ = job.source("orders", Order).process(totals).sink("totals")
        >>> table = pa.table({"customer": ["ada", "bob"], "value": [500, 70]})
        >>> with tempfile.TemporaryDirectory() as checkpoint:
        ...     print(job.bootstrap("totals.sum", table, checkpoint=checkpoint).rows)
        ...     job.run({"orders": [Order("ada", 1)]}, checkpoint=checkpoint)["totals"]
        {'totals.sum': 2}
        [('ada', 501)]
        """
        if isinstance(state, Mapping) and from_ is not None:
            raise StateTypeError(
                "a dict of states has their tables, and from_= is the table of a single state: "
                "leave out one of them. Nothing was read"
            )
        given = state if isinstance(state, Mapping) else {state: from_}
        return _runtime("statekit.maintenance.bootstrap", "bootstrap")(  # type: ignore[no-any-return]
            self._plan,
            given,
            checkpoint,
            parallelism=parallelism,
            refuse=refuse,
            watermark=watermark,
        )

    def run(
        self,
        inputs: Mapping[str, Iterable[Any] | Source] | None = None,
        *,
        outputs: Mapping[str, OutputCallback | Sink] | None = None,
        checkpoint: str | Path | Repository | None = None,
        epoch_size: int | None = None,
        backend: Literal["memory", "rocksdb"] | WorkingCopies = "memory",
        drain: bool | None = None,
        follow: bool = False,
        trigger: dt.timedelta | str | None = None,
        heartbeat: dt.timedelta | str | None = None,
        stop: Event | None = None,
        **options: Unpack[RunArguments],
    ) -> Run:
        """Run in this process until the inputs end, or until the run is stopped, without Spark.

        With a checkpoint, the run is exactly-once as on Spark: how far each input was read is
        committed with the state, and a run that continues, in any runtime, reads on from there. An
        iterable must give the same records again, from its start.

        If an input is a stream, such as `sources.json_lines(directory)`, the others that are not
        are read completely in the first epoch, before all streams.

        Parameters:
            inputs: per source of the job, an iterable of records or a source; it goes before that
                of the job. Dicts are converted to the type of the records.
            outputs: a target per sink: a sink such as `sinks.parquet(path)`, or a function
                `(records, epoch)`. Those without one here and in the job are collected.
            checkpoint: a directory, an object store URL or an open repository; None keeps nothing.
            from_savepoint: the directory or URL of a savepoint that a new checkpoint starts from. A
                checkpoint that was made from it continues from its last epoch.
            parallelism: shards per operator; None uses the parallelism of the checkpoint, or 1.
            epoch_size: records per input and epoch, at most. None: 1,000; of streams 50,000.
            backend: where rows are kept while the job runs; for tests, working copies of your own.
            working_directory: of the "rocksdb" backend; None for a temporary one.
            rocksdb: limits of memory and disk for that backend.
            bases: when it takes base snapshots, which keep restores short.
            keep_copies: whether working copies stay when the run ends, so that the next run need
                not restore them. None: unless event time has ended, as no run can follow then.
            allow_dropped_state: continue although the code no longer declares a stored state, or
                has no callback for timers that may be set.
            from_epoch: roll the checkpoint back to this epoch, then continue from there. A second
                start with it is refused once epochs have followed.
            retention: which epochs of the checkpoint are kept; None for all of them.
            drain: advance event time to its end after the last record, so that all event-time
                timers fire. Pass False if later runs continue from the checkpoint with more
                records. None: unless an input is a stream.
            follow: read streams until the run is stopped: by SIGTERM, Ctrl-C or `stop`. It ends
                after the epoch. Otherwise it ends when it has read all records that are there.
            trigger: the shortest time from one epoch to the next, such as "100 ms". None: an epoch
                begins as soon as there are records.
            heartbeat: make an epoch at least this often even if no records arrive, so that
                processing-time timers fire.
            stop: ends the run after the current epoch when another thread sets it.
            clock: returns the wall clock time in microseconds since 1970 UTC; None for the
                machine's.
            metrics: serve metrics for Prometheus until the run ends, at a port of the loopback
                address, such as 9464, or at an address, such as "0.0.0.0:9464". Port 0 is a free
                one; the logger `statekit.metrics` has the address. Needs the extra `metrics`.
            record: keep the records of shards, for `statekit replay`.
            mirror: tables that are kept equal to states, by a process beside the job: a sink per
                state, such as `{"totals.sum": sinks.delta(path)}`, or `MirrorOptions`, or a list of
                those. No failure of a mirror is one of the job.
            on_epoch: is called with a `Progress` after each commit, in this process; None shows a
                line in the terminal while the run follows streams.
            restart: start a failed job again, such as "5 in 10 minutes": at most so often within
                that time, after pauses from 1 s to 60 s, and only after failures that this can
                mend. None: a failure ends the run.

        Returns:
            The records of each sink without a target, and how many epochs were committed.

        Raises:
            ProcessError: an input or output does not fit, or the user's function failed.
            RestoreError: the checkpoint cannot be continued, or not with these inputs.
            StatekitError: for other reasons, each with its class.
        """
        options.setdefault("retention", DEFAULT_RETENTION)
        given = RunOptions.of_call(Job.run, options)
        pace = Pace.of(epoch_size, trigger, heartbeat, drain=drain, follow=follow, stop=stop)
        return _runtime("statekit.runtime.local", "run")(  # type: ignore[no-any-return]
            self._plan, inputs or {}, outputs or {}, checkpoint, given, pace, backend
        )

    def start(
        self,
        spark: Any,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | Path,
        **options: Unpack[StartArguments],
    ) -> RunningJob:
        """Run on Spark, over a source or a DataFrame per input.

        Streaming frames give one epoch per micro-batch. Static frames are one bounded epoch over
        all of their rows, which is committed when this returns: starting again over the same frames
        adds their rows once more.

        Parameters:
            spark: the session.
            inputs: per source of the job, a frame or a source such as `sources.parquet(path)`; it
                goes before that of the job. Static frames and sources of tables are read
                completely in the first epoch, before all streams. Sources and streaming frames are
                not mixed. Sources that Spark reads, `sources.spark(format)`, count as frames.
            outputs: a target per sink of the job that has none: `sinks.parquet(path)`,
                `sinks.writer(format)`, or a function `(df, epoch)`. It goes before that of the job.
            checkpoint: a directory or object store URL; Spark's own part is in `spark/` below it.
            from_savepoint: the directory or URL of a savepoint that a new checkpoint starts from;
                Spark continues after what was read until then. A checkpoint that was made from it
                continues from its last epoch.
            parallelism: shards per operator; None uses the parallelism of the checkpoint or the
                savepoint, or the number of Spark's cores. It may differ at every start.
            trigger: as for `DataStreamWriter.trigger`, such as `{"availableNow": True}`; a text is
                a processing time.
            query_name: of the streaming query.
            allow_dropped_state: continue although the code no longer declares a stored state, or
                has no callback for timers that may be set.
            from_epoch: roll the checkpoint back to this epoch, with Spark's part, then continue
                from there. Parquet sinks take back the outputs of later epochs; other sinks cannot.
                A second start with it is refused once epochs have followed.
            retention: which epochs of the checkpoint are kept; None for all of them.
            working_directory: for working copies, on each worker's local disk. None: the machine's
                temporary directory if Spark runs in this process alone; on a cluster, each
                executor's own, which Spark removes with the application.
            rocksdb: limits of memory for each worker, and of disk for working copies.
            keep_copies: whether working copies on the driver's host stay when a bounded run or a
                drain ends, so that the next start need not restore them. None: unless event time
                has ended, as no run can follow then. Those of a stopped stream always stay.
            bases: when base snapshots are taken, which keep restores short.
            epoch_size: records per source and epoch, at most. None: 1,000,000. Of frames, options
                of Spark limit them.
            heartbeat: make an epoch at least this often even if no records arrive, so that
                processing-time timers fire; a timedelta or a text such as "1 second".
            drain: advance event time to its end after the last record, so that all event-time
                timers fire; no later run can continue then. None: for static frames. A stream can
                only drain with the trigger availableNow, and does not if it is stopped before.
            clock: returns the wall clock time in microseconds since 1970 UTC; None for the
                machine's.
            metrics: serve metrics for Prometheus from the driver until the job ends, at a port of
                the loopback address, such as 9464, or at an address, such as "0.0.0.0:9464". Port 0
                is a free one; `metrics_address` of the query has the address. Needs the extra
                `metrics`. docs/operate/metrics.md describes each metric.
            record: keep the records of shards, for `statekit replay`.
            mirror: tables that are kept equal to states, by a process beside the job: a sink per
                state, such as `{"totals.sum": sinks.delta(path)}`, or `MirrorOptions`, or a list of
                those. No failure of a mirror is one of the job.
            on_epoch: is called with a `Progress` after each commit, in the driver.
            restart: start a failed job again, as for `run`. Not for static frames alone, which
                would be read from the start again.

        Returns:
            A `statekit.spark.Query`.

        Raises:
            StateTypeError: inputs or outputs are not the job's, or Spark has no such format.
            ConnectorError: Spark cannot open a source.
            ProcessError: a column is missing, or cannot be read as its field.
            RestoreError: the checkpoint cannot be continued.
            StatekitError: the start failed for another reason; the class says which.
        """
        return _runtime("statekit.spark.start", "start_query")(  # type: ignore[no-any-return]
            self._plan,
            spark,
            inputs or {},
            outputs,
            checkpoint,
            StartOptions.of_call(Job.start, options),
        )


@declares("job.source")
def declared_source(
    job: Job,
    name: str,
    types: Sequence[Any],
    source: AnySource | None = None,
    **options: Unpack[InputArguments],
) -> Stream[Any]:
    """Declare an input of records of any number of types, as `Job.source`, which describes the
    rest.

    Raises:
        StateTypeError: as for `Job.source`.
    """
    plan = job.plan
    where = f"job {job.name!r}, source {name!r}"
    records = records_of(*types, where=where)
    declared = input_of(plan.free_name("source", name), records, source, where, options)
    if declared.on_error == "collect":
        errors = plan.free_name("stream", errors_name(name))
        bad_records = records_of(BadRecord, where=f"{where}, bad records")
        plan.sources.append(Input(errors, bad_records, declared.idle_after_us, errors_of=name))
    plan.sources.append(declared)
    return Stream(plan, name)


def _runtime(module: str, name: str) -> Callable[..., Any]:
    """Import a runtime on its first use and return it.

    A plan does not depend on its runtime, and `import statekit` must not need PySpark.
    """
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
