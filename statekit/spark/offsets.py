"""Which micro-batches Spark's log in a checkpoint contains."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import finish
from statekit.errors import RestoreError, StorageError
from statekit.runtime.coordinator import Coordinator


def sparks_part(repository: Repository) -> str:
    """Return the location of Spark's offsets as a URL for Hadoop."""
    if repository.root is not None:
        return f"file:{repository.root}/spark"  # Hadoop does not decode %20 and the like
    url = repository.url
    return f"{'s3a' + url[2:] if url.startswith('s3://') else url}/spark"


def check_spark_reaches(spark: SparkSession, repository: Repository) -> None:
    """Check before the start that Spark has the library for the store of the checkpoint.

    statekit uses obstore, which needs no JVM. Spark uses Hadoop, which needs a library for each
    kind of object store.

    Raises:
        StorageError: it is missing.
    """
    jvm, part = spark._jvm, sparks_part(repository)
    assert jvm is not None, "the session is a classic one"
    try:
        jvm.org.apache.hadoop.fs.Path(part).getFileSystem(spark._jsc.hadoopConfiguration())
        return
    except Py4JJavaError as error:
        # Its message may have more of the configuration in it than is anybody's business.
        reason = error.java_exception.getClass().getSimpleName()
    raise StorageError(
        f"Spark cannot open {part}, where it keeps its part of a stream ({reason}): add Hadoop's "
        "library for that store to Spark, such as org.apache.hadoop:hadoop-aws for S3, and its "
        "credentials; see docs/object-storage.md"
    )


def check_sparks_part(coordinator: Coordinator) -> None:
    """Compare Spark's offsets with the state, so that no input is read again or left out.

    Spark writes the offsets of a batch before it runs and its commit afterwards. So it may be one
    batch ahead of the state (killed before the manifest), or lack one commit (killed after it).
    After a rollback it may be ahead by any number: then it is set back, which a kill prevented.
    """
    repository, last = coordinator.repository, coordinator.last
    offsets, commits = _latest(repository)
    done = -1 if last is None or last.batch is None else last.batch
    if last is not None and last.sets_spark_back and offsets >= done:
        finish(repository, last)
        offsets, commits = _latest(repository)
    where = f"{repository.url}/spark"
    way_out = "restore both parts from the same backup, or start with a new checkpoint"
    if done >= 0 and offsets < 0:
        raise RestoreError(
            f"{where} is missing or empty, but the state contains micro-batches up to {done}. "
            f"Continuing would read the input from its start and count it twice: {way_out}"
        )
    if offsets < done:
        raise RestoreError(
            f"{where} has micro-batches up to {offsets}, the state those up to {done}. Continuing "
            f"would count input twice: {way_out}"
        )
    if offsets > done + 1 or commits > done:
        raise RestoreError(
            f"{where} has continued to micro-batch {max(offsets, commits)}, the state is at "
            f"{done}. Continuing would leave input out: {way_out}"
        )


def _latest(repository: Repository) -> tuple[int, int]:
    """Return the last micro-batches in Spark's offsets and in its commits; -1 for none."""
    offsets, commits = repository.spark_batches("offsets"), repository.spark_batches("commits")
    return max(offsets, default=-1), max(commits, default=-1)
