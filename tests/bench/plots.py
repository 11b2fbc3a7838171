"""Plots of what was measured: ratios, events per second, latencies, and what more keys cost.

What lives here: drawing, in shapes and greys that survive a printer. What does not: the numbers
(`results`), and the pages that show the plots (`pages`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullLocator

from tests.bench.report import NOT_DURABLE
from tests.bench.results import Measured, Results, Side

__all__ = ["PLOTS", "draw", "drawable", "fingerprint"]

PLOTS = {
    "peers.png": "How many times as fast as other systems, per core",
    "spark.png": "How many times as fast as Spark",
    "floors.png": "How much of a floor, which keeps nothing durably",
    "costs.png": "statekit against itself: what size and options cost",
    "rates.png": "Events per second and core",
    "spark-rates.png": "Events per second on Spark",
    "latency.png": "Latency of batches, epochs and records",
    "keys.png": "What it costs to hold more keys",
}

_DARK, _MID, _LIGHT = "0.15", "0.55", "0.85"
_STYLE: Any = {  # the names are literals to a type checker
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "ytick.left": False,
}
_LINE_INCHES, _FRAME_INCHES, _WIDTH_INCHES = 0.34, 1.5, 9.0
_LABEL_CHARACTERS = 62
_ABOVE: Any = {  # where a legend is out of the way
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "ncols": 2,
    "frameon": False,
    "borderaxespad": 0,
}


def fingerprint(results: Results) -> str:
    """Told in each plot, so that one can be seen to be of these results."""
    return hashlib.sha256(results.encoded).hexdigest()


def drawable(results: Results) -> list[str]:
    """The plots that these results have something for."""
    found = {
        "peers.png": _against(results, "peer"),
        "spark.png": _against(results, "spark"),
        "floors.png": _against(results, "floor"),
        "costs.png": _against(results, "statekit"),
        "rates.png": _counted(results, on_spark=False),
        "spark-rates.png": _counted(results, on_spark=True),
        "latency.png": _timed(results),
        "keys.png": _holding(results),
    }
    return [name for name in PLOTS if found[name]]


def _against(results: Results, kind: str) -> list[tuple[Measured, float]]:
    """The rows that are compared with something of a kind, with the ratio."""
    return [
        (row, ratio)
        for row, _, other, ratio in results.compared()
        if row.keys is None and _kind(other) == kind
    ]


_OF_SPARK = ("transformWithState", "applyInPandas", "Spark")


def _kind(side: Side) -> str:
    """`statekit`, `spark`, `floor` or `peer`."""
    if side.name.startswith("statekit"):
        return "statekit"
    if side.durable == NOT_DURABLE:
        return "floor"
    return "spark" if side.name.startswith(_OF_SPARK) else "peer"


def _counted(results: Results, *, on_spark: bool) -> list[tuple[Measured, float, float | None]]:
    """The rows that count events: with our events per second, and those of the other side."""
    found: list[tuple[Measured, float, float | None]] = []
    for row in results.rows:
        if row.ours is None or not row.ours.events_per_second or row.keys is not None:
            continue
        runs_there = row.benchmark.startswith(("spark", "nexmark-q", "nexmark-flink", "peer-spark"))
        if (runs_there or "on Spark" in row.measured) == on_spark:
            other = row.against.events_per_second if row.against else None
            found.append((row, row.ours.events_per_second, other))
    return found


def _timed(results: Results) -> list[tuple[Measured, list[Side]]]:
    """The rows that know how long their batches took, with the sides that do."""
    found = []
    for row in results.rows:
        sides = [side for side in (row.ours, row.against) if side and side.p50 and side.p99]
        if sides:
            found.append((row, sides))
    return found


def _holding(results: Results) -> list[tuple[int, Side]]:
    """Numbers of keys held, with what was measured."""
    return sorted(
        (row.keys, row.ours)
        for row in results.rows
        if row.keys and row.ours and row.ours.events_per_second
    )


def draw(results: Results, directory: Path) -> None:
    """Draw what there is something for, and remove what there is nothing for."""
    with mpl.rc_context(_STYLE):
        kinds = {
            "peers.png": "peer",
            "spark.png": "spark",
            "floors.png": "floor",
            "costs.png": "statekit",
        }
        figures: dict[str, Callable[[], Figure]] = {
            name: partial(_ratios, PLOTS[name], _against(results, kind))
            for name, kind in kinds.items()
        }
        figures["rates.png"] = lambda: _rates("rates.png", _counted(results, on_spark=False))
        figures["spark-rates.png"] = lambda: _rates(
            "spark-rates.png", _counted(results, on_spark=True)
        )
        figures["latency.png"] = lambda: _latencies(_timed(results))
        figures["keys.png"] = lambda: _keys(_holding(results))
        told = {"Source": fingerprint(results), "Software": None}
        for name, made in figures.items():
            if name in drawable(results):
                made().savefig(directory / name, dpi=144, bbox_inches="tight", metadata=told)
            else:
                (directory / name).unlink(missing_ok=True)


def _ratios(title: str, rows: list[tuple[Measured, float]]) -> Figure:
    """A bar for each row, from 1: to the right where ours is faster."""
    figure, axes = _framed(len(rows))
    for place, (_, ratio) in enumerate(rows):
        shade = _DARK if ratio >= 1 else _LIGHT
        axes.barh(place, ratio - 1, left=1, height=0.6, color=shade, edgecolor=_DARK, linewidth=0.8)
        _annotate(axes, ratio, place, f"{ratio:.3g}", 4 if ratio >= 1 else -4)
    axes.axvline(1, color=_DARK, linewidth=1)
    ratios = [1.0, *(ratio for _, ratio in rows)]
    _log_scale(axes, min(ratios), max(ratios))
    axes.set_xlabel("times as fast (logarithmic; 1 is as fast, left of it is slower)")
    axes.set_title(title)
    _name_rows(axes, [row for row, _ in rows])
    return figure


def _rates(name: str, rows: list[tuple[Measured, float, float | None]]) -> Figure:
    """A disc for ours and a hollow diamond for the other, on one line."""
    figure, axes = _framed(len(rows))
    rates = []
    for place, (row, ours, other) in enumerate(rows):
        if other is not None:
            axes.plot([ours, other], [place, place], color=_MID, linewidth=1.2, zorder=1)
            axes.scatter(other, place, marker="D", s=34, facecolor="white", edgecolor=_DARK)
        elif row.without:
            _annotate(axes, ours, place, row.without.partition(":")[0], 9, style="italic")
        axes.scatter(ours, place, marker="o", s=40, color=_DARK, zorder=2)
        rates += [ours, other or ours]
    axes.scatter([], [], marker="o", s=40, color=_DARK, label="statekit")
    axes.scatter(
        *([], []), marker="D", s=34, facecolor="white", edgecolor=_DARK, label="compared with"
    )
    _log_scale(axes, min(rates), max(rates))
    axes.set_xlabel("events per second (logarithmic)")
    axes.set_title(PLOTS[name], pad=22)
    axes.legend(**_ABOVE)
    _name_rows(axes, [row for row, _, _ in rows])
    return figure


def _latencies(rows: list[tuple[Measured, list[Side]]]) -> Figure:
    """From what half of the batches took to what 99 of 100 took: ours above, the other below."""
    figure, axes = _framed(len(rows))
    spans: list[float] = []
    for place, (_, sides) in enumerate(rows):
        for side in sides:
            assert side.p50 is not None
            assert side.p99 is not None
            span, is_ours = [side.p50 * 1000, side.p99 * 1000], _kind(side) == "statekit"
            height, shade = place + (-0.15 if is_ours else 0.15), _DARK if is_ours else "white"
            axes.plot(span, [height, height], color=_MID, linewidth=1.2, zorder=1)
            axes.scatter(span, [height] * 2, marker="o", s=26, facecolor=shade, edgecolor=_DARK)
            spans += span
    for name, shade in (("statekit", _DARK), ("compared with", "white")):
        axes.scatter([], [], marker="o", s=26, facecolor=shade, edgecolor=_DARK, label=name)
    _log_scale(axes, min(spans), max(spans))
    axes.set_xlabel("milliseconds, from the median to the 99th percentile (logarithmic)")
    axes.set_title(PLOTS["latency.png"], pad=22)
    axes.legend(**_ABOVE)
    _name_rows(axes, [row for row, _ in rows])
    return figure


def _keys(held: list[tuple[int, Side]]) -> Figure:
    """Events per second and memory over the number of keys held."""
    figure = Figure(figsize=(12.0, 3.8))
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.3))  # labels at ends keep apart
    speed, memory = figure.subplots(1, 2)
    keys = [count for count, _ in held]
    speed.plot(keys, [side.events_per_second for _, side in held], color=_DARK, marker="o")
    speed.set_title("Events per second and core")
    speed.set_ylabel("events per second")
    peaks = [(count, side.memory / 1e6) for count, side in held if side.memory]
    memory.plot([count for count, _ in peaks], [peak for _, peak in peaks], color=_DARK, marker="o")
    memory.set_title("Peak memory of the process")
    memory.set_ylabel("MB")
    for axes in (speed, memory):
        axes.set_xscale("log")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
        axes.grid(color=_LIGHT, linewidth=0.7)
        axes.set_xlabel("keys in state (logarithmic)")
        for numbers in (axes.xaxis, axes.yaxis):
            numbers.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
    return figure


def _framed(rows: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_INCHES, _FRAME_INCHES + _LINE_INCHES * rows))
    axes = figure.add_subplot()
    axes.grid(axis="x", color=_LIGHT, linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _annotate(axes: Axes, x: float, place: int, text: str, points: int, **style: Any) -> None:
    """Write beside what is drawn, so many points to the right or, below 0, to the left."""
    axes.annotate(
        text,
        (x, place),
        xytext=(points, 0),
        textcoords="offset points",
        ha="left" if points > 0 else "right",
        va="center",
        **style,
    )


def _log_scale(axes: Axes, least: float, most: float) -> None:
    """From a bit below the least to a bit above the most, with numbers as people write them."""
    axes.set_xscale("log")
    axes.set_xlim(least / 1.8, most * 1.8)
    told = (1, 2, 3, 5, 7) if most / least < 10 else (1, 2, 5) if most / least < 200 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=told, numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _name_rows(axes: Axes, rows: list[Measured]) -> None:
    axes.set_yticks(range(len(rows)), [_short(row.measured) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top


def _short(text: str) -> str:
    """On two lines where one would be too long, broken between words."""
    if len(text) <= _LABEL_CHARACTERS:
        return text
    spaces = [place for place, letter in enumerate(text) if letter == " "]
    # At the end of a part of the text, where that is anywhere near the middle.
    cut = min(spaces, key=lambda at: abs(at - len(text) / 2) - 18 * (text[at - 1] in ",:"))
    return f"{text[:cut]}\n{text[cut + 1 :]}"
