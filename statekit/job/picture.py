"""The plan of a job as a picture: its parts in layers, the streams between them, and its SVG.

A node is one layer behind the last of its inputs. A stream that passes layers gets a place in each
of them. The order within the layers follows from the mean place of the neighbours (barycentres).

The SVG has no script, no style and no fixed colours: it is drawn in the colour of the text around
it, so that it fits light and dark pages. The dashboard has its own style for its classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, NamedTuple

from statekit.printable import printable

_NAME_MAX = 60
_SWEEPS = 8
_MARGIN, _BETWEEN_LAYERS, _BETWEEN = 4, 64, 22
_LINE_HEIGHT, _ONE_LINE_HEIGHT, _PASSING_HEIGHT = 15, 40, 8
_NAME_WIDTH, _SMALL_WIDTH = 8.4, 6.8
_LEAST_WIDTH = {"operator": 180, "passing": 0}

PartKind = Literal["source", "function", "operator", "sink", "passing"]
"""What a node is. Where a stream passes a layer, there is a node that is not drawn."""


def cut(text: str, most: int) -> str:
    """Return a text, cut with an ellipsis if it is too long.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


class DrawnStream(NamedTuple):
    """A stream from one node to another.

    Parameters:
        name: of the stream, for people.
        start, end: keys of the nodes.
        is_dashed: True for late records, failed records and a broadcast.
    """

    name: str
    start: str
    end: str
    is_dashed: bool = False


