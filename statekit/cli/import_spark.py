"""`statekit import-spark`: import the state of a query with `transformWithState`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from statekit.checkpoint.job_file import TIMERS
from statekit.checkpoint.manifest import EpochManifest
from statekit.cli.arguments import DryRun
from statekit.cli.tables import out, print_table, say
from statekit.job.loader import load_named
from statekit.optional_packages import check_installed
from statekit.timestamp import instant

if TYPE_CHECKING:
    from statekit.spark.tws.importer import SparkImport


def import_spark(
    spark_checkpoint: Annotated[
        str, typer.Argument(help="What the query was given as checkpointLocation.")
    ],
    to: Annotated[str, typer.Option(help="Directory or URL of the checkpoint to make.")],
    application: Annotated[
        str,
        typer.Option(
            "--app",
            help="What transform_with_state returned, or a function that calls it: "
            "module:attribute.",
        ),
    ],
    parallelism: Annotated[
        int | None, typer.Option(help="Shards per operator; one per core of Spark.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Import the state of a query with Spark's own transformWithState into a new checkpoint.

    Stop the query first. Its checkpoint is only read. The job then continues from the new one: with
    all state and timers, and after the input that the query has read. After a kill, run it again.
    """
    check_installed("import-spark", "pyspark", "spark")
    from statekit.spark.tws.transform import Transformed

    transformed = load_named(application, Transformed, "a stream")
    spark_import = transformed.importing(spark_checkpoint, to, parallelism=parallelism)
    _print_source(spark_import)
    if dry_run:
        out.print("Nothing was changed.")
    elif spark_import.is_done:
        out.print("It was imported before: there is nothing to do.")
    else:
        _print_result(spark_import.carry_out(), spark_import)


def _print_source(spark_import: SparkImport) -> None:
    operator, position = spark_import.found.operator, spark_import.found.position
    out.print(f"query {spark_import.found.query}")
    say(spark_import.found.url)
    watermark = instant(position.next_watermark_ms * 1000)
    reached = f", watermark {watermark:%Y-%m-%d %H:%M:%S} UTC" if position.next_watermark_ms else ""
    planned = "" if position.planned is None else f"; {position.planned} is planned, and runs again"
    out.print(f"ended with micro-batch {position.batch}{reached}{planned}")
    names = [f"{state.name} ({state.kind})" for state in operator.states.values()]
    timers = [] if operator.time_mode == "none" else [f"timers ({operator.time_mode})"]
    out.print(f"it keeps {', '.join([*names, *timers])}", markup=False)


def _print_result(manifest: EpochManifest, spark_import: SparkImport) -> None:
    rows = []
    for name, operator in manifest.operators.items():
        for state, count in operator.rows.items():
            title = "timers" if state == TIMERS else state
            rows.append((f"{name}.{title}", f"{count:,}", f"{operator.bytes[state]:,}"))
    print_table(("rows", "bytes"), rows, texts=("operator.state",))
    url = spark_import.repository.url
    say(f"Committed as epoch {manifest.epoch} of {url}")
    out.print("Start the job on it, with the input that the query had.")
