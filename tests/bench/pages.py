"""The report as pages: Markdown and HTML, made of the results and of nothing else.

What lives here: `publish`, which writes the results, the pages and the plots into a directory. What
does not: drawing (`plots`), and the results themselves (`results`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tests.bench.plots import PLOTS, draw, drawable
from tests.bench.results import FILE, Measured, Results, Side

__all__ = ["html", "markdown", "publish"]

TITLE = "Benchmarks"

_INTRODUCTION = (
    "`make bench` writes this page. In each row two sides took turns in one run, so that noise "
    "affects both. Seconds are medians. The ratio says how many times as fast statekit is as the "
    "other side: above 1, statekit is faster. It is the median of the ratios of all turns. "
    "*Changed since* names the folders of statekit whose code has changed since a row was measured."
)
_NOTHING = "Nothing has been measured for this version yet. `make bench` measures it."

_HEAD = ("measured", "result", "wanted", "changed since")
_COMPARED = (
    *("measured", "seconds", "compared with", "its seconds"),
    *("ratio", "events/s", "its events/s", "note"),
)
_CONNECTED = ("measured", "result", "compared with", "ratio", "command", "note")
_CONNECTORS = ("kafka", "postgres", "lake")
_COSTS = ("measured", "of", "p50, ms", "p99, ms", "left on disk, MB", "peak memory, MB")
_NONE = "–"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1, h2 { line-height: 1.2; }
h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ccc; padding: .35rem .6rem; text-align: left;
         vertical-align: top; }
th { border-bottom: 2px solid #222; }
th:last-child { min-width: 14rem; }
td.number { text-align: right; white-space: nowrap; }
img { max-width: 100%; height: auto; }
code { background: #f2f2f2; padding: 0 .2em; }
"""


def publish(results: Results, directory: Path) -> None:
    """Write everything that the report is."""
    results.write(directory)
    draw(results, directory)
    (directory / "README.md").write_text(markdown(results))
    (directory / "index.html").write_text(html(results))


# --------------------------------------------------------------------------------------- tables


def _significant(number: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _rate(side: Side | None) -> str:
    return _scaled(side.events_per_second if side else None, 1)


def _seconds(side: Side | None) -> str:
    return _scaled(side.seconds if side else None, 1)


def _scaled(number: float | None, by: float) -> str:
    return _NONE if number is None else _significant(number * by)


def _compared(results: Results) -> list[tuple[str, ...]]:
    return [
        (
            row.measured,
            _seconds(row.ours),
            row.against.name if row.against else _NONE,
            _seconds(row.against),
            _scaled(row.ratio, 1),
            _rate(row.ours),
            _rate(row.against),
            " ".join(filter(None, (row.without, row.note))),
        )
        for row in results.rows
        if _is_compared(row) and not _is_of_a_connector(row)
    ]


def _connected(results: Results) -> list[tuple[str, ...]]:
    """Sources and sinks, with the command that measures each."""
    return [
        (
            row.measured,
            row.result if row.ours else _NONE,
            row.against.name if row.against else _NONE,
            _scaled(row.ratio, 1),
            f"python -m tests.bench {row.benchmark}",
            " ".join(filter(None, (row.without, row.note))),
        )
        for row in results.rows
        if _is_compared(row) and _is_of_a_connector(row)
    ]


def _is_compared(row: Measured) -> bool:
    """Return whether a row is compared with something, or says why it is not."""
    return bool(row.without or (row.ours and row.against and row.ratio is not None))


def _is_of_a_connector(row: Measured) -> bool:
    return row.benchmark.startswith(_CONNECTORS)


def _costs(results: Results) -> list[tuple[str, ...]]:
    """Latency, bytes and memory of each side that tells."""
    return [
        (
            row.measured,
            side.name,
            _scaled(side.p50, 1e3),
            _scaled(side.p99, 1e3),
            _scaled(side.written, 1e-6),
            _scaled(side.memory, 1e-6),
        )
        for row in results.rows
        for side in (row.ours, row.against)
        if side and (side.p50 or side.written or side.memory)
    ]


def _all(results: Results) -> list[tuple[str, ...]]:
    return [
        (row.measured, row.result, row.wanted or _NONE, ", ".join(row.changed))
        for row in results.rows
    ]


def _durable(results: Results) -> list[tuple[str, ...]]:
    """What would outlive a crash, and of which sides."""
    kept: dict[str, list[str]] = {}
    for row in results.rows:
        for side in (row.ours, row.against):
            if side is not None and side.name not in kept.setdefault(side.durable, []):
                kept[side.durable].append(side.name)
    return [("; ".join(names), durable) for durable, names in kept.items()]


def _runs(results: Results) -> list[tuple[str, ...]]:
    """On which days and machines the benchmarks ran."""
    runs: dict[tuple[dt.date, int, str], list[str]] = {}
    for row in results.rows:
        names = runs.setdefault((row.on, row.cores, row.machine), [])
        if row.benchmark not in names:
            names.append(row.benchmark)
    return [
        (f"{on:%Y-%m-%d}", f"{cores}", machine, ", ".join(names))
        for (on, cores, machine), names in sorted(runs.items())
    ]


_Section = tuple[str, Sequence[str], tuple[str, ...], list[tuple[str, ...]]]


def _sections(results: Results) -> list[_Section]:
    """Heading, plots, head and rows of each table."""
    plots = drawable(results)
    found: list[_Section] = [
        ("Side by side", plots, _COMPARED, _compared(results)),
        ("Sources and sinks", (), _CONNECTED, _connected(results)),
        ("Latency, bytes and memory", (), _COSTS, _costs(results)),
        ("All rows", (), _HEAD, _all(results)),
        ("What was durable", (), ("of", "what would outlive a crash"), _durable(results)),
        ("Where and when", (), ("day", "cores", "machine", "benchmarks"), _runs(results)),
    ]
    return [section for section in found if section[3]]


# ---------------------------------------------------------------------------------------- pages


def markdown(results: Results) -> str:
    lines = [f"# {TITLE}", "", _INTRODUCTION, ""]
    if not results.rows:
        lines += [_NOTHING, ""]
    for heading, plots, head, rows in _sections(results):
        lines += [f"## {heading}", ""]
        for plot in plots:
            lines += [f"![{PLOTS[plot]}]({plot})", ""]
        lines += [_line(head), "|" + "---|" * len(head), *map(_line, rows), ""]
    lines.append(f"The numbers are in [{FILE}]({FILE}).")
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def html(results: Results) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>statekit: {TITLE}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{TITLE}</h1>",
        f"<p>{_with_code(_INTRODUCTION)}</p>",
    ]
    if not results.rows:
        parts.append(f"<p>{_with_code(_NOTHING)}</p>")
    for heading, plots, head, rows in _sections(results):
        parts.append(f"<h2>{escape(heading)}</h2>")
        for plot in plots:
            parts.append(f'<p><img src="{plot}" alt="{escape(PLOTS[plot])}"></p>')
        names = "".join(f"<th>{escape(name)}</th>" for name in head)
        parts += [f"<table><thead><tr>{names}</tr></thead><tbody>", *map(_row, rows)]
        parts.append("</tbody></table>")
    parts += [f'<p>The numbers are in <a href="{FILE}">{FILE}</a>.</p>', "</body></html>"]
    return "\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td{_kind(cell)}>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _kind(cell: str) -> str:
    return ' class="number"' if cell.replace(",", "").replace(".", "").isdigit() else ""


def _with_code(text: str) -> str:
    """Escaped, with what is between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))