@dataclass
class Node:
    """A box of the picture, or a place where a stream passes a layer.

    Parameters:
        kind: what it is.
        name: of the part.
        texts: in the box, the name first.

    Attributes:
        x, y: of its upper left corner.
        layer_x, layer_end: where its layer begins and ends.
    """

    kind: PartKind
    name: str
    texts: Sequence[str]
    x: float = 0
    y: float = 0
    layer_x: float = 0
    layer_end: float = 0
    layer: int = 0
    place: float = 0
    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [cut(printable(text), _NAME_MAX) for text in self.texts]

    @property
    def width(self) -> int:
        """Width of a box in which no text is cut."""
        each = (_NAME_WIDTH, *(_SMALL_WIDTH for _ in self.lines[1:]))
        wide = (int(len(line) * of) + 26 for line, of in zip(self.lines, each, strict=False))
        return max(_LEAST_WIDTH.get(self.kind, 120), *wide, 0)

    @property
    def height(self) -> int:
        """Height of the box."""
        if not self.lines:
            return _PASSING_HEIGHT
        return max(_ONE_LINE_HEIGHT, 17 + _LINE_HEIGHT * len(self.lines))

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
        x, y: its end.
    """

    stream: str
    path: str
    is_dashed: bool
    x: float
    y: float


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

    def svg(self, link: Callable[[str], str] | None = None, *, is_file: bool = False) -> str:
        """Return the picture as SVG.

        Parameters:
            link: returns the address of the page of an operator, on a page with a style of its own;
                None without links.
            is_file: whether it is a file of its own, with colours for a light or dark background.
        """
        # What is within an image cannot be reached, and a page with links has a style.
        look = "" if link else ' role="img" font-family="system-ui,sans-serif" font-size="13"'
        look += "" if link else ' fill="currentColor"'
        begin = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" '
            f'height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"{look} '
            f'aria-label="{_escaped(self.label)}">'
        )
        edges = "" if link else f" {_EDGES}"
        parts = [
            begin,
            *((_FILE_STYLE,) if is_file else ()),
            f"<g{edges}>{''.join(map(_curve_svg, self.curves))}</g>",
            f'<path class="arrow"{"" if link else _ARROWS} d="{_arrows(self.curves)}"/>',
            *(_node_svg(node, link) for node in self.nodes),
        ]
        return "\n".join([*parts, "</svg>"])


_FILE_STYLE = (
    "<style>svg{color:#1c2733;background:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e4eaf1;background:#11161c}}</style>"
)


def laid_out(nodes: Mapping[str, Node], streams: Sequence[DrawnStream], label: str) -> Picture:
    """Return the picture of nodes, by their keys, and of the streams between them.

    >>> nodes = {"s": Node("source", "orders", ["orders"]), "k": Node("sink", "all", ["all"])}
    >>> picture = laid_out(nodes, [DrawnStream("orders", "s", "k")], "orders to all")
    >>> [(node.name, node.layer) for node in picture.nodes], picture.curves[0].path
    ([('orders', 0), ('all', 1)], 'M124 24.0H124C156 24.0 156 24.0 188 24.0H188')
    """
    _set_layers(nodes, streams)
    ways = [_way(nodes[each.start], nodes[each.end]) for each in streams]
    layers = _ordered([*nodes.values(), *(node for way in ways for node in way[1:-1])])
    width, height = _placed(layers)
    curves = [
        Curve(each.name, _path(way), each.is_dashed, way[-1].x, way[-1].middle)
        for each, way in zip(streams, ways, strict=True)
    ]
    return Picture(width, height, list(nodes.values()), curves, label)


def _set_layers(nodes: Mapping[str, Node], streams: Sequence[DrawnStream]) -> None:
    """Put each node one layer behind the last of its inputs; sources directly before their first
    reader.
    """
    for _ in nodes:  # a path has at most that many nodes
        for each in streams:
            start, end = nodes[each.start], nodes[each.end]
            end.layer = max(end.layer, start.layer + 1)
    for name, node in nodes.items():
        if node.kind == "source":
            read_by = [nodes[each.end].layer for each in streams if each.start == name]
            node.layer = min(read_by, default=1) - 1


def _way(start: Node, end: Node) -> list[Node]:
    """Return the nodes of a stream: its ends, and a place in each layer between them."""
    passed = [Node("passing", "", [], layer=layer) for layer in range(start.layer + 1, end.layer)]
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
            node.layer_x, node.layer_end = x, x + wide
            y += node.height + _BETWEEN
        x += wide + _BETWEEN_LAYERS
    return max(x - _BETWEEN_LAYERS, 0) + _MARGIN, most + 2 * _MARGIN


def _path(way: Sequence[Node]) -> str:
    """Return a curve from the right side of a node to the left side of another one. It bends only
    between layers, so that it crosses no wider box of the layers of its ends.
    """
    x, y = way[0].x + way[0].width, way[0].middle
    parts = [f"M{x:.0f} {y:.1f}"]
    for before, node in itertools.pairwise(way):
        x0, y0, x1, y1 = before.layer_end, before.middle, node.layer_x, node.middle
        bend = (x0 + x1) / 2
        parts.append(f"H{x0:.0f}C{bend:.0f} {y0:.1f} {bend:.0f} {y1:.1f} {x1:.0f} {y1:.1f}")
    return "".join([*parts, f"H{way[-1].x:.0f}"])


# --------------------------------------------------------------------------------------- SVG

_EDGES = 'fill="none" stroke="currentColor" stroke-opacity="0.55" stroke-width="1.5"'
_ARROWS = ' fill-opacity="0.55"'
_NAMES = ' font-weight="600"'
_SMALL = ' font-size="11.5" fill-opacity="0.7"'
_DASHED = ' class="edge dashed" stroke-dasharray="5 4"'
_BOXES: dict[PartKind, str] = {
    "source": ' fill="#2f7de1" fill-opacity="0.16"',
    "sink": ' fill="#2b9a66" fill-opacity="0.18"',
    "function": ' fill-opacity="0.05" stroke="currentColor" stroke-opacity="0.3"',
    "operator": ' fill-opacity="0.05" stroke="currentColor" stroke-opacity="0.45"',
}
"""How things look without a stylesheet."""

_ROUND: dict[PartKind, int] = {"source": 20, "sink": 20, "function": 4, "operator": 9}


def _escaped(text: str) -> str:
    return escape(printable(text))


def _curve_svg(curve: Curve) -> str:
    look = _DASHED if curve.is_dashed else ' class="edge"'
    return f'<path{look} d="{curve.path}"><title>{_escaped(curve.stream)}</title></path>'


def _arrows(curves: Sequence[Curve]) -> str:
    ends = dict.fromkeys((each.x, each.y) for each in curves)
    return "".join(f"M{x - 7:g} {y - 4:g}L{x:g} {y:g}L{x - 7:g} {y + 4:g}z" for x, y in ends)


def _node_svg(node: Node, link: Callable[[str], str] | None) -> str:
    look = "" if link else _BOXES[node.kind]
    inner = (
        f'<g transform="translate({node.x:g} {node.y:g})"><title>{_escaped(node.name)}</title>'
        f'<rect width="{node.width}" height="{node.height}" rx="{_ROUND[node.kind]}"{look}/>'
        f"{''.join(_texts_svg(node, has_look=link is None))}</g>"
    )
    if link is None or node.kind != "operator":
        return f'<g class="{node.kind}">{inner}</g>'
    address, label = escape(link(node.name)), _escaped(f"operator {node.name}")
    return f'<a class="operator" href="{address}" aria-label="{label}">{inner}</a>'


def _texts_svg(node: Node, *, has_look: bool) -> Iterator[str]:
    is_alone = len(node.lines) == 1
    for number, line in enumerate(node.lines):
        look = (_SMALL if number else _NAMES) if has_look else ""
        place = f'x="12" y="{(22, 38, 53)[number]}"'
        if is_alone:
            place = f'x="{node.width / 2:g}" y="25" text-anchor="middle"'
        kind = "small" if number else "name"
        yield f'<text class="{kind}" {place}{look}>{_escaped(line)}</text>'
