"""`python -m tests.bench [NAME …] [--into DIRECTORY] [--readme FILE]`: run benchmarks and print one
table. The name `marks` runs none, and marks rows whose code has changed since.

With a directory, what a benchmark measured takes the place of what it measured before, one after
the other, and pages and plots are written again: a run that is stopped keeps what it has.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from statekit.clock import now_us
from statekit.timestamp import instant
from tests.bench import (
    as_of,
    bootstrap,
    checks,
    connect,
    durability,
    first_epoch,
    hot_loop,
    join_history,
    kafka_job,
    kafka_sink,
    keys_held,
    kv_on_spark,
    kv_operations,
    lake_sinks,
    many_shards,
    mirrors,
    on_spark,
    opening,
    pandas_on_spark,
    placement,
    postgres_sink,
    replica,
    rescale,
    served,
    shard_alone,
    states_on_spark,
    tables,
    time_on_spark,
    timers_alone,
    transform,
    transforms_on_spark,
)
from tests.bench.nexmark import on_duckdb as nexmark_on_duckdb
from tests.bench.nexmark import on_flink as nexmark_on_flink
from tests.bench.nexmark import on_spark as nexmark_on_spark
from tests.bench.pages import publish
from tests.bench.peers import versus
from tests.bench.readme import with_table
from tests.bench.report import Row
from tests.bench.results import Measured, Results

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "task": hot_loop.rates,
    **versus.BENCHMARKS,
    "keys": keys_held.scaling,
    "maps": shard_alone.map_sizes,
    "commits": shard_alone.commit_cost,
    "ttl": shard_alone.state_that_expires,
    "rescale": rescale.rescaling,
    "transform": transform.rekeying,
    "bootstrap": bootstrap.bootstrapped,
    **opening.BENCHMARKS,
    "tables": tables.tables,
    "as-of": as_of.point_in_time,
    "durability-commit": durability.commits,
    "durability-uploads": durability.uploads,
    "durability-restore": durability.restores,
    "durability-at-rest": durability.at_rest,
    "durability-idle": durability.idle,
    **many_shards.BENCHMARKS,
    **connect.BENCHMARKS,
    **first_epoch.BENCHMARKS,
    **placement.BENCHMARKS,
    **served.BENCHMARKS,
    **lake_sinks.BENCHMARKS,
    **mirrors.BENCHMARKS,
    "join-history": join_history.history,
    "timers-alone": timers_alone.rate,
    "timers-memory": timers_alone.memory,
    "timers-idle": timers_alone.pending,
    "spark-1": on_spark.batches_of_1,
    "spark-100": on_spark.batches_of_100,
    "spark-100k": on_spark.batches_of_100_000,
    "spark-1m": on_spark.batches_of_1_000_000,
    "spark-pandas": pandas_on_spark.against_pandas,
    **states_on_spark.BENCHMARKS,
    "timers": time_on_spark.session_timeouts,
    "ordered": time_on_spark.ordered_against_unordered,
    "transforms": transforms_on_spark.transforms,
    **kv_on_spark.BENCHMARKS,
    "store-ordered": kv_on_spark.ordered_against_eager,
    **kv_operations.BENCHMARKS,
    **nexmark_on_spark.BENCHMARKS,
    **nexmark_on_flink.BENCHMARKS,
    **nexmark_on_duckdb.BENCHMARKS,
    **replica.BENCHMARKS,
    **kafka_job.BENCHMARKS,
    **kafka_sink.BENCHMARKS,
    **checks.BENCHMARKS,
    **postgres_sink.BENCHMARKS,
}


_REPORT = Path("docs/benchmarks")


def main() -> None:
    console = Console()
    given = _arguments()
    chosen = given.names or list(BENCHMARKS)
    if chosen == ["profile"]:
        shard_alone.profile()
        return
    if chosen == ["marks"]:
        write(Results.read(given.into or _REPORT), given)
        return
    if unknown := set(chosen) - set(BENCHMARKS):
        console.print(f"no benchmark {sorted(unknown)}: choose from {list(BENCHMARKS)}, profile")
        sys.exit(2)
    table = Table("measured", "result", "wanted", title="medians of paired runs")
    for name in chosen:
        console.print(f"running {name} …", style="dim")
        rows = BENCHMARKS[name]()
        for row in rows:
            table.add_row(row.measured, row.result, row.wanted)
        if given.into is not None:
            write(taken(name, rows, given.into, given.on or instant(now_us()).date()), given)
    console.print(table)


def taken(name: str, rows: list[Row], directory: Path, on: dt.date) -> Results:
    """Return the results of a directory with what a benchmark measured."""
    measured = [Measured.of(name, row, on) for row in rows]
    return Results.read(directory).with_rows(name, measured, list(BENCHMARKS))


def write(results: Results, given: argparse.Namespace) -> None:
    """Write the report, and the table of the README. Rows are marked whose code has changed."""
    results = results.marked()
    publish(results, given.into or _REPORT)
    if given.readme is not None:
        given.readme.write_text(with_table(given.readme.read_text(), results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Run benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all of them if none")
    parser.add_argument("--into", type=Path, help="the directory of results, pages and plots")
    parser.add_argument("--readme", type=Path, help="the file with the table of chosen rows")
    parser.add_argument("--on", type=dt.date.fromisoformat, help="the day; today if not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
