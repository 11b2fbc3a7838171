"""Import the state of a query with Spark's own `transformWithState`.

The import is an epoch over rows of state in place of records. Spark reads them in parallel and
shuffles them to their shards. Each shard writes them to its states and its change file, and
reports. The driver sees only a report per shard.

The order of effects is: job file, Spark's part, change files, manifest. Until the manifest is
committed the checkpoint has no epoch, and no job starts on it, because Spark's part is ahead of the
missing state. After a kill, run the import again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statekit.backend.rocksdb_options import RocksOptions
from statekit.checkpoint.job_file import JobFile
from statekit.checkpoint.manifest import EpochManifest, OperatorEpoch, ShardPlan, ShardPlans
from statekit.checkpoint.repository import Repository
from statekit.checkpoint.shard_layout import blank_shards
from statekit.clock import now_us, unique_id
from statekit.errors import FencedError, StateTypeError
from statekit.job.chaining import Chain, Pass
from statekit.job.job import Job
from statekit.job.plan import Operator
from statekit.keygroup import DEFAULT_GROUPS, check_groups, check_parallelism
from statekit.maintenance.first_epoch import replace_spark_files
from statekit.maintenance.savepoint.restore import is_made_of
from statekit.runtime.shard_reports import OperatorReports
from statekit.spark.concurrent_actions import compute
from statekit.spark.epoch import TASKS_PER_CORE, directory_for_copies
from statekit.spark.frames.key_columns import PassOptions
from statekit.spark.frames.plan import OperatorFrames, Route
from statekit.spark.offsets import check_spark_reaches
from statekit.spark.session import use_this_python
from statekit.spark.start import check_classic, default_parallelism
from statekit.spark.tws.checkpoint import TwsCheckpoint
from statekit.spark.tws.process import ProcessorProcess
from statekit.spark.tws.stored_rows import StoredRows, stored_frame
from statekit.spark.worker.commit_records import Reports
from statekit.spark.worker.pickling import PickledBases, pickled
from statekit.spark.worker.shards import ShardStep
from statekit.watermark import BEGINNING
from statekit.working_copy.base_options import BaseOptions

_ADVICE = (
    "state is imported into a new checkpoint. Pass another one, or start the job without importing "
    "to continue from this one"
)


class SparkImport:
    """An import from a query with Spark's own `transformWithState` into a new checkpoint.

    Parameters:
        spark: the session to use.
        from_spark: the `checkpointLocation` of the query.
        job: has the processor of the query, in one operator. All others begin without state.
        checkpoint: the new one.
        parallelism: shards per operator; None for one per core.

    Attributes:
        found: Spark's checkpoint.
        repository: the new checkpoint.
        is_done: whether the import was completed before: the checkpoint may have later epochs.

    Raises:
        RestoreError: there is nothing to import, or not into this checkpoint.
        StateSchemaError: the query has other states, keys or timers than the processor.
        RescaleError: the parallelism or the number of key groups is not valid.
        StateTypeError: the job has no such operator, or several.
        FencedError: this session still runs the query.
        StorageError: Spark cannot open one of the checkpoints.
    """

    def __init__(
        self,
        spark: SparkSession,
        from_spark: str | Path,
        job: Job,
        checkpoint: str | Path,
        *,
        parallelism: int | None = None,
    ) -> None:
        check_classic(spark, {})
        self.found = TwsCheckpoint(spark, str(from_spark))
        self.repository = repository = Repository(checkpoint)
        self._spark = spark
        self._job = job
        self._operator, self._declared = _operator_of(job)
        self._groups = check_groups(job.key_groups or DEFAULT_GROUPS)
        check_spark_reaches(spark, repository)
        self.is_done = is_made_of(repository, self.found.query, self.found.url, _ADVICE)
        if self.is_done:
            return
        if any(str(query.id) == self.found.query for query in spark.streams.active):
            raise FencedError(
                f"{self.found.url} is of a query that this session runs: stop() it first, then "
                "import again; nothing is lost"
            )
        if parallelism is None:
            parallelism = default_parallelism(spark, job.plan, repository)
        assert parallelism is not None, "the checkpoint has no epoch"
        self._shards = check_parallelism(parallelism, self._groups)
        with self.found.as_written():
            self._frame = stored_frame(self.found, self._declared)
        self._stored_rows = StoredRows.of(self._declared, self._frame.schema)

    def carry_out(
        self, *, working_directory: str | Path | None = None, rocksdb: RocksOptions | None = None
    ) -> EpochManifest:
        """Run the import, unless it was completed earlier. Return its epoch.

        Parameters:
            working_directory, rocksdb: as for `start`. The start uses the working copies.

        Raises:
            StateTypeError, ProcessError: a value cannot be stored.
            RestoreError: the query has continued meanwhile.
            CorruptCheckpointError: Spark cannot read its state.
            FencedError: another process has committed an epoch to the checkpoint.
        """
        repository = self.repository
        if self.is_done:
            return repository.manifest(min(repository.epochs()))
        use_this_python(self._spark)
        job, reference = repository.ensure_job_file(self._job_file())
        replace_spark_files(self.repository, self._spark_files())
        epoch = self.found.position.batch
        plans = self._plans(job, epoch)
        arrived = Reports(self._spark.sparkContext)
        reporter = arrived.begin()
        puts = Operator(self._operator.name, self._stored_rows, self._operator.inputs)
        chained = Chain((puts,), ((),))
        step = ShardStep(
            chains=(pickled(chained, "the import"),),
            plans={puts.name: replace(plans, bases=PickledBases(plans.bases))},
            restores=False,
            url=repository.url,
            directory=directory_for_copies(self._spark.sparkContext, working_directory),
            options=rocksdb or RocksOptions(),
            bases=BaseOptions(),
            key_groups=self._groups,
            reporter=reporter,
        )
        self._run(step, Pass((chained,)))
        reports = OperatorReports(self._operator, epoch, plans.bases, arrived.of(reporter))
        self.found.check_has_not_moved()
        position = self.found.position
        manifest = EpochManifest(
            job=job.name,
            job_file=reference,
            epoch=epoch,
            previous=None,
            cause="import",
            whole=True,
            batch=position.batch,
            parallelism=self._shards,
            key_groups=self._groups,
            writer=unique_id(),
            processing_time_us=position.times.timestamp_ms * 1000,
            committed_at_us=now_us(),
            operators=self._operators(reports),
        )
        repository.commit(manifest)
        return manifest

    def _job_file(self) -> JobFile:
        stored = self.repository.newest_job_file()  # of a start or an import that never committed
        return JobFile(
            id=unique_id() if stored is None else stored[0].id,
            name=self._job.name,
            key_groups=self._groups,
            operators=tuple(operator.record() for operator in self._job.plan.operators),
            imported=self.found.query,
        )

    def _spark_files(self) -> Iterator[tuple[str, bytes]]:
        for path, content in self.found.sources().items():
            yield path, self.found.read(path) if content is None else content

    def _plans(self, job: JobFile, epoch: int) -> ShardPlans:
        """Return plans of empty shards, at a time before all timers and all expiry."""
        record = job.operator(self._operator.name)
        assert record is not None, "the job file names all operators of the job"
        bases = blank_shards(self._shards, self._groups)
        common = ShardPlan(
            checkpoint_id=job.id,
            operator=record.name,
            shard=0,
            epoch=epoch,
            base=bases[0],
            base_epoch=None,
            eras={state.name: state.expiry_era for state in record.states if state.era},
        )
        return ShardPlans.of(common, bases)

    def _run(self, step: ShardStep, each: Pass) -> None:
        """Make Spark shuffle all rows to their shards, where each shard writes its rows to
        state.
        """
        cores: int = self._spark.sparkContext.defaultParallelism
        options = PassOptions(each, self._shards, self._groups, by_number=True)
        (record_type,) = self._stored_rows.record_type.members
        frames = OperatorFrames(self._frame, options, record_type)
        tasks = min(self._shards, cores * TASKS_PER_CORE)
        frame: DataFrame = frames.frame([self._frame], step, Route(tasks))
        with self.found.as_written():
            self.found.asked(partial(compute, frame))

    def _operators(self, reports: OperatorReports) -> dict[str, OperatorEpoch]:
        """Return all operators after the import: the one with the state, and empty ones."""
        blank = OperatorEpoch(shards=tuple(blank_shards(self._shards, self._groups)))
        operators = {operator.name: blank for operator in self._job.plan.operators}
        after = reports.combined(None, self._operator.record().holds, None)
        position = after.at_rest(after.shards, **self._event_time())
        return {**operators, self._operator.name: position}

    def _event_time(self) -> dict[str, Any]:
        """Return the event time of the query. All of its inputs share it."""
        declared, position = self._declared, self.found.position
        if declared.event_time is None:
            return {}
        reached, following = position.times.watermark_ms, position.next_watermark_ms
        largest = following * 1000 + declared.lateness_us if following else None
        return {
            "watermark_us": reached * 1000 if reached else BEGINNING,
            "largest_event_us": largest,
            "largest_by_input": dict.fromkeys(self._operator.inputs, largest) if largest else {},
        }


def _operator_of(job: Job) -> tuple[Operator, ProcessorProcess]:
    operators = [
        (op, op.declared) for op in job.plan.operators if isinstance(op.declared, ProcessorProcess)
    ]
    if len(operators) != 1:
        names = ", ".join(repr(operator.name) for operator, _ in operators) or "none"
        raise StateTypeError(
            f"job {job.name!r} has these operators with a processor of Spark's: {names}. State is "
            "imported into just one: name a job that transform_with_state makes"
        )
    return operators[0]
