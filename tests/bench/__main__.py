"""`python -m tests.bench [NAME …]`: run benchmarks and print one table."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tests.bench import (
    durability,
    hot_loop,
    on_spark,
    rescale,
    shard_alone,
    time_on_spark,
    timers_alone,
)
from tests.bench.report import Row

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "task": hot_loop.rates,
    "maps": shard_alone.map_sizes,
    "commits": shard_alone.commit_cost,
    "ttl": shard_alone.state_that_expires,
    "rescale": rescale.rescaling,
    "durability-commit": durability.commits,
    "durability-uploads": durability.uploads,
    "durability-restore": durability.restores,
    "durability-at-rest": durability.at_rest,
    "durability-idle": durability.idle,
    "timers-alone": timers_alone.rate,
    "timers-memory": timers_alone.memory,
    "timers-idle": timers_alone.pending,
    "spark-100": on_spark.batches_of_100,
    "spark-100k": on_spark.batches_of_100_000,
    "spark-1m": on_spark.batches_of_1_000_000,
    "timers": time_on_spark.session_timeouts,
    "ordered": time_on_spark.ordered_against_unordered,
}


def main() -> None:
    console = Console()
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if chosen == ["profile"]:
        shard_alone.profile()
        return
    if unknown := set(chosen) - set(BENCHMARKS):
        console.print(f"no benchmark {sorted(unknown)}: choose from {list(BENCHMARKS)}, profile")
        sys.exit(2)
    table = Table("measured", "result", "wanted", title="medians of paired runs")
    for name in chosen:
        console.print(f"running {name} …", style="dim")
        for row in BENCHMARKS[name]():
            table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
