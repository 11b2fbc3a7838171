"""Plots of what was measured: ratios, and events per second of both sides.

What lives here: drawing, in shapes and greys that survive a printer. What does not: the numbers
(`results`), and the pages that show the plots (`pages`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from tests.bench.results import Measured, Results, Side

__all__ = ["PLOTS", "draw", "drawable", "fingerprint"]

PLOTS = {
    "peers.png": "How many times as fast as what it is held against",
    "costs.png": "statekit against itself: what size and options cost",
    "rates.png": "Events per second, statekit and what it is held against",
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


def fingerprint(results: Results) -> str:
    """Told in each plot, so that one can be seen to be of these results."""
    return hashlib.sha256(results.encoded).hexdigest()


def drawable(results: Results) -> list[str]:
    """The plots that these results have something for."""
    rows = (_with_others(results), _with_itself(results), _counted(results))
    return [name for name, found in zip(PLOTS, rows, strict=True) if found]


def _with_others(results: Results) -> list[tuple[Measured, float]]:
    """The rows that are held against something else, with how many times as fast ours is."""
    return [(row, ratio) for row, _, other, ratio in results.compared() if not _is_ours(other)]


def _with_itself(results: Results) -> list[tuple[Measured, float]]:
    return [(row, ratio) for row, _, other, ratio in results.compared() if _is_ours(other)]


def _is_ours(side: Side) -> bool:
    return side.name.startswith("statekit")


def _counted(results: Results) -> list[tuple[Measured, float, float | None]]:
    """The rows that count events: with our events per second, and those of the other side."""
    found: list[tuple[Measured, float, float | None]] = []
    for row in results.rows:
        if row.ours is not None and row.ours.events_per_second:
            other = row.against.events_per_second if row.against else None
            found.append((row, row.ours.events_per_second, other))
    return found


def draw(results: Results, directory: Path) -> None:
    """Draw what there is something for, and remove what there is nothing for."""
    with mpl.rc_context(_STYLE):
        figures: dict[str, Callable[[], Figure]] = {
            "peers.png": lambda: _ratios(PLOTS["peers.png"], _with_others(results)),
            "costs.png": lambda: _ratios(PLOTS["costs.png"], _with_itself(results)),
            "rates.png": lambda: _rates(_counted(results)),
        }
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


def _rates(rows: list[tuple[Measured, float, float | None]]) -> Figure:
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
        *([], []), marker="D", s=34, facecolor="white", edgecolor=_DARK, label="held against"
    )
    _log_scale(axes, min(rates), max(rates))
    axes.set_xlabel("events per second (logarithmic)")
    axes.set_title("Events per second", pad=22)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderaxespad=0)
    _name_rows(axes, [row for row, _, _ in rows])
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
