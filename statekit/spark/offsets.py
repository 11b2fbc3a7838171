"""Check of the micro-batches in Spark's log within a checkpoint."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from statekit.checkpoint.repository import Repository
from statekit.checkpoint.rollback import finish, spark_fault
from statekit.errors import RestoreError, StorageError
from statekit.runtime.coordinator import Coordinator


def sparks_part(repository: Repository) -> str:
    """Return the location of Spark's offsets as a URL for Hadoop."""
    if repository.root is not None:
        return f"file:{repository.root}/spark"  # Hadoop does not decode %20 and the like
    url = repository.url
    return f"{'s3a' + url[2:] if url.startswith('s3://') else url}/spark"


def check_spark_reaches(spark: SparkSession, repository: Repository) -> None:
    """Check that Spark has the library for the store of the checkpoint. Called before the start.

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
        "credentials; see docs/operate/object-storage.md"
    )


def check_sparks_part(coordinator: Coordinator) -> None:
    """Compare Spark's offsets with the state. Otherwise input could be read twice or skipped.

    After a rollback Spark may be ahead by any number: then it is set back, which a kill prevented.
    """
    repository, last = coordinator.repository, coordinator.last
    if last is not None and last.sets_spark_back:
        offsets = max(repository.spark_batches("offsets"), default=-1)
        if offsets >= (-1 if last.batch is None else last.batch):
            finish(repository, last)
    if (fault := spark_fault(repository, last)) is not None:
        raise RestoreError(fault)
