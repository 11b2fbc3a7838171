"""The table of the README: rows of the report whose code has not changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.bench.results import Measured, Results

BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->"
_NOTHING = "None of these rows was measured on this version. `make bench` measures them.\n"


def _times(what: str) -> Callable[[Measured], str]:
    """Return a function that says how many times `what` a row has."""
    return lambda row: row.result if row.ratio is None else f"{row.ratio:.3g} times {what}"


def _rate(row: Measured) -> str:
    rate = row.ours.events_per_second if row.ours else None
    return row.result if rate is None else f"{rate:,.0f} events/s per core"


def _result(row: Measured) -> str:
    return row.result


class Shown(NamedTuple):
    """A row of the README.

    Parameters:
        label: what is measured, for somebody who is new here.
        benchmark, measured: of the row in the report; how the second begins.
        say: returns its result.
    """

    label: str
    benchmark: str
    measured: str
    say: Callable[[Measured], str]


_COUNT = "running count on Spark, {} events per batch: {} against transformWithState"
SHOWN = (
    Shown(
        "running count, 100,000 events per batch, against `transformWithState`",
        "spark-100k",
        _COUNT.format("100,000", "statekit"),
        _times("as fast"),
    ),
    Shown(
        "the same, 1,000,000 events per batch, called once per key",
        "spark-1m",
        _COUNT.format("1,000,000", "statekit, a key's events at once"),
        _times("as fast"),
    ),
    Shown(
        "the processor that Spark runs, unchanged, 100,000 events per batch",
        "spark-100k",
        _COUNT.format("100,000", "statekit, drop-in"),
        _times("as fast"),
    ),
    Shown(
        "built-in count and sum, 1,000,000 events per batch, against Spark's compiled SQL",
        "spark-totals",
        "count and sum of 100,000 keys as built-in aggregates on Spark, 1,000,000",
        _times("as fast"),
    ),
    Shown("one shard without Spark, commit included", "task", "task alone, running count:", _rate),
    Shown(
        "the same against Bytewax",
        "peer-bytewax",
        "one core, running count, 100,000 keys, 300,000 events: against Bytewax",
        _times("as many events/s"),
    ),
    Shown(
        "the same against PyFlink",
        "peer-flink",
        "one core, running count, 100,000 keys, 50,000 events: against PyFlink",
        _times("as many events/s"),
    ),
    Shown(
        "commit of 1,000 changed keys, 1,000,000 keys in state against 10,000",
        "commits",
        "commit of 1,000 changed keys",
        lambda row: f"{row.result} the time",
    ),
    Shown(
        "single reads over HTTP while 10,000 keys a second change",
        "serve-get",
        "serve: single reads",
        _result,
    ),
    Shown(
        "1,000 keys in one request, client and server, as dicts, against redis-py's `MGET`",
        "serve-stored",
        "serve: requests for 1,000 keys, as stored bytes, decoded to dicts",
        _times("as many per second of CPU"),
    ),
)


def with_table(readme: str, results: Results) -> str:
    """Return the README with the table of these results."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = list(_rows(results))
    table = "".join(f"| {label} | {said} |\n" for label, said in rows)
    return f"{before}{BEGIN}" + (f"| | |\n|---|---|\n{table}" if rows else _NOTHING) + END + after


def _rows(results: Results) -> Iterator[tuple[str, str]]:
    for label, benchmark, measured, say in SHOWN:
        for row in results.rows:
            if row.benchmark == benchmark and row.measured.startswith(measured):
                if not row.changed:
                    yield label, say(row)
                break
