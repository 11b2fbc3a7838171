"""Charts: the geometry of lines over time, sparklines, bars and heat maps, for SVG.

The lines of a chart are in a box of 1,000 by 140 that is stretched to the width of the page. Labels
are beside it, at places in percent, so that their size does not depend on the width.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from statekit.job.picture import cut
from statekit.server.dashboard.texts import NONE, count, duration, short_count, size, time

Unit = Literal["count", "bytes", "seconds", "instant"]
Values = Sequence[float | None]

WIDTH, HEIGHT = 1000, 140
"""Size of the box of the lines."""

_TICKS = 4.5
"""Number of labels of a vertical axis, roughly."""

_CHARACTER = 6.6
"""Width of a digit of the labels, in pixels."""

_STEPS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000),
    *(7_776_000, 31_536_000, 157_680_000, 315_360_000, 1_576_800_000, 3_153_600_000),
)
_DAY_S, _MONTH_S = 86_400, 2_592_000


def _time_text(value: float | None) -> str:
    """Return the time of an instant in seconds since 1970."""
    return time(None) if value is None else time(_moment(value).isoformat())


TEXTS: dict[Unit, Callable[[float | None], str]] = {
    "count": short_count,
    "bytes": size,
    "seconds": duration,
    "instant": _time_text,
}
"""The text of a value, by its unit."""


class Line(NamedTuple):
    """A line of a chart.

    Parameters:
        label: its name.
        path: the data of an SVG path.
        texts: its values, divided by "|".
        last: the last of them.
    """

    label: str
    path: str
    texts: str
    last: str


class Tick(NamedTuple):
    """A label of an axis.

    Parameters:
        at: its place: percent from the left, or pixels from the top.
        text: the label.
        anchor: the side of the text that is at the place.
    """

    at: float
    text: str
    anchor: str = "middle"


class Chart(NamedTuple):
    """A chart of lines.

    Parameters:
        title: what it shows.
        label: the title and the last values.
        lines: at least one.
        area: the path of the area below a single line.
        x_name: name of the horizontal axis.
        at: the horizontal values, divided by "|"; times as in `_steps_ms`.
        last: the last of them.
        is_time: True if they are seconds since 1970.
        left, top: labels of the horizontal and of the vertical axis.
        margin: width of the vertical axis, in pixels.
    """

    title: str
    label: str
    lines: list[Line]
    area: str
    x_name: str
    at: str
    last: str
    is_time: bool
    left: list[Tick]
    top: list[Tick]
    margin: int


def chart(
    title: str,
    x: Sequence[float],
    lines: Sequence[tuple[str, Values]],
    unit: Unit = "count",
    *,
    is_time: bool = True,
    x_name: str = "time",
) -> Chart:
    """Return a chart.

    Parameters:
        x: in order: seconds since 1970, or numbers.
        lines: names and values.
        unit: of the values.
    """
    show = TEXTS[unit]
    low, high = _range([each for _, values in lines for each in values if each is not None], unit)
    places = _places(x)
    found = []
    for name, values in lines:
        texts = [show(each) for each in values]
        path = _path(places, values, low, high)
        found.append(Line(name, path, "|".join(texts), texts[-1] if texts else NONE))
    ticks = _ticks(low, high, unit, [values for _, values in lines])
    step = _time_step((high - low) / _TICKS)
    top = [
        Tick(
            round(HEIGHT * (high - each) / (high - low), 1),
            _clock(each, step) if unit == "instant" else show(each),
        )
        for each in ticks
    ]
    last = ", ".join(f"{each.label} {each.last}" for each in found)
    area = _area(found[0].path) if len(found) == 1 else ""
    margin = round(max((len(each.text) for each in top), default=1) * _CHARACTER) + 12
    left = _time_labels(x) if is_time else _number_labels(x)
    last_x = NONE if not x else _time_text(x[-1]) if is_time else str(_plain(x[-1]))
    label = f"{title}, last values: {last}"
    at = "|".join(_steps_ms(x) if is_time else [str(_plain(each)) for each in x])
    return Chart(title, label, found, area, x_name, at, last_x, is_time, left, top, margin)


def sparkline(values: Values, width: int = 96, height: int = 24) -> str:
    """Return the points of a line without axes; empty for less than two values."""
    known = [each for each in values if each is not None]
    if len(known) < 2:
        return ""
    low = min(known)
    span = (max(known) - low) or 1
    return " ".join(
        f"{1 + place / (len(known) - 1) * (width - 2):.1f},"
        f"{height - 2 - (each - low) / span * (height - 4):.1f}"
        for place, each in enumerate(known)
    )


class HeatMap(NamedTuple):
    """Cells whose colour is the number of rows of a key group, compared with the fullest one.

    Parameters:
        label: what it shows.
        width, height: its size.
        cell: size of a cell with its margin.
        levels: the paths of the cells of each colour.
        rows: the rows of each cell.
        per: number of key groups of a cell.
        mean: rows of a key group on average.
    """

    label: str
    width: int
    height: int
    cell: int
    levels: list[str]
    rows: list[int]
    per: int
    mean: float


def heat_map(groups: Sequence[tuple[int, int]], total: int) -> HeatMap:
    """Return the heat map of key groups.

    Parameters:
        groups: number and rows of each key group that has rows.
        total: number of all key groups.
    """
    rows = dict(groups)
    mean = sum(rows.values()) / total or 1
    most = max(rows.values(), default=1)
    columns, cell = (64, 11) if total > 512 else (32, 20)
    per = max(1, math.ceil(total / 2048))
    cells = [
        sum(rows.get(group, 0) for group in range(first, first + per))
        for first in range(0, total, per)
    ]
    levels = [""] * 8
    for place, own in enumerate(cells):
        level = 0 if own == 0 else 1 + min(6, int(own / (most * per) * 6.999))
        x, y, side = place % columns * cell, place // columns * cell, cell - 2
        levels[level] += f"M{x} {y}h{side}v{side}h-{side}z"
    fullest = max(rows, key=lambda group: rows[group], default=0)
    label = (
        f"{count(total)} key groups with {count(round(mean))} rows on average. The fullest, key "
        f"group {fullest}, has {count(most)}: {most / mean:.2f} times the mean."
    )
    height = math.ceil(len(cells) / columns) * cell
    return HeatMap(label, columns * cell, height, cell, levels, cells, per, mean)


class Bar(NamedTuple):
    """A horizontal bar.

    Parameters:
        name: of what it shows.
        text: its value.
        width: in the same units as that of the picture, 640.
    """

    name: str
    text: str
    width: float


def bars(names: Sequence[str], values: Values) -> list[Bar]:
    """Return a bar for each name."""
    most = max((abs(each or 0) for each in values), default=0) or 1
    return [
        Bar(cut(name, 20), count(each), round(max(1, abs(each or 0) / most * 330), 1))
        for name, each in zip(names, values, strict=True)
    ]


# ---------------------------------------------------------------------------------- geometry


def _steps_ms(x: Sequence[float]) -> list[str]:
    """Return some times in milliseconds: the first, and then the step from each to the next. A step
    like the one before is left empty.
    """
    at = [round(each * 1000) for each in x]
    steps = [own - before for before, own in itertools.pairwise([0, *at])]
    return ["" if own == before else str(own) for before, own in itertools.pairwise([None, *steps])]


def _range(values: Sequence[float], unit: Unit) -> tuple[float, float]:
    """Return the lowest and the highest value of the axis."""
    low, high = min(values, default=0), max(values, default=0)
    if unit == "instant":
        pad = (high - low) * 0.1 or 60
        return low - pad, high + pad
    return min(0, low), high * 1.08 if high > 0 else 1


def _places(x: Sequence[float]) -> list[int]:
    """Return the places of points, from 0 to `WIDTH`."""
    if not x:
        return []
    span = x[-1] - x[0]
    return [round(WIDTH * (each - x[0]) / span) if span else WIDTH // 2 for each in x]


def _path(places: Sequence[int], values: Values, low: float, high: float) -> str:
    """Return the path of a line, with a gap at each absent value."""
    parts, is_drawing, before = [], False, (0, 0)
    for x, value in zip(places, values, strict=True):
        if value is None:
            is_drawing = False
            continue
        y = round(HEIGHT * (high - value) / (high - low))
        # A point alone is a line of no length, of which the round ends are seen.
        parts.append(f"l{x - before[0]} {y - before[1]}" if is_drawing else f"M{x} {y}h0")
        is_drawing, before = True, (x, y)
    return "".join(parts)


def _area(path: str) -> str:
    """Return the area below a line; empty for a line with gaps."""
    if path.count("M") != 1:
        return ""
    start = path[1:].split(" ", 1)[0]
    return f"{path}V{HEIGHT}H{start}z"


def _ticks(low: float, high: float, unit: Unit, values: Sequence[Values]) -> list[float]:
    wanted = (high - low) / _TICKS
    if unit in ("seconds", "instant"):
        step = _time_step(wanted)
    else:
        power = 10.0 ** math.floor(math.log10(wanted))
        step = next(each * power for each in (1, 2, 5, 10) if each * power >= wanted)
        is_whole = all(each is None or each == int(each) for own in values for each in own)
        if unit == "bytes" or is_whole:
            step = max(1.0, step)
    return [_plain(round(n * step, 9)) for n in range(math.ceil(low / step), int(high // step) + 1)]


def _time_step(wanted: float) -> float:
    """Return the first usual step of times that is not shorter, in seconds."""
    return next((each for each in _STEPS_S if each >= wanted), _STEPS_S[-1])


def _time_labels(x: Sequence[float]) -> list[Tick]:
    if not x:
        return []
    span = x[-1] - x[0]
    if not span:
        return [Tick(50, _clock(x[0], 1))]
    step = _time_step(span / 5)
    found = range(math.ceil(x[0] / step), int(x[-1] // step) + 1)
    return [_tick((n * step - x[0]) / span, _clock(n * step, step)) for n in found]


def _number_labels(x: Sequence[float]) -> list[Tick]:
    if len(x) < 2 or x[0] == x[-1]:
        return [Tick(50, short_count(each)) for each in x[:1]]
    found = _ticks(x[0], x[-1], "count", [x])
    return [_tick((each - x[0]) / (x[-1] - x[0]), short_count(each)) for each in found]


def _tick(share: float, text: str) -> Tick:
    """Return a label that stays inside of the chart."""
    anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
    return Tick(round(100 * share, 2), text, anchor)


def _clock(at: float, step: float) -> str:
    moment = _moment(at)
    if step >= _MONTH_S:
        return moment.strftime("%b %Y")
    if step >= _DAY_S:
        return moment.strftime("%-d %b")
    if step >= 60:
        return moment.strftime("%H:%M")
    return moment.strftime("%H:%M:%S") + (f".{moment.microsecond // 1000:03}" if step < 1 else "")


def _moment(at: float) -> dt.datetime:
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=at)
    except OverflowError:
        return dt.datetime.max.replace(tzinfo=dt.UTC)


def _plain(value: float) -> Any:
    return int(value) if value == int(value) else value
