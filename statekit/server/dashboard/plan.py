"""The plan of a job as a picture: sources and operators in layers, and the streams between them.

A node is one layer behind the last of its inputs. A stream that passes layers gets a place in each
of them. The order within the layers follows from the mean place of the neighbours (barycentres).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statekit.server.dashboard.texts import cut, short_count

_NAME_MAX = 60
_SWEEPS = 8
_MARGIN, _BETWEEN_LAYERS, _BETWEEN = 4, 64, 22
_OPERATOR_HEIGHT, _SOURCE_HEIGHT, _PASSING_HEIGHT = 62, 40, 8


class _Stream(NamedTuple):
    """A stream from one node to another.

    Parameters:
        name: of the stream.
        start, end: names of the nodes.
        is_dashed: True for late records, failed records and a broadcast.
        is_broadcast: True if every shard gets all of its records.
    """

    name: str
    start: str
    end: str
    is_dashed: bool
    is_broadcast: bool


@dataclass
class Node:
    """A box of the picture, or a place where a stream passes a layer.

    Parameters:
        lines: the texts in the box; none where a stream passes.
        operator: its name; None for a source.
        width, height: of the box.

    Attributes:
        x, y: of its upper left corner.
    """

    lines: list[str]
    operator: str | None
    width: int
    height: int
    x: float = 0
    y: float = 0
    layer: int = 0
    place: float = 0
    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)

    @property
    def middle(self) -> float:
        """Height of the middle of the box."""
        return self.y + self.height / 2


class Curve(NamedTuple):
    """The line of a stream.

    Parameters:
        stream: its name, for people.
        path: the data of an SVG path.
        is_dashed: True for a dashed line.
    """

    stream: str
    path: str
    is_dashed: bool


class Picture(NamedTuple):
    """The picture.

    Parameters:
        width, height: its size.
        nodes: the boxes.
        curves: the lines.
        label: what it shows, as a sentence.
    """

    width: float
    height: float
    nodes: list[Node]
    curves: list[Curve]
    label: str


def picture_of(operators: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> Picture:
    """Lay out the plan of a job.

    Parameters:
        operators: the description of the job.
        last: the counts of the last epoch, by operator.
    """
    nodes = {each["operator"]: _operator(each, last.get(each["operator"])) for each in operators}
    streams = list(_streams(operators))
    for each in streams:
        if each.start not in nodes:
            nodes[each.start] = _source(each.name)
    _set_layers(nodes, streams)
    ways = [_way(nodes[each.start], nodes[each.end]) for each in streams]
    layers = _ordered([*nodes.values(), *(node for way in ways for node in way[1:-1])])
    width, height = _placed(layers)
    curves = [
        Curve(
            f"{each.name}{', to every shard' if each.is_broadcast else ''}",
            _path(way),
            each.is_dashed,
        )
        for each, way in zip(streams, ways, strict=True)
    ]
    label = "; ".join(
        f"{each['operator']} reads {' and '.join([*each['inputs'], *each['broadcasts']])}"
        for each in operators
    )
    return Picture(width, height, list(nodes.values()), curves, label)


def _streams(operators: Sequence[Mapping[str, Any]]) -> list[_Stream]:
    names = {each["operator"] for each in operators}
    found = []
    for each in operators:
        for stream in [*each["inputs"], *each["broadcasts"]]:
            owner = stream.removesuffix(".late").removesuffix(".errors")
            is_inner = owner in names and owner != each["operator"]
            is_broadcast = stream in each["broadcasts"]
            is_dashed = is_broadcast or (is_inner and owner != stream)
            start = owner if is_inner else f"source {stream}"
            found.append(_Stream(stream, start, each["operator"], is_dashed, is_broadcast))
    return found


def _operator(operator: Mapping[str, Any], last: Mapping[str, Any] | None) -> Node:
    states = len(operator["states"])
    small = f"{states} {'state' if states == 1 else 'states'}"
    if operator["has_timers"]:
        small += ", timers"
    if operator["key"]:
        small = f"by {', '.join(part['name'] for part in operator['key'])}, {small}"
    flow = "no records yet"
    if last:
        flow = f"{short_count(last['records_in'])} in, {short_count(last['records_out'])} out"
    name = operator["operator"]
    width = max(_width(name, 180, 8.4), _width(small, 180, 6.8), _width(flow, 180, 6.8))
    lines = [cut(text, _NAME_MAX) for text in (name, small, flow)]
    return Node(lines, name, width, _OPERATOR_HEIGHT)


def _source(stream: str) -> Node:
    return Node([cut(stream, _NAME_MAX)], None, _width(stream, 120, 8.4), _SOURCE_HEIGHT)


def _width(text: str, least: int, per_character: float) -> int:
    """Return the width of a box in which a text is not cut."""
    return max(least, int(min(len(text), _NAME_MAX) * per_character) + 26)


def _set_layers(nodes: Mapping[str, Node], streams: Sequence[_Stream]) -> None:
    """Put each node one layer behind the last of its inputs; sources directly before their first
    reader.
    """
    for _ in nodes:  # a path has at most that many nodes
        for each in streams:
            start, end = nodes[each.start], nodes[each.end]
            end.layer = max(end.layer, start.layer + 1)
    for name, node in nodes.items():
        if node.operator is None:
            node.layer = min(nodes[each.end].layer for each in streams if each.start == name) - 1


def _way(start: Node, end: Node) -> list[Node]:
    """Return the nodes of a stream: its ends, and a place in each layer between them."""
    passed = [
        Node([], None, 0, _PASSING_HEIGHT, layer=layer)
        for layer in range(start.layer + 1, end.layer)
    ]
    way = [start, *passed, end]
    for before, after in itertools.pairwise(way):
        before.after.append(after)
        after.before.append(before)
    return way


def _ordered(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the layers, each in an order in which few lines cross."""
    layers = [
        [node for node in nodes if node.layer == layer]
        for layer in range(max((node.layer for node in nodes), default=0) + 1)
    ]
    for layer in layers:
        _number(layer)
    for sweep in range(_SWEEPS):
        is_forward = sweep % 2 == 0
        for layer in layers if is_forward else layers[::-1]:
            for node in layer:
                near = node.before if is_forward else node.after
                if near:
                    node.place = sum(each.place for each in near) / len(near)
            layer.sort(key=lambda node: node.place)
            _number(layer)
    return layers


