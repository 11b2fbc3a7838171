"""`@statekit.transform`: declares a transform of checkpoints, and runs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from statekit.checkpoint.manifest import EpochManifest
from statekit.checkpoint.offline import check_at_rest
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.retention import held
from statekit.checkpoint.rollback import check_batch
from statekit.errors import (
    CALL_FAILURES,
    ProcessError,
    QueryError,
    RescaleError,
    RestoreError,
    StateTypeError,
    is_users,
)
from statekit.job.job import Job
from statekit.keygroup import check_parallelism
from statekit.maintenance.transform.new_checkpoint import NewCheckpoint
from statekit.maintenance.transform.transformation import Transformation
from statekit.query.rows.reader import CheckpointReader
from statekit.shown import shown, shown_error

TransformFunction = Callable[[Transformation], None]

_LATER = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
"""Whether a call of a function only prepares what it does."""


@dataclass(frozen=True)
class TransformResult:
    """The result of a transform.

    Attributes:
        manifest: the first epoch of the new checkpoint.
        rows: the number of its rows per state, by `operator.state`.
        files, bytes: the number and size of the files that were verified.
    """

    manifest: EpochManifest
    rows: dict[str, int]
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CheckpointTransform:
    """A transform of checkpoints. Created by `@transform`.

    Attributes:
        function: the decorated function.
        job: the new job, or a function that returns it.

    Raises:
        StateTypeError: the function is async, or a generator function.
    """

    function: TransformFunction
    job: Job | Callable[[], Job]

    def __post_init__(self) -> None:
        function = self.function
        if any(is_one(function) for is_one in _LATER):
            raise StateTypeError(
                f"transform({shown(function)}): a call of an async function or of a generator "
                "function does nothing yet: use a function without async and yield"
            )

    def __call__(self, old: Transformation, /) -> None:
        """Call the function, as another transform function may."""
        self.function(old)

    def run(
        self,
        checkpoint: str | Path,
        into: str | Path,
        *,
        epoch: int | None = None,
        parallelism: int | None = None,
        allow_pickle: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> TransformResult:
        """Write a new checkpoint from an old one, which does not change. No job may run on it.

        The new checkpoint is complete and verified, or no job can start on it. After a failure or
        a kill, run it again, or delete the directory.

        Parameters:
            checkpoint: a directory or object store URL.
            into: that of the new checkpoint. It does not exist yet, or has no files.
            epoch: transform this epoch; None for the last one.
            parallelism: shards per operator; None for the number of the old checkpoint.
            allow_pickle: unpickle values that are read. Unpickling can run any code that the
                writer of the checkpoint chose.
            progress: called with the number of written rows, and of rows of the old checkpoint.

        Raises:
            RestoreError: there is no such checkpoint or epoch, an epoch was begun and not
                committed, `into` has files, or one of both checkpoints is inside of the other.
            StateSchemaError: the function names what the old checkpoint or the new job does not
                have, or leaves rows out.
            StateTypeError: a row does not fit the types of the new job, or there is no new job.
            ProcessError: the function failed, or that of the new job, or one that combines values.
            FencedError: another transform has committed its own.
            CorruptCheckpointError: a file of the old checkpoint is missing or altered.
        """
        job = self._new_job()
        source = _source(checkpoint, epoch)
        shards = _shards(source, job, parallelism)
        with held(source.repository, source.manifest.epoch):
            target = NewCheckpoint(str(into), source)
            if target.completed is not None:
                target.clean_up()
                return _result(target.completed)
            try:
                with Transformation(source, job.plan, shards, allow_pickle=allow_pickle) as old:
                    return self._written(old, target, progress)
            except BaseException:
                target.withdraw()
                raise

    def _new_job(self) -> Job:
        """Return the new job.

        Raises:
            StateTypeError: the function of the job returns something else, or the job has no
                operator.
            ProcessError: the function of the job failed.
        """
        job: object = self.job
        if not isinstance(job, Job):
            try:
                job = self.job()  # type: ignore[operator]
            except CALL_FAILURES as error:
                if not is_users(error):
                    raise
                raise ProcessError(
                    f"the function of the new job failed with {shown_error(error)}. Nothing was "
                    "written: correct it, then run the transform again"
                ) from error
        if not isinstance(job, Job):
            raise StateTypeError(
                f"the function of the new job returns {shown(job)}, and no job. Nothing was "
                "written: return the job"
            )
        if not job.plan.operators:
            raise StateTypeError(
                f"job {job.name!r} has no operator, and so no state. Nothing was written: add one "
                "with process(), window() or an aggregate"
            )
        return job

    def _written(
        self, old: Transformation, target: NewCheckpoint, progress: Callable[[int, int], None]
    ) -> TransformResult:
        self._call(old)
        old.check_complete()
        done = 0

        def count(rows: int) -> None:
            nonlocal done
            done += rows
            progress(done, old.old_rows)

        shards = old.shards(target.repository, count)
        operators = old.job.operators
        manifest, verified = target.commit(
            old.job_file(), shards, operators, old.sources, lambda done: None
        )
        result = _result(manifest)
        return TransformResult(result.manifest, result.rows, verified.files, verified.bytes)

    def _call(self, old: Transformation) -> None:
        try:
            self.function(old)
        except CALL_FAILURES as error:
            if not is_users(error):
                raise
            name = getattr(self.function, "__name__", "transform")
            raise ProcessError(
                f"transform {name!r} failed with {shown_error(error)}. Nothing is committed, and "
                "the old checkpoint is unchanged: correct the function, then run it again"
            ) from error


def transform(
    job: Job | Callable[[], Job], /
) -> Callable[[TransformFunction], CheckpointTransform]:
    """Decorate a function that makes the state of a new job from a checkpoint of an old one.

    Parameters:
        job: the new job, or a function that returns it. Its declarations give the types of the new
            states.

    Raises:
        StateTypeError: `job` is neither.

    >>> import tempfile
    >>> from typing import Annotated, NamedTuple
    >>> import statekit as sk
    >>> class Order(NamedTuple):
    ...     order: str
    ...     customer: str
    ...     cents: int
    >>> @sk.process(key="order")
    ... def per_order(order: Order, last: sk.ValueState[Order]) -> None:
    ...     last.update(order)
    >>> @sk.process(key="customer")
    ... def per_customer(
    ...     order: Order, total: Annotated[sk.ReducingState[int], sk.Reduce(sum)]
    ... ) -> None:
    ...     total.add(order.cents)
    >>> old_job, new_job = sk.Job("shop"), sk.Job("shop")
    >>> _ = old_job.source("orders", Order).process(per_order)
    >>> _ = new_job.source("orders", Order).process(per_customer)
    >>> @sk.transform(new_job)
    ... def by_customer(old: sk.Transformation) -> None:
    ...     for batch in old.read("per_order", "last", columns=["customer", "cents"]):
    ...         old.write("per_customer", "total", batch.rename_columns(["customer", "value"]))
    >>> orders = [Order("1", "ada", 5), Order("2", "ada", 7), Order("3", "bob", 1)]
    >>> with tempfile.TemporaryDirectory() as at:
    ...     _ = old_job.run({"orders": orders}, checkpoint=f"{at}/old", drain=False)
    ...     _ = by_customer.run(f"{at}/old", into=f"{at}/new")
    ...     sk.read(f"{at}/new", "per_customer", "total").read_all().to_pylist()
    [{'customer': 'bob', 'value': 1}, {'customer': 'ada', 'value': 12}]
    """
    if not isinstance(job, Job) and not callable(job):
        raise StateTypeError(
            f"transform({shown(job, 100)}): give the new job, or a function that returns it, as in "
            "@statekit.transform(job)"
        )
    return lambda function: CheckpointTransform(function, job)


def _source(checkpoint: str | Path, epoch: int | None) -> CheckpointReader:
    """Open the old checkpoint. No job may have begun the next epoch.

    Raises:
        RestoreError: one has, there is no such epoch, or Spark no longer has the input until then.
    """
    repository = Repository(checkpoint, create=False)
    try:
        source = CheckpointReader(repository, epoch=epoch)
    except QueryError as error:
        raise RestoreError(str(error)) from error
    last = source.epochs[-1]
    if source.manifest.epoch == last:
        check_at_rest(repository, source.manifest)
    else:
        check_batch(repository, repository.manifest(last), source.manifest)
    return source


def _shards(source: CheckpointReader, job: Job, parallelism: int | None) -> int:
    """Return the number of shards of the new checkpoint.

    Raises:
        RescaleError: it is not possible, or the job wants other key groups.
    """
    groups = source.job.key_groups
    if job.key_groups not in (None, groups):
        raise RescaleError(
            f"{source.repository.url} has {groups} key groups, the job asks for {job.key_groups}: "
            "leave key_groups out, and change them afterwards with `statekit rescale --key-groups`"
        )
    shards = source.manifest.parallelism if parallelism is None else parallelism
    return check_parallelism(shards, groups)


def _result(manifest: EpochManifest) -> TransformResult:
    return TransformResult(manifest, manifest.by_state(lambda operator: operator.rows))
