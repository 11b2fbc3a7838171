"""Read the checkpoint of a query with Spark's own `transformWithState`.

Files are read through Hadoop, so that a path has the meaning of `checkpointLocation`. The metadata
of operators comes from Spark's source `state-metadata`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statekit.checkpoint import spark_log
from statekit.checkpoint.sealed_json import parse_json
from statekit.errors import CorruptCheckpointError, RestoreError, StatekitError, StorageError
from statekit.shown import shown, shown_error, type_name
from statekit.spark.failures import translated
from statekit.spark.tws.state_handles import Kind, TimeMode

_T = TypeVar("_T")

_STATE = "state"
_OPERATOR = "transformWithState"
_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_TIME_MODES: dict[str, TimeMode] = {
    "notime": "none",
    "processingtime": "processingtime",
    "eventtime": "eventtime",
}
_KINDS: dict[str, Kind] = {"ValueState": "value", "ListState": "list", "MapState": "map"}


class KeptState(NamedTuple):
    """A state in Spark's checkpoint.

    Parameters:
        name: its name.
        kind: value, list or map.
        expires: whether its rows have an expiry time.
    """

    name: str
    kind: Kind
    expires: bool


class TwsOperator(NamedTuple):
    """The metadata of a `transformWithState`.

    Parameters:
        time_mode: of its processor.
        states: by name.
    """

    time_mode: TimeMode
    states: dict[str, KeptState]


class QueryPosition(NamedTuple):
    """The position of a query in its input.

    Parameters:
        batch: the last completed micro-batch.
        planned: the next one, if Spark has planned its input and not recorded its end.
        version: of the format of its state.
        times: the clocks of `batch`.
        next_watermark_ms: the watermark after it; 0 before any record.
    """

    batch: int
    planned: int | None
    version: int
    times: spark_log.BatchTimes
    next_watermark_ms: int


class TwsCheckpoint:
    """The checkpoint of a query with one `transformWithState`.

    Parameters:
        spark: the session that reads it.
        url: the `checkpointLocation` of the query.

    Raises:
        RestoreError: it is not a checkpoint of a query, or no micro-batch is complete.
        StorageError: Spark cannot open it.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url.rstrip("/")
        self._spark = spark
        jvm = spark._jvm
        assert jvm is not None, "the session is a classic one"
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        try:
            configuration = spark._jsc.hadoopConfiguration()
            self._files: Any = self._path(self.url).getFileSystem(configuration)
            folders = {folder for folder in ("offsets", "commits") if self._exists(folder)}
        except (Py4JJavaError, Py4JError) as error:
            raise _unopened(self.url, error) from error
        if len(folders) < 2 or not self._exists(spark_log.METADATA):
            raise RestoreError(
                f"{self.url} is not a checkpoint of a Spark streaming query: it lacks metadata, "
                "offsets/ or commits/. Pass the query's checkpointLocation"
            )
        path = self._path(self.url)
        if path.toUri().toString() != path.toString():
            raise RestoreError(
                f"{self.url} has characters that a URL escapes, and Spark's own reader of state "
                "takes the escapes for the name: pass a link to it whose path has only letters, "
                "digits and any of _ . -"
            )

    @cached_property
    def query(self) -> str:
        """The id of the query."""
        return spark_log.query_id(self.read(spark_log.METADATA))

    @cached_property
    def position(self) -> QueryPosition:
        """The position of the query, which is read once.

        Raises:
            RestoreError: no micro-batch is complete, or Spark no longer has its input.
            CorruptCheckpointError: a file cannot be read.
        """
        ended, noted = self._reached()
        if ended is None:
            raise RestoreError(
                f"{self.url} has no micro-batch that has ended: there is no state yet. Start the "
                "job with a new checkpoint, and it reads the input from its beginning"
            )
        if ended not in noted:
            raise CorruptCheckpointError(
                f"{self.url}/offsets/{ended} is missing, and micro-batch {ended} has ended: "
                "restore the checkpoint from a backup"
            )
        times = spark_log.batch_times(self.read(f"offsets/{ended}"), f"offsets/{ended}")
        end = spark_log.batch_end(self.read(f"commits/{ended}"), f"commits/{ended}")
        planned = ended + 1 if ended + 1 in noted else None
        following = max(end.next_watermark_ms, times.watermark_ms)
        return QueryPosition(ended, planned, end.version, times, following)

    def check_has_not_moved(self) -> None:
        """Check that no micro-batch was begun or completed since the position was read.

        Raises:
            RestoreError: one was.
        """
        position, (ended, noted) = self.position, self._reached()
        last = position.batch if position.planned is None else position.planned
        if ended != position.batch or max(noted, default=None) != last:
            raise RestoreError(
                f"{self.url} has continued after micro-batch {position.batch} while it was read: "
                "the query still runs. Stop it, then import again; nothing was imported"
            )

    def _reached(self) -> tuple[int | None, set[int]]:
        """Return the last completed micro-batch, and all planned ones."""
        return max(self._numbers("commits"), default=None), self._numbers("offsets")

    def sources(self) -> spark_log.SparkFiles:
        """Return the files that Spark needs to continue after the position, without its own state.

        Planned input stays planned: a sink may have seen some of it.
        """
        position = self.position
        folders = ("offsets", "commits", "sources")
        names = [spark_log.METADATA, *(name for folder in folders for name in self._names(folder))]
        last = position.batch if position.planned is None else position.planned
        files = spark_log.files_at(names, self.read, last, history=last - position.batch + 1)
        # They may reference versions of state, and the new query has none.
        for name in [name for name in files if name.startswith("commits/")]:
            files[name] = spark_log.batch_end(self.read(name), name).to_bytes()
        return files

    @cached_property
    def operator(self) -> TwsOperator:
        """The only stateful operator of the query.

        Raises:
            RestoreError: it has others, or none that is a `transformWithState`.
        """
        rows = self._stateful()
        names = {row.operatorId: row.operatorName for row in rows}
        listing = ", ".join(f"{name} ({number})" for number, name in sorted(names.items()))
        if not any(name.startswith(_OPERATOR) for name in names.values()):
            raise RestoreError(
                f"{self.url} is of a query without transformWithState: its stateful operators are "
                f"{listing or 'none'}. Only the state of transformWithState can be imported"
            )
        if len(names) > 1:
            raise RestoreError(
                f"{self.url} is of a query with several stateful operators: {listing}. Only a "
                "query whose one stateful operator is a transformWithState can be imported: the "
                "others would begin without state"
            )
        return self._operator(rows[0])

    def _stateful(self) -> list[Any]:
        """Return Spark's metadata of all stateful operators, one row per state store."""
        if not self._exists(_STATE):
            return []
        batch = self.position.batch
        reader = self._spark.read.format("state-metadata").option("batchId", batch)
        return self.asked(lambda: reader.load(self.url).collect())

    def _operator(self, row: Any) -> TwsOperator:
        try:
            properties = parse_json(row.operatorProperties)
            time_mode = _TIME_MODES[properties["timeMode"].lower()]
            states = [
                KeptState(of["stateName"], _KINDS[of["stateVariableType"]], bool(of["ttlEnabled"]))
                for of in properties["stateVariables"]
                if not of["stateName"].startswith("$")  # what Spark keeps timers in
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RestoreError(
                f"{self.url} has metadata of a transformWithState that this statekit does not know "
                f"({shown_error(error)}; the metadata is "
                f"{shown(row.operatorProperties, 300)}): upgrade statekit, or run a micro-batch "
                "with Spark 4.1 or newer"
            ) from error
        return TwsOperator(time_mode, {state.name: state for state in states})

    @contextlib.contextmanager
    def as_written(self) -> Iterator[None]:
        """Configure the session to read the state in the format of the checkpoint."""
        before = self._spark.conf.get(_VERSION, None)
        self._spark.conf.set(_VERSION, self.position.version)
        try:
            yield
        finally:
            self._spark.conf.unset(_VERSION)
            if before is not None:
                self._spark.conf.set(_VERSION, before)

    def rows(self, **options: object) -> DataFrame:
        """Return the operator's state at the position, from Spark's source `statestore`."""
        reader = self._spark.read.format("statestore").option("path", self.url)
        reader = reader.option("batchId", self.position.batch)
        for name, value in options.items():
            reader = reader.option(name, value)  # type: ignore[arg-type]
        return self.asked(reader.load)

    def asked(self, ask: Callable[[], _T]) -> _T:
        """Return the result of a function that reads the state.

        Raises:
            CorruptCheckpointError: Spark cannot read it. Other errors are raised unchanged.
        """
        try:
            return ask()
        except (PySparkException, Py4JJavaError) as error:
            typed = translated(error)
            if isinstance(typed, StatekitError) or not _is_about_state(error):
                raise typed from error
            raise CorruptCheckpointError(
                f"Spark cannot read the state in {self.url}: {_shown(error)}. Restore the "
                "checkpoint from a backup, to the place where it was, or use the version of Spark "
                "that wrote it"
            ) from error

    # ------------------------------------------------------------------------------------ files

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            StorageError: Spark cannot read it.
        """
        try:
            with contextlib.closing(self._files.open(self._path(f"{self.url}/{name}"))) as stream:
                return bytes(stream.readAllBytes())
        except Py4JJavaError as error:
            raise _unopened(f"{self.url}/{name}", error) from error

    def _exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(f"{self.url}/{name}")))

    def _names(self, folder: str) -> list[str]:
        """Return the paths of all files in a folder and below it."""
        at, names = self._path(f"{self.url}/{folder}"), []
        try:
            if self._files.exists(at):
                above = len(self._files.makeQualified(at).toString())
                files = self._files.listFiles(at, True)
                while files.hasNext():
                    path: str = files.next().getPath().toString()
                    names.append(f"{folder}{path[above:]}")
        except Py4JJavaError as error:
            raise _unopened(f"{self.url}/{folder}", error) from error
        return names

    def _numbers(self, log: str) -> set[int]:
        names = (name.rsplit("/", 1)[-1] for name in self._names(log))
        return {int(name) for name in names if name.isascii() and name.isdigit()}


def _is_about_state(error: Exception) -> bool:
    """Return whether an error of Spark is about the state, its metadata or its schema."""
    text = str(error)
    return any(sign in text for sign in ("STATE_STORE", "STDS_", "StateStore", "state.metadata"))


def _shown(error: Exception) -> str:
    """Return the first non-empty line of an error."""
    lines = [line.strip() for line in str(error).splitlines()]
    signs = ("STATE_STORE", "STDS_")
    return next((line for line in lines if any(sign in line for sign in signs)), lines[0])


def _unopened(url: str, error: Exception) -> StorageError:
    # Its message may have more of the configuration in it than is anybody's business.
    thrown = getattr(error, "java_exception", None)
    reason = type_name(error) if thrown is None else thrown.getClass().getSimpleName()
    return StorageError(
        f"Spark cannot open {url} ({reason}): check the path, and that Spark has Hadoop's library "
        "and the credentials for that store"
    )