def _number(layer: Sequence[Node]) -> None:
    """Number the nodes of a layer, with 0 in its middle."""
    for place, node in enumerate(layer):
        node.place = place - (len(layer) - 1) / 2


def _placed(layers: Sequence[Sequence[Node]]) -> tuple[float, float]:
    """Set the corners of all nodes, and return the size of the picture."""
    heights = [sum(node.height + _BETWEEN for node in layer) - _BETWEEN for layer in layers]
    x, most = float(_MARGIN), max(heights, default=0)
    for layer, height in zip(layers, heights, strict=True):
        wide = max((node.width for node in layer), default=0)
        y = _MARGIN + (most - height) / 2
        for node in layer:
            node.x, node.y = x + (wide - node.width) / 2, y
            y += node.height + _BETWEEN
        x += wide + _BETWEEN_LAYERS
    return max(x - _BETWEEN_LAYERS, 0) + _MARGIN, most + 2 * _MARGIN


def _path(way: Sequence[Node]) -> str:
    """Return a curve from the right side of a node to the left side of another one."""
    points = [(way[0].x + way[0].width, way[0].middle)]
    points += [(node.x, node.middle) for node in way[1:]]
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        bend = (x0 + x1) / 2
        parts.append(f"C{bend:.0f} {y0:.1f} {bend:.0f} {y1:.1f} {x1:.0f} {y1:.1f}")
    return "".join(parts)
