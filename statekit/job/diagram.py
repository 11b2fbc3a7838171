"""The plan of a job as a diagram in Mermaid, for Markdown pages, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from statekit.job.picture import DrawnStream, Node, Picture, laid_out
from statekit.job.plan import Operator, Plan, Transform


def mermaid_of(plan: Plan) -> str:
    """Return the plan of a job as a flow chart of Mermaid: sources, functions, operators with their
    states, sinks, and the streams between them. Dotted lines have late and failed records, and
    records that every shard gets.

    >>> import statekit as sk
    >>> job = sk.Job("shop")
    >>> _ = job.source("orders", dict).sink("archive")
    >>> print(mermaid_of(job.plan))
    flowchart LR
        s0(["orders"])
        k0[/"archive"/]
        s0 --> k0
    """
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _Diagram(plan).lines())])


def picture_of_plan(plan: Plan) -> Picture:
    """Return the plan of a job as a picture, with the parts and streams of `mermaid_of`.

    >>> import statekit as sk
    >>> job = sk.Job("shop")
    >>> _ = job.source("orders", dict).sink("archive")
    >>> [(node.kind, node.name) for node in picture_of_plan(job.plan).nodes]
    [('source', 'orders'), ('sink', 'archive')]
    """
    return _Diagram(plan).picture()


class _Arrow(NamedTuple):
    """A stream in a diagram.

    Parameters:
        stream: its name.
        start, end: ids of nodes.
        label: what records it has, if these are not the outputs of an operator.
    """

    stream: str
    start: str
    end: str
    label: str


class _Diagram:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids = {each.name: f"s{number}" for number, each in enumerate(plan.sources)}
        self._ids |= {each.name: f"t{number}" for number, each in enumerate(plan.transforms)}
        self._ids |= {each.name: f"o{number}" for number, each in enumerate(plan.operators)}
        self._others = {each.late: (each.name, "late") for each in plan.operators}
        self._others |= {each.errors: (each.name, "failed") for each in plan.operators}

    def lines(self) -> Iterator[str]:
        """Yield the lines of Mermaid: nodes, then arrows."""
        for source in self._plan.sources:
            yield f"{self._ids[source.name]}([{_text(source.name)}])"
        for transform in self._plan.transforms:
            yield f"{self._ids[transform.name]}{{{{{_text(_transform_line(transform))}}}}}"
        for operator in self._plan.operators:
            yield f"{self._ids[operator.name]}[{_text(*_operator_lines(operator))}]"
        for number, sink in enumerate(self._plan.sinks):
            yield f"k{number}[/{_text(sink.name)}/]"
        for _, start, end, label in self._arrows():
            yield f"{start} " + (f"-. {label} .-> {end}" if label else f"--> {end}")

    def picture(self) -> Picture:
        """Return the picture of the same nodes and arrows."""
        plan, ids = self._plan, self._ids
        nodes = {ids[each.name]: Node("source", each.name, [each.name]) for each in plan.sources}
        for transform in plan.transforms:
            line = _transform_line(transform)
            nodes[ids[transform.name]] = Node("function", transform.name, [line])
        for operator in plan.operators:
            name, *others = _operator_lines(operator)
            texts = [name, *others[:1], *([", ".join(others[1:])] if others[1:] else ())]
            nodes[ids[operator.name]] = Node("operator", name, texts)
        for number, sink in enumerate(plan.sinks):
            nodes[f"k{number}"] = Node("sink", sink.name, [sink.name])
        arrows = list(self._arrows())
        streams = [
            DrawnStream(
                f"{each.stream}, {each.label}" if each.label else each.stream,
                each.start,
                each.end,
                bool(each.label),
            )
            for each in arrows
        ]
        named = {key: node.name for key, node in nodes.items()}
        label = "; ".join(f"{named[each.start]} to {named[each.end]}" for each in arrows)
        return laid_out(nodes, streams, label)

    def _arrows(self) -> Iterator[_Arrow]:
        for transform in self._plan.transforms:
            yield self._arrow(transform.input, self._ids[transform.name])
        for operator in self._plan.operators:
            for stream in operator.inputs:
                yield self._arrow(stream, self._ids[operator.name])
            for stream in operator.broadcasts:
                yield self._arrow(stream, self._ids[operator.name], "to every shard")
        for number, sink in enumerate(self._plan.sinks):
            yield self._arrow(sink.stream, f"k{number}")

    def _arrow(self, stream: str, end: str, label: str = "") -> _Arrow:
        owner, kind = self._others.get(stream, (stream, label))
        return _Arrow(stream, self._ids[owner], end, kind)


def _transform_line(transform: Transform) -> str:
    return f"{transform.function.kind} {transform.name}"


def _operator_lines(operator: Operator) -> Iterator[str]:
    yield operator.name
    if operator.declared.key:
        yield f"by {', '.join(operator.declared.key)}"
    for state in operator.declared.states:
        yield f"{state.name}: {state.kind.name}"


def _text(*lines: str) -> str:
    """Return lines as a text of Mermaid."""
    escaped = (
        line.replace("&", "&amp;").replace("<", "&lt;").replace('"', "#quot;") for line in lines
    )
    return f'"{"<br/>".join(escaped)}"'
