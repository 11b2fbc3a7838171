"""Register the data sources in a Spark session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from statekit.spark.session import use_this_python
from statekit.spark.sources.changes_source import ChangesSource
from statekit.spark.sources.state_source import FilteredStateSource, StateSource
from statekit.spark.start import check_classic

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register the formats "statekit" and "statekit-changes" in a session.

    `spark.read.format("statekit")` reads one state after an epoch, its timers or its buffered
    records. The format "statekit-changes" reads what epochs changed in a state, with `spark.read`
    and with `spark.readStream`. The package has to be installed on all workers.

    With `spark.sql.python.filterPushdown.enabled`, a filter for one key reads one key group. Call
    this again after changing that setting.

    Parameters:
        spark: the session.

    >>> from statekit.spark import register
    >>> register(spark)                                                         # doctest: +SKIP
    >>> spark.read.format("statekit").option("operator", "count").option(       # doctest: +SKIP
    ...     "state", "seen").load("/checkpoints/words").show()
    """
    check_classic(spark, {})
    use_this_python(spark)
    # Spark refuses a reader that could push filters down, unless the session may.
    pushes_down = str(spark.conf.get(_PUSHDOWN, "false")).lower() == "true"
    spark.dataSource.register(FilteredStateSource if pushes_down else StateSource)
    spark.dataSource.register(ChangesSource)
